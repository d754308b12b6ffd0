"""A first recipe for data of one's own: look at a folder or table, guess, and say why."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep.errors import UsageError
from prep.files import disk_errors, write_whole
from prep.init_recipes import Text, conversations, lerobot, reasoning, sft, snapshot
from prep.init_tables import ENDINGS, SAMPLE, Columns, Rows, guess_columns, read_rows
from prep.layouts.lerobot import version_of
from prep.layouts.reasoning_qa import FORMATS
from prep.layouts.reasoning_qa_checks import format_of
from prep.recipe import load_recipe
from prep.validation_reasoning import find_reasoning_trees
from prep.validation_robot import find_roots

__all__ = ["Made", "init"]

_SPLIT_NAMES: Final = {
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "eval": "val",
    "dev": "val",
}
_ANSWERS_COLUMN: Final = ("media", "question", "answer")


@dataclass(slots=True)
class Made:
    """A recipe that was written, the tables beside it, and the command that runs it."""

    recipe: Path
    kind: str
    command: str
    tables: list[Path] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def init(source: str | Path, *, output: Path | None = None, update: bool = False) -> Made:
    """Look at `source`, and write a recipe for it, at `output` or beside it.

    Raises UsageError for something that no kind of dataset is made of, and where a file that would be
    written is there and `update` is not given.
    """
    path = Path(os.path.abspath(source))  # noqa: PTH100 - links are kept: they may be where the media are
    if not path.exists():
        raise UsageError(f"There is nothing at {source}.", remedy="Give a folder of media, or a table.")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem if path.is_file() else path.name).strip("_") or "mine"
    target = (output or path.parent / f"{name}.toml").absolute()
    writing = _Writing(name, target, update)
    made = _of_folder(path, writing) if path.is_dir() else _of_file(path, writing)
    load_recipe(made.recipe)  # what was written is what the schema wants
    return made


@dataclass(slots=True)
class _Writing:
    """Where the recipe of this name goes, and whether what is there may be replaced."""

    name: str
    target: Path
    update: bool

    def recipe(self, text: Text, command: str, tables: Sequence[Path] = ()) -> Made:
        """Write the recipe; `{recipe}` in the command becomes its path."""
        self._write(self.target, text.toml())
        told = command.replace("{recipe}", _relative(self.target, Path.cwd()))
        return Made(self.target, text.kind, told, list(tables), text.remarks)

    def table(
        self, suffix: str, header: Sequence[str], rows: Iterator[Mapping[str, Any]], folder: Path
    ) -> Path:
        """Write a table beside the media, for the recipe to name."""
        path = folder / f"{self.name}{suffix}.csv"
        self._write(path, _csv_lines(header, rows))
        return path

    def _write(self, path: Path, text: str | Iterator[str]) -> None:
        if path.exists() and not self.update:
            raise UsageError(
                f"{path} is there.", remedy="Add --update to replace it, or give another --output."
            )
        pieces = (text,) if isinstance(text, str) else text
        with disk_errors(path):
            write_whole(path, (piece.encode("utf-8", "surrogateescape") for piece in pieces))


def _csv_lines(header: Sequence[str], rows: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, header, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def _relative(path: Path, folder: Path) -> str:
    """A path as a recipe in `folder` names it."""
    return os.path.relpath(path, folder)


def _of_folder(path: Path, writing: _Writing) -> Made:
    roots = find_roots(path)
    if roots:
        return _of_robot(path, roots, writing)
    if find_reasoning_trees(path) == [""]:
        return _of_annotations(sorted(path.glob("*.json")), writing)
    media = {kind: list(_files(path, endings)) for kind, endings in ENDINGS.items()}
    if not any(media.values()):
        raise UsageError(
            f"{path} holds no videos, no images and no LeRobot tree.",
            remedy="Give the folder that the media are in, or the table that names them.",
        )
    if len(media["image"]) > len(media["video"]):
        return writing.recipe(
            snapshot(writing.name, {}, f"{len(media['image'])} images, {len(media['video'])} videos"),
            "prep llava-ov --help",
        )
    captions = [video for video in media["video"] if _caption_of(path / video).is_file()]
    if len(captions) * 2 > len(media["video"]):
        text = sft(writing.name, f"{len(captions)} of {len(media['video'])} videos have a text of their name")
        return writing.recipe(text, f"prep sft --from-captions DIR --videos {path}")
    return _of_videos(path, media["video"], writing)


def _files(folder: Path, endings: tuple[str, ...]) -> Iterator[str]:
    for below, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(endings):
                yield _relative(Path(below) / name, folder)


def _ending(videos: Sequence[str]) -> str:
    """The ending that most of the videos have."""
    counted = Counter(Path(video).suffix.lower() for video in videos)
    return counted.most_common(1)[0][0]


def _caption_of(video: Path) -> Path:
    text = video.with_suffix(".txt")
    return text if text.is_file() else video.with_suffix(".json")


def _of_robot(path: Path, roots: Sequence[str], writing: _Writing) -> Made:
    versions = {version_of(path / root) for root in roots}
    if versions - {"v3.0"}:
        raise UsageError(
            f"{path} is a LeRobot tree of version {', '.join(sorted(map(str, versions)))}.",
            remedy="Convert it to v3.0 first: `prep validate DIR` names the command.",
        )
    groups = {root.split("/")[0] for root in roots}
    if len(roots) > 1 and not groups <= {"success", "failure"}:
        raise UsageError(
            f"{path} holds {len(roots)} LeRobot trees ({roots[0]}, {roots[1]} …).", remedy="Give one of them."
        )
    text = lerobot(writing.name, path, roots)
    return writing.recipe(text, f"prep lerobot --recipe {{recipe}} --root {path}")


def _of_annotations(paths: Sequence[Path], writing: _Writing) -> Made:
    files = [path for path in paths if format_of(path) in (*FORMATS, "")]
    splits: dict[str, list[str]] = {}
    for file in files:
        words = set(re.split(r"[^a-z]+", file.stem.lower()))
        split = "val" if words & _SPLIT_NAMES.keys() else "train"
        splits.setdefault(split, []).append(_relative(file, writing.target.parent))
    return writing.recipe(reasoning(writing.name, splits), "prep video-reasoning --recipe {recipe}")


def _of_videos(path: Path, videos: Sequence[str], writing: _Writing) -> Made:
    """Videos without a text: a table to be filled in, or the folders' names as answers."""
    inner = {video.split("/")[-2] for video in videos if "/" in video}
    all_inside = all("/" in video for video in videos)
    splits: dict[str, list[dict[str, str]]] = {}
    labelled = all_inside and len(inner - set(_SPLIT_NAMES) - {"train"}) > 1
    for video in videos:
        parts = video.split("/")
        split = _SPLIT_NAMES.get(parts[0], "train") if len(parts) > 1 else "train"
        answer = parts[-2] if labelled else ""
        splits.setdefault(split, []).append(
            {"media": f"{path.name}/{video}", "question": "", "answer": answer}
        )
    tables = {
        split: writing.table(f"_{split}", _ANSWERS_COLUMN, iter(rows), path.parent)
        for split, rows in splits.items()
    }
    columns = Columns("media", prompt=None if labelled else "question", answer="answer")
    columns.ending = _ending(videos)
    columns.reasons["media"] = f"{len(videos)} videos were found in {path.name}"
    columns.reasons["split"] = "the folders' names" if len(splits) > 1 else "there is one folder"
    columns.reasons["answer"] = (
        f"the folders' names, such as {sorted(inner)[0]!r}"
        if labelled
        else "nothing tells: fill the table in"
    )
    names = {split: _relative(table, writing.target.parent) for split, table in tables.items()}
    text = conversations(writing.name, columns, names)
    return writing.recipe(text, "prep prepare {recipe}", list(tables.values()))


