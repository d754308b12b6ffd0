"""What a user may ask of a snapshot run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prep.errors import UsageError
from prep.layouts.arrow_snapshot import Form
from prep.stages.options import Options

__all__ = ["SHARD_BYTES", "SnapshotOptions"]

SHARD_BYTES = 256_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions(Options):
    """The options of a snapshot.

    `limit` is the first N source rows, `max_samples` the first N kept ones. `source` is in place of the
    recipe's repository: `owner/name[@revision]`, a local copy of one, or a parquet file. `shard_bytes`
    is the payload after which a shard ends; UsageError for less than one byte.
    """

    max_samples: int | None = None
    on_bad_image: Literal["fail", "drop"] = "fail"
    form: Form = "arrow"
    source: str | None = None
    shard_bytes: int = SHARD_BYTES

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(
                f"A shard of {self.shard_bytes} bytes would hold no row.",
                remedy="Give a --shard-size of one byte or more, such as 256MB.",
            )
