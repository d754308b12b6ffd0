"""What a user may ask of a prepare run, and what comes back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from prep.findings import Finding
from prep.manifest import RecordRow

__all__ = ["FAILURES_SHOWN", "Options", "Outcome", "Result", "RobotOptions", "overall_status"]

FAILURES_SHOWN = 20

Outcome = Literal["complete", "unchanged", "downloaded", "planned", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run; a field that a kind has no use for is ignored by it.

    `limit` is the first N source records of each split. `min_coverage` is the share of rows,
    0 to 1, that must be kept. `sources` maps a split to `owner/name`, `owner/name@revision`
    or a local folder; `mirrors` are (start, replacement) pairs for the starts of URLs.
    `give_up` counts failures that a rerun may mend as final. `timeout` is in seconds.
    """

    score_field: str | None = None
    include_caption: bool = False
    caption_field: str | None = None
    on_bad_bytes: Literal["fail", "replace"] = "fail"
    prompt: str = "auto"
    upstream: Path | None = None
    limit: int | None = None
    jobs: int = 16
    min_coverage: float = 1.0
    sources: Mapping[str, str] = field(default_factory=dict)
    mirrors: Sequence[tuple[str, str]] = ()
    dry_run: bool = False
    download_only: bool = False
    offline: bool = False
    update: bool = False
    refresh: bool = False
    give_up: bool = False
    reuse: Path | None = None
    prune: bool = False
    wait: bool = False
    timeout: float = 30.0
    attempts: int = 5
    quiet: bool = True
    cancel: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotOptions(Options):
    """The options of a robot dataset.

    `root` is a local tree, linked unless `copy`. `max_download` is in bytes. `include` is a group
    or an institution of the Hub's repository. `keep_ranges` is a filter file, or `hub` for the
    recipe's own. An index of fewer spans than `ranks` times `workers` is an error. `ignore` are
    codes of findings to accept.
    """

    root: Path | None = None
    copy: bool = False
    metadata_only: bool = False
    include: str | None = None
    max_download: int = 50_000_000_000
    keep_ranges: str | None = None
    chunk_length: int | None = None
    source_prefix: str | None = None
    ranks: int = 1
    workers: int = 1
    ignore: tuple[str, ...] = ()


@dataclass(slots=True)
class Result:
    """What a run did to one split.

    `reused` and `fetched` count media files, `bytes` what was fetched; `failed` counts rows by
    reason and `failures` shows the first of them. `message` and `remedy` say why a run did not
    complete. `seconds` is wall time. `unit` and `files_unit` are what people call the records and files.
    """

    name: str
    root: Path
    outcome: Outcome
    rows: int = 0
    kept: int = 0
    reused: int = 0
    fetched: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failed: dict[str, int] = field(default_factory=dict)
    failures: list[RecordRow] = field(default_factory=list)
    consumption: dict[str, Any] = field(default_factory=dict)
    dataset_id: str | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    message: str = ""
    remedy: str = ""
    unit: str = "rows"
    files_unit: str = "clips"

    @property
    def exit_status(self) -> int:
        """0 done, 1 failed for good, 3 a rerun may mend it."""
        return {"failed": 1, "incomplete": 3}.get(self.outcome, 0)

    def as_dict(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "name": self.name,
            "directory": str(self.root),
            "outcome": self.outcome,
            "status": self.exit_status,
            "dataset_id": self.dataset_id,
            "rows": self.rows,
            "kept": self.kept,
            "reused": self.reused,
            "fetched": self.fetched,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "failed": self.failed,
            "consumption": self.consumption,
            "findings": [{"code": item.code, **item.as_dict()} for item in self.findings],
            "notes": self.notes,
            "message": self.message,
            "remedy": self.remedy,
        }


def overall_status(results: Sequence[Result]) -> int:
    """The exit status of several splits: a failure for good outweighs one that a rerun may mend."""
    found = {result.exit_status for result in results}
    return 1 if 1 in found else 3 if 3 in found else 0