def _of_file(path: Path, writing: _Writing) -> Made:
    if path.suffix.lower() == ".json" and format_of(path) in (*FORMATS, ""):
        return _of_annotations([path], writing)
    rows = read_rows(path)
    if {"vision_path", "t2w_windows"} <= set(rows.names):
        text = sft(writing.name, "its records have vision_path and t2w_windows: it is an SFT JSONL already")
        return writing.recipe(text, f"prep validate {path.parent}")
    columns = guess_columns(rows)
    if columns.kind == "image" or _holds_images(rows):
        return writing.recipe(
            snapshot(writing.name, _image_columns(rows, columns), path.name), "prep llava-ov --help"
        )
    if columns.media is None or columns.answer is None:
        lacks = "names videos" if columns.media is None else "looks like an answer, a score or a caption"
        raise UsageError(
            f"{path}: no column {lacks} (of {', '.join(rows.names[:12])}).",
            remedy="Rename it to `video` or `answer`, or write the recipe by hand (docs/own-table.md).",
        )
    tables = _tables(path, rows, columns, writing)
    names = {split: _relative(table, writing.target.parent) for split, table in tables.items()}
    text = conversations(writing.name, columns, names, rows.remarks)
    return writing.recipe(
        text, "prep prepare {recipe}", [table for table in tables.values() if table != path]
    )


def _tables(path: Path, rows: Rows, columns: Columns, writing: _Writing) -> dict[str, Path]:
    """A table a split: the CSV itself, or tables that are written beside it."""
    if rows.is_table and columns.split is None:
        return {"train": path}
    header = [name for name in rows.names if name]
    if columns.split is None:
        return {"train": writing.table("_train", header, rows.each(), path.parent)}
    values = sorted({str(row.get(columns.split)) for row in rows.each()})
    splits: dict[str, list[str]] = {}
    for value in values:
        key = re.sub(r"[^A-Za-z0-9_-]+", "_", _SPLIT_NAMES.get(value.lower(), value)) or "other"
        splits.setdefault(key, []).append(value)
    return {
        split: writing.table(
            f"_{split}",
            header,
            (row for row in rows.each() if str(row.get(str(columns.split))) in wanted),
            path.parent,
        )
        for split, wanted in splits.items()
    }


def _holds_images(rows: Rows) -> bool:
    """Whether a column holds pictures themselves, as the Hub's parquet does."""
    return any(_is_picture(value) for row in rows.sample()[:3] for value in row.values())


def _is_picture(value: Any) -> bool:
    return isinstance(value, dict) and {"bytes", "path"} == set(value)


def _image_columns(rows: Rows, columns: Columns) -> dict[str, str]:
    sample = rows.sample()[:SAMPLE]
    pictures = [name for name in rows.names if any(_is_picture(row.get(name)) for row in sample[:3])]
    found = {"image": pictures[0]} if pictures else {"image": columns.media} if columns.media else {}
    name = next((name for name in rows.names if name.lower() in ("id", "uuid")), None)
    return {**found, "id": name} if name is not None else found
