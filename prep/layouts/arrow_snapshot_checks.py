"""The checks of one snapshot: its documents, its shards, and every row; one scan feeds all rules.

A rule gets what was read of one row and says what is wrong with it, or nothing.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prep.documents import BrokenDocumentError, parse
from prep.findings import Finding, found
from prep.layouts.arrow_snapshot import INFO, STATE_FILE, shard_batches
from prep.layouts.repeats import THRESHOLDS, repeated_positions
from prep.rules import applied

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "Scan", "check_texts", "scan_shards", "shard_names"]

_PLACEHOLDER: Final = re.compile(
    r"<video>|<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad)\|>|<(?:image|img)\d+>"
)
_MISSING: Final = frozenset(("nan", "NaN", "None", "null", "<NA>", "NaT"))
_SHOWN = 60
_NONE: Final[tuple[Finding, ...]] = ()

Emit = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that mean something, and how many turns upstream asks for."""

    id: str | None = "id"
    image: str = "image"
    conversations: str = "conversations"
    minimum_turns: int = 2

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Columns:
        """What a manifest's recipe says; upstream's names where there is none."""
        columns = recipe.get("columns")
        if not isinstance(columns, dict):
            return cls()
        turns = recipe.get("keep", {}).get("minimum_turns", 2)
        return cls(columns.get("id"), columns["image"], columns["conversations"], turns)


@dataclass(frozen=True, slots=True)
class Row:
    """One row: which, its turns as (speaker, text), and whether it has an image."""

    path: str
    place: str
    turns: list[Any]
    has_image: bool
    columns: Columns

    def texts(self, *, human: bool) -> Iterator[tuple[int, str]]:
        """The numbered texts of the human turns, or of the others."""
        for number, turn in enumerate(self.turns):
            if (turn["from"] == "human") == human:
                yield number, turn["value"]

    def at(self, code: str, turn: int, message: str) -> Finding:
        """A finding at a turn."""
        return found(code, self.path, message, place=f"{self.place}/conversations/{turn}")


def turns_can_be_read(row: Row) -> Iterable[Finding]:
    """SNP006: each turn has a speaker and a text."""
    for number, turn in enumerate(row.turns):
        for key in ("from", "value"):
            if not isinstance(turn, dict) or not isinstance(turn.get(key), str):
                yield row.at("SNP006", number, f"{key!r} is no text")


def upstream_keeps(row: Row) -> Iterable[Finding]:
    """SNP005: an image, and enough turns."""
    if not row.has_image:
        return [found("SNP005", row.path, "the image is null", place=row.place)]
    if len(row.turns) < row.columns.minimum_turns:
        message = f"{len(row.turns)} turn(s); expected {row.columns.minimum_turns} or more"
        return [found("SNP005", row.path, message, place=row.place)]
    return _NONE


def image_is_shown(row: Row) -> Iterable[Finding]:
    """SNP007: there is a human turn, which the image goes to."""
    if row.has_image and row.turns and not any(True for _ in row.texts(human=True)):
        return [found("SNP007", row.path, f"{len(row.turns)} turns, none of a human", place=row.place)]
    return _NONE


def placeholders_fit(row: Row) -> Iterable[Finding]:
    """REC003 and REC004: at most one `<image>`, in a question; nothing that upstream leaves in the text."""
    count = sum(text.count("<image>") for _, text in row.texts(human=True))
    if count > 1:
        message = f"{count} <image> in the questions; the record has one image"
        yield found("REC003", row.path, message, place=row.place)
    for number, turn in enumerate(row.turns):
        text = turn["value"]
        seen = _PLACEHOLDER.search(text) if "<" in text else None
        if seen:
            yield row.at("REC003", number, f"{seen[0]} in the text; the record has one image and no video")
        elif turn["from"] != "human" and "<image>" in text:
            yield row.at("REC004", number, "the answer holds <image>, which upstream takes out")


def turns_are_filled(row: Row) -> Iterable[Finding]:
    """REC005 and REC009: each turn has a text beside the placeholder, and no answer is a missing value."""
    for number, turn in enumerate(row.turns):
        text = turn["value"].replace("<image>", "").strip()
        if not text:
            yield row.at("REC005", number, f"the {turn['from']} turn has no text")
        elif turn["from"] != "human" and text in _MISSING:
            yield row.at("REC009", number, f"the answer is {text!r}")


def speakers_alternate(row: Row) -> Iterable[Finding]:
    """REC006 and REC007: human and other in turn, beginning with the human; some answer."""
    for number, turn in enumerate(row.turns):
        due = number % 2 == 0
        if (turn["from"] == "human") != due:
            expected = "human" if due else "gpt"
            return [row.at("REC006", number, f"the speaker is {turn['from']!r}; expected {expected!r}")]
    if len(row.turns) == 1:
        return [found("REC007", row.path, "1 turn, none of an assistant", place=row.place)]
    return _NONE


_RULES = (placeholders_fit, turns_are_filled, speakers_alternate, image_is_shown)


