"""A first recipe for one table: videos become conversations, images a snapshot."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep.errors import UsageError
from prep.init_drafts import SPLIT_NAMES, Draft, NewTable, Place
from prep.init_recipes import conversations, images, sft
from prep.init_tables import Columns, guess_columns, media_folder
from prep.layouts.sft_jsonl import LINES, find_lines
from prep.progress import counted
from prep.records import Row, Rows, Turn, is_picture, read_rows, single, turns_of

__all__ = ["of_table"]

_TURNS = "turns"


def of_table(path: Path, place: Place) -> Draft:
    """The recipe for the table at `path`; raises UsageError for one that no kind is made of."""
    rows = read_rows(path)
    if {"vision_path", "t2w_windows"} <= set(rows.names):
        return _of_sft_lines(path, place)
    columns = guess_columns(rows)
    columns.need(rows)
    table = _Table(rows, columns, place)
    table.look()
    return _of_images(table) if columns.kind == "image" else _of_videos(table)


def _of_sft_lines(path: Path, place: Place) -> Draft:
    tree = path.parent.parent
    if path not in find_lines(tree).values():
        raise UsageError(
            f"{path} holds SFT records, but stands in no train/{LINES} or val/{LINES}.",
            remedy=f"Name it so, with its videos beside it, and give the folder above: {path.parent}.",
        )
    why = "its records have vision_path and t2w_windows: it is an SFT JSONL already"
    return Draft(sft(place.name, why, {"tree": place.relative(tree)}))


@dataclass(slots=True)
class _Table:
    """A table with its guessed columns: where its media are, and what of it is to be said.

    `base` is the folder that absolute paths are below, if there are any; `counts` are of the whole table.
    """

    rows: Rows
    columns: Columns
    place: Place
    media_root: Path | None = None
    base: Path | None = None
    remarks: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def look(self) -> None:
        """Go through the table once: find the media, and count what cannot be kept."""
        if self.columns.pictures:
            return
        folders = set()
        for row in self.rows.each():
            self._count(row)
            value = self._media(row)
            if value.startswith("/"):
                folders.add(value.rpartition("/")[0] or "/")
        if folders:
            self.base = self.media_root = Path(os.path.commonpath(folders))
            self.columns.reasons["media_root"] = "the media's paths are absolute; this is what they share"
        else:
            self._find()
        self._tell()

    @property
    def is_used_as_it_is(self) -> bool:
        """Whether the recipe can name the table itself; else one is written."""
        columns = self.columns
        if columns.split is not None or self.base is not None:
            return False
        return columns.kind == "image" or (self.rows.is_csv and columns.turns is None)

    def _media(self, row: Row) -> str:
        value = single(row.get(str(self.columns.media)))
        return value if isinstance(value, str) else ""

    def _count(self, row: Row) -> None:
        self.counts["rows"] += 1
        several = isinstance(single(row.get(str(self.columns.media))), list)
        self.counts["several"] += several
        self.counts["none"] += not several and not self._media(row)
        if self.columns.turns is None:
            answer = row.get(str(self.columns.answer))
            self.counts["unanswered"] += answer is None or not str(answer).strip()
            return
        turns = turns_of(row.get(self.columns.turns))
        texts = _dialogue(turns)
        self.counts["system"] += any(role == "system" for role, _ in turns)
        self.counts["broken"] += len(texts) < sum(role != "system" for role, _ in turns)
        self.counts["unanswered"] += not texts
        self.counts["further"] += len(texts) > 2

    def _find(self) -> None:
        folder, there, looked = media_folder(self.rows, str(self.columns.media))
        if there < looked:
            told = (
                f"{there} of {looked} media files looked for were found below {self.place.relative(folder)}"
            )
            self.remarks.append(f"{told}: correct media_root, or bring the files there")
        if looked:
            self.media_root = folder
            self.columns.reasons["media_root"] = f"{there} of {looked} files looked for are below it"

    def _tell(self) -> None:
        kind = self.columns.kind
        told = {
            "several": f"name several {kind}s; a record has one: they are left out",
            "none": f"name no {kind}: they are left out",
            "system": "begin with a system's turn, which the kind does not keep",
            "broken": "hold turns out of order or without an answer, which are left out with all behind them",
        }
        self.remarks += [
            f"{self.counts[key]} of {counted(self.counts['rows'], 'row')} {said}"
            for key, said in told.items()
            if self.counts[key]
        ]
        if self.counts["unanswered"]:
            rows = f"{self.counts['unanswered']} of {counted(self.counts['rows'], 'row')}"
            failed = self.is_used_as_it_is and kind == "video"
            then = "they fail: mend them, or give --min-coverage" if failed else "they are left out"
            self.remarks.append(f"{rows} have no answer: {then}")

    def where(self, table: Path) -> dict[str, str]:
        """What a split of the recipe says of its table, and of its media if they are not beside it."""
        said = {"table": self.place.relative(table)}
        if self.media_root is not None and self.media_root != table.parent:
            said["media_root"] = self.place.relative(self.media_root)
        return said

    def flat(self) -> Iterator[Row]:
        """The rows that make a record, with plain values, turns as question, answer and what follows."""
        columns = self.columns
        for row in self.rows.each():
            media = self._media(row)
            record = {**{name: single(row.get(name)) for name in self.rows.names}, str(columns.media): media}
            if self.base is not None:
                record[str(columns.media)] = os.path.relpath(media, self.base) if media else ""
            if columns.turns is not None:
                texts = _dialogue(turns_of(row.get(columns.turns)))
                record = _without(record, columns.turns)
                record |= dict(zip(("question", "answer"), texts, strict=False))
                record[_TURNS] = texts[2:] or ""
            if media and str(record.get(str(columns.answer)) or "").strip():
                yield record

    def header(self) -> list[str]:
        """The columns of a table that is written."""
        names = [name for name in self.rows.names if name and name != self.columns.turns]
        if self.columns.turns is not None:
            names += ["question", "answer", *([_TURNS] if self.counts["further"] else [])]
        return list(dict.fromkeys(names))

    def written(self, header: Sequence[str], rows: Any) -> tuple[dict[str, dict[str, str]], list[NewTable]]:
        """New tables of `rows`, one a split, and what the recipe says of each."""
        tables, splits = [], {}
        for split, wanted in self._splits(rows).items():
            table = NewTable(
                f"{self.place.name}_{split}.csv", header, _Chosen(rows, self.columns.split, wanted)
            )
            tables.append(table)
            splits[split] = self.where(self.place.folder / table.name)
        return splits, tables

    def _splits(self, rows: Any) -> dict[str, set[str]]:
        """For each split the values of the split column that mean it."""
        if self.columns.split is None:
            return {"train": set()}
        splits: dict[str, set[str]] = {}
        for value in sorted({str(row.get(self.columns.split)) for row in rows()}):
            key = re.sub(r"[^A-Za-z0-9_-]+", "_", SPLIT_NAMES.get(value.lower(), value)) or "other"
            splits.setdefault(key, set()).add(value)
        return splits


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows of a split, as often as they are asked for."""

    rows: Any
    column: str | None
    wanted: set[str]

    def __call__(self) -> Iterator[Mapping[str, Any]]:
        for row in self.rows():
            if self.column is None or str(row.get(self.column)) in self.wanted:
                yield row


