"""A first recipe for a folder: robot trees, annotation files, captioned videos, parquet, videos, images."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prep.errors import UsageError
from prep.init_drafts import SPLIT_NAMES, Draft, NewTable, Place
from prep.init_files import of_table
from prep.init_recipes import Text, conversations, images, lerobot, parquet_images, reasoning, sft
from prep.init_tables import ENDINGS, Columns, guess_columns, media_folder
from prep.layouts.conversations import META
from prep.layouts.hub_card import CARD, subsets_in
from prep.layouts.lerobot import version_of
from prep.layouts.reasoning_qa import FORMATS
from prep.layouts.reasoning_qa_checks import format_of
from prep.layouts.sft_jsonl import VIDEO_ENDINGS, find_lines
from prep.manifest import MANIFEST, STATE
from prep.progress import counted
from prep.recognise import other_layout
from prep.records import TABLES, read_rows
from prep.validation_reasoning import find_reasoning_trees
from prep.validation_robot import find_roots

__all__ = ["is_annotation_file", "of_annotations", "of_folder"]

_GROUPS: Final = ("success", "failure")
_CAPTIONS: Final = (".txt", ".json")


def of_folder(path: Path, place: Place) -> Draft:
    """The recipe for what is in a folder; raises UsageError where that is nothing that can be prepared."""
    _refuse_prepared(path)
    roots = find_roots(path)
    if roots:
        return _of_robot(path, roots, place)
    if find_lines(path):
        why = "it holds train/ with an SFT JSONL"
        return Draft(sft(place.name, why, {"tree": place.relative(path)}))
    annotated = find_reasoning_trees(path)
    if annotated:
        return _of_annotated(path, annotated, place)
    media = {kind: list(_files(path, endings)) for kind, endings in ENDINGS.items()}
    tables = _tables_of(path)
    if len(tables) == 1:
        return of_table(tables[0], place)
    if len(tables) > 1:
        raise UsageError(
            f"{path} holds {len(tables)} tables that name media: {_some([table.name for table in tables])}.",
            remedy=f"Give one of them, such as {tables[0]}.",
        )
    if not any(media.values()):
        return _of_parquet(path, place)
    remarks = _others(media)
    if len(media["image"]) > len(media["video"]):
        return _of_media(path, "image", media["image"], place, remarks)
    pair = _caption_folders(path, media["video"])
    if pair is not None:
        captions, videos, told = pair
        source = {"captions": place.relative(captions), "videos": place.relative(videos)}
        return Draft(sft(place.name, told, source, remarks))
    return _of_media(path, "video", media["video"], place, remarks)


def _refuse_prepared(path: Path) -> None:
    if (path / STATE).is_dir() and (path / MANIFEST).is_file():
        raise UsageError(f"{path} is a prepared dataset.", remedy=f"Check it with `prep validate {path}`.")
    if (path / META).is_file():
        raise UsageError(
            f"{path} is a tree of conversations already.", remedy=f"Take it over with `prep adopt {path}`."
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _files(folder: Path, endings: tuple[str, ...]) -> Iterator[str]:
    for below, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(endings) and not name.startswith("."):
                yield (Path(below) / name).relative_to(folder).as_posix()


def _tables_of(path: Path) -> list[Path]:
    """The tables in the folder itself that name media which are there; another file is none of them."""
    found = []
    for file in sorted(path.iterdir()):
        if file.suffix.lower() not in TABLES or not file.is_file() or file.name.startswith("."):
            continue
        try:
            rows = read_rows(file)
        except UsageError:
            continue  # a JSON or CSV may be anything; one that is given by itself is told about
        columns = guess_columns(rows)
        if columns.media is None or (columns.answer is None and columns.turns is None):
            continue
        _, there, looked = (Path(), 1, 1) if columns.pictures else media_folder(rows, columns.media)
        if there or not looked:
            found.append(file)
    return found


def _others(media: Mapping[str, Sequence[str]]) -> list[str]:
    videos, pictures = len(media["video"]), len(media["image"])
    if not videos or not pictures:
        return []
    fewer, more = ("video", "image") if pictures > videos else ("image", "video")
    count = counted(len(media[fewer]), fewer)
    return [f"the folder also holds {count}, which a recipe of {more}s leaves out: give them a folder"]


def _of_robot(path: Path, roots: Sequence[str], place: Place) -> Draft:
    old = next((root for root in roots if version_of(path / root) != "v3.0"), None)
    if old is not None:
        raise UsageError(
            f"{path / old} is a LeRobot tree of version {version_of(path / old)}.",
            remedy="Convert it to v3.0 first: `prep validate DIR` names the command.",
        )
    info = json.loads((path / roots[0] / "meta/info.json").read_text(encoding="utf-8"))
    fps = float(info.get("fps") or 1)
    tops = sorted({root.split("/")[0] for root in roots})
    if list(roots) == [""]:
        return Draft(lerobot(place.name, {place.name: place.relative(path)}, (), fps))
    if set(tops) <= set(_GROUPS):
        groups = [group for group in _GROUPS if group in tops]
        return Draft(lerobot(place.name, {place.name: place.relative(path)}, groups, fps))
    if any(root.split("/")[-2:-1] and root.split("/")[-2] in _GROUPS for root in roots):
        raise UsageError(
            f"{path} holds {len(roots)} LeRobot trees ({_some(roots)}).",
            remedy=f"Give one: {path / tops[0]}.",
        )
    names = {re.sub(r"[^A-Za-z0-9_-]+", "_", root).strip("_-"): root for root in roots}
    trees = {name: place.relative(path / root) for name, root in names.items()}
    return Draft(lerobot(place.name, trees, (), fps))


def is_annotation_file(path: Path) -> bool:
    """Whether a file holds questions about videos in the form of video reasoning."""
    return path.suffix.lower() == ".json" and format_of(path) in (*FORMATS, "")


def _of_annotated(path: Path, annotated: Sequence[str], place: Place) -> Draft:
    folders = [path / below for below in annotated]
    files = [file for folder in folders for file in sorted(folder.glob("*.json")) if is_annotation_file(file)]
    return of_annotations(files, place)


def of_annotations(files: Sequence[Path], place: Place) -> Draft:
    """The recipe for annotation files, split by their names."""
    splits: dict[str, list[str]] = {}
    for file in files:
        words = re.split(r"[^a-z]+", file.stem.lower())
        split = "val" if any(SPLIT_NAMES.get(word, "train") != "train" for word in words) else "train"
        splits.setdefault(split, []).append(place.relative(file))
    return Draft(reasoning(place.name, splits))


def _caption_folders(path: Path, videos: Sequence[str]) -> tuple[Path, Path, str] | None:
    """The folders of captions and of videos that fit for more than half of the videos, and why."""
    placed = Counter(str(Path(video).parent) for video in videos if video.endswith(VIDEO_ENDINGS))
    if not placed:
        return None
    inside = Path(placed.most_common(1)[0][0])
    stems = {Path(video).stem for video in videos if Path(video).parent == inside}
    below = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    for folder in dict.fromkeys((path / inside, path, *below)):
        fitting = sum(_is_captioned(folder, stem) for stem in stems)
        if fitting * 2 > len(videos):
            return folder, path / inside, f"{fitting} of {len(videos)} videos have a text of their name"
    return None


def _is_captioned(folder: Path, stem: str) -> bool:
    return any(
        (folder / f"{stem}{ending}").is_file() or (folder / stem / f"caption{ending}").is_file()
        for ending in _CAPTIONS
    )


def _of_parquet(path: Path, place: Place) -> Draft:
    """A downloaded dataset of parquet with the images in it; UsageError for a folder with nothing of use."""
    names = list(_files(path, (".parquet",)))
    columns = guess_columns(read_rows(path / names[0])) if names else Columns()
    if not columns.pictures or columns.turns is None:
        raise _nothing(path)
    card = path / CARD if (path / CARD).is_file() else None
    subsets = subsets_in(card, names).values()
    splits = list(dict.fromkeys(split for subset in subsets for split in subset.files))
    return Draft(parquet_images(place.name, place.relative(path), splits, columns))


def _nothing(path: Path) -> UsageError:
    other = other_layout(path)
    if other.code == "LAY001":
        return UsageError(f"{path} holds {other.message}.", remedy=other.remedy)
    return UsageError(
        f"{path} holds no videos, no images, no table that names some, and no LeRobot tree.",
        remedy="Give the folder that the media are in, or the table that names them.",
    )


@dataclass(slots=True)
class _Labels:
    """What folders and names tell of media that no table tells of."""

    path: Path
    files: Sequence[str]

    def split(self, file: str) -> str:
        """The split by the outermost folder."""
        parts = file.split("/")
        return SPLIT_NAMES.get(parts[0].lower(), "train") if len(parts) > 1 else "train"

    def are_folders(self) -> bool:
        """Whether each file is in a folder, and these are more than splits."""
        inner = {file.split("/")[-2].lower() for file in self.files if "/" in file}
        return all("/" in file for file in self.files) and len(inner - SPLIT_NAMES.keys()) > 1

    def answer(self, file: str) -> tuple[str, str]:
        """The answer, and where it is from: a text beside the file, its folder, or its own name in words."""
        text = (self.path / file).with_suffix(".txt")
        if text.is_file():
            told = text.read_text(encoding="utf-8-sig", errors="replace").strip()
            if told:
                return told, "the texts beside them"
        if self.are_folders():
            return file.split("/")[-2], "the names of their folders"
        words = " ".join(re.split(r"[\s_]+", Path(file).stem)).strip()
        return words or Path(file).stem, "their own names in words"


def _of_media(path: Path, kind: str, files: Sequence[str], place: Place, remarks: Sequence[str]) -> Draft:
    """Media without a table: one is written, to be looked through and corrected."""
    labels = _Labels(path, files)
    splits: dict[str, list[dict[str, str]]] = {}
    origins: Counter[str] = Counter()
    for file in files:
        answer, origin = labels.answer(file)
        origins[origin] += 1
        splits.setdefault(labels.split(file), []).append({"media": file, "answer": answer})
    columns = _media_columns(kind, files, origins, path)
    if len(splits) > 1:
        columns.reasons["split"] = "the folders' names"
    if "their own names in words" in origins:
        told = (
            f"nothing tells what the {kind}s show: the answers are their names; write your own into the CSV"
        )
        remarks = [*remarks, told]
    tables = [_media_table(place, split, rows) for split, rows in splits.items()]
    where = {"media_root": place.relative(path)}
    told_splits = {split: {"table": table.name, **where} for split, table in zip(splits, tables, strict=True)}
    text: Text = (images if kind == "image" else conversations)(place.name, columns, told_splits, remarks)
    return Draft(text, tables)


def _media_table(place: Place, split: str, rows: Sequence[Mapping[str, Any]]) -> NewTable:
    return NewTable(f"{place.name}_{split}.csv", ("media", "answer"), lambda: iter(rows))


def _media_columns(kind: str, files: Sequence[str], origins: Counter[str], path: Path) -> Columns:
    ending = Counter(Path(file).suffix.lower() for file in files).most_common(1)[0][0]
    columns = Columns("media", kind, ending, answer="answer")
    columns.reasons["media"] = f"{counted(len(files), kind)} were found in {path.name}"
    columns.reasons["media_root"] = "the folder that was given"
    columns.reasons["answer"] = f"the {kind}s' answers are {' or '.join(sorted(origins))}"
    return columns