@dataclass(slots=True)
class Scan:
    """What the scan of all rows gathers: how many, and 64-bit hashes of ids and first questions."""

    rows: int = 0
    ids: array[int] = field(default_factory=lambda: array("q"))
    questions: array[int] = field(default_factory=lambda: array("q"))

    def repeats(self, named: Callable[[int], str]) -> Iterator[Finding]:
        """REC001 and REC010, once all rows have been seen; `named` says where row N (from 0) is.

        Ids are warnings here: upstream finds rows by position.
        """
        for group in repeated_positions(self.ids):
            message = f"{len(group)} rows have this id, the first two {group[0]} and {group[1]}"
            yield found("REC001", named(group[1]), message, severity="warning")
        total = len(self.questions)
        if total < THRESHOLDS["common_text_records"]:
            return
        groups = repeated_positions(self.questions)
        common = [group for group in groups if len(group) > THRESHOLDS["common_text_share"] * total]
        singles = total - sum(map(len, groups))
        if singles + len(groups) - len(common) > THRESHOLDS["prompt_texts"]:
            for group in common:
                message = f"{len(group)} of {total} rows ({len(group) / total:.0%}) have this question"
                yield found("REC010", named(group[0]), message)


def shard_names(root: Path, emit: Emit) -> list[str]:
    """The shards that `state.json` names; SNP001 for what `load_from_disk` would stumble over."""
    documents: dict[str, Any] = {}
    for name in (STATE_FILE, INFO):
        try:
            documents[name] = parse((root / name).read_bytes(), name)
        except OSError as error:
            emit(found("SNP001", name, f"{error.strerror}"))
        except BrokenDocumentError as error:
            for finding in error.findings:
                emit(found("SNP001", name, finding.message, place=finding.place))
    info = documents.get(INFO)
    if INFO in documents and not (isinstance(info, dict) and isinstance(info.get("features"), dict)):
        emit(found("SNP001", INFO, "no features", place="/features"))
    state = documents.get(STATE_FILE)
    listed = state.get("_data_files") if isinstance(state, dict) else None
    if STATE_FILE in documents and not listed:
        emit(found("SNP001", STATE_FILE, "no shard is named", place="/_data_files"))
    names = [str(entry.get("filename")) for entry in listed or () if isinstance(entry, dict)]
    for name in names:
        if "/" in name or name.startswith("."):
            emit(found("FIL011", STATE_FILE, f"the shard {name!r} is not in the directory itself"))
    return [name for name in names if "/" not in name and not name.startswith(".")]


def scan_shards(
    root: Path, names: Iterable[str], columns: Columns, emit: Emit
) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Each batch of each shard with the shard's name and the batch's first row in it.

    SNP002 for a shard that cannot be read, which is left then; SNP003 for other columns than the first's.
    """
    import pyarrow as pa

    first: pa.Schema | None = None
    for name in names:
        row = 0
        try:
            for batch in shard_batches(root / name):
                if row == 0 and not _fits(name, batch.schema, first, columns, emit):
                    break
                first = first or batch.schema
                yield name, row, batch
                row += len(batch)
        except FileNotFoundError:
            emit(found("FIL005", name, "there is no such file; the snapshot names it"))
        except (OSError, pa.ArrowException) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            emit(found("SNP002", name, f"after {row} rows: {said}"))


def _fits(name: str, schema: pa.Schema, first: pa.Schema | None, columns: Columns, emit: Emit) -> bool:
    if first is not None and not schema.equals(first):
        emit(found("SNP003", name, f"its columns are {_told(schema)}; the first shard has {_told(first)}"))
        return False
    missing = {columns.image, columns.conversations} - set(schema.names)
    if missing:
        emit(found("SNP003", name, f"no column {min(missing)!r} among {', '.join(schema.names)}"))
        return False
    return True


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{item.name} {str(item.type)[:_SHOWN]}" for item in schema)


def check_texts(
    name: str, first: int, batch: pa.RecordBatch, columns: Columns, scan: Scan
) -> Iterator[Finding]:
    """The rules on the texts of a batch's rows; adds to the scan. The images' bytes are not touched."""
    turns = batch.column(columns.conversations).to_pylist()
    has_id = columns.id is not None and columns.id in batch.schema.names
    ids = batch.column(columns.id).to_pylist() if has_id else [None] * len(batch)
    images = batch.column(columns.image).is_valid().to_pylist()
    for at, (own, identity, has_image) in enumerate(zip(turns, ids, images, strict=True)):
        row = Row(name, f"row {first + at}", own or [], has_image, columns)
        broken = list(turns_can_be_read(row))
        yield from broken
        yield from upstream_keeps(row)
        if not broken:
            yield from applied(_RULES, row, name)
        scan.rows += 1
        scan.ids.append(hash(identity) if identity else 0)
        question = next((turn for turn in row.turns if not broken and turn["from"] == "human"), None)
        scan.questions.append(hash(question["value"].replace("<image>", "").strip()) if question else 0)