def _without(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


def _dialogue(turns: Sequence[Turn]) -> list[str]:
    """The texts of the user and the assistant by turns, up to the last answer in order."""
    texts: list[str] = []
    for role, text in turns:
        if role == "system":
            continue
        if role != ("user", "assistant")[len(texts) % 2] or not text:
            break
        texts.append(text)
    return texts[: len(texts) // 2 * 2]


def _of_videos(table: _Table) -> Draft:
    columns, place = table.columns, table.place
    if table.is_used_as_it_is:
        splits, tables = {"train": table.where(table.rows.path)}, list[NewTable]()
    else:
        splits, tables = table.written(table.header(), table.flat)
    has_turns = columns.turns is not None and bool(table.counts["further"])
    text = conversations(place.name, columns, splits, table.remarks, has_turns=has_turns)
    return Draft(text, tables)


def _of_images(table: _Table) -> Draft:
    columns, place = table.columns, table.place
    if columns.pictures and columns.split is not None:
        table.remarks.append(f"the column {columns.split!r} is not used: all rows are train")
        columns.split = None
    if table.is_used_as_it_is:
        columns.reasons.pop("split", None)
        return Draft(images(place.name, columns, {"train": table.where(table.rows.path)}, table.remarks))
    used = (columns.id, columns.media, columns.turns, columns.prompt, columns.answer, columns.split)
    header = [name for name in table.rows.names if name in used]
    splits, tables = table.written(header, lambda: _image_rows(table))
    return Draft(images(place.name, columns, splits, table.remarks), tables)


def _image_rows(table: _Table) -> Iterator[Row]:
    media = str(table.columns.media)
    for row in table.rows.each():
        value = single(row.get(media))
        if table.base is not None and isinstance(value, str) and not is_picture(value):
            yield {**row, media: os.path.relpath(value, table.base)}
        else:
            yield row
