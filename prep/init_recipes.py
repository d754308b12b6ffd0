"""The text of a first recipe of each kind, every guess with its reason as a comment."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prep.init_tables import Columns

__all__ = ["Text", "conversations", "images", "lerobot", "parquet_images", "reasoning", "sft"]

_WIDTH: Final = 100

Splits = Mapping[str, Mapping[str, str]]
"""For each split where its content is, as the recipe says it."""


@dataclass(slots=True)
class Text:
    """A recipe as lines of TOML, and remarks for the person who asked for it."""

    kind: str
    lines: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def comment(self, text: str) -> None:
        """Lines for people."""
        self.lines += [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDTH)]

    def table(self, name: str, why: str = "", **values: Any) -> None:
        """A table with its values; `why` stands above it."""
        self.lines.append("")
        if why:
            self.comment(why)
        self.lines.append(f"[{name}]")
        self.lines += [f"{key} = {_toml(value)}" for key, value in values.items()]

    def toml(self) -> str:
        """The whole file."""
        return "\n".join(self.lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's text is TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _begun(name: str, kind: str, why: str, remarks: Sequence[str] = ()) -> Text:
    text = Text(kind, remarks=list(remarks))
    text.comment("A first recipe, written by `prep init`: look at each guess, correct it, then run it.")
    for remark in remarks:
        text.comment(f"Note: {remark}.")
    text.lines += [f"name = {_toml(name)}", ""]
    text.comment(f"Guessed: {why}.")
    text.lines.append(f"kind = {_toml(kind)}")
    return text


def conversations(
    name: str, columns: Columns, splits: Splits, remarks: Sequence[str] = (), *, has_turns: bool = False
) -> Text:
    """Videos with questions and answers, from one table a split."""
    reasons = columns.reasons
    why = "a table of videos with texts is prepared as conversations"
    text = _begun(name, "conversations", why, remarks)
    _splits(text, splits, columns, lambda split: f"{name}_{split}")
    text.table(
        "record",
        "The files' names; {row} counts data rows from 1.",
        id="{row:06d}",
        media=f"media/{{row:06d}}{columns.ending}",
        conversation="text/{row:06d}.json",
        media_type="video",
        media_key="video_0",
    )
    text.table("columns", f"Guessed: {reasons['media']}.", media=columns.media)
    if columns.prompt is not None:
        text.table("prompt", f"Guessed: {reasons['prompt']}.", column=columns.prompt)
    else:
        why = "No column looks like a question: the same words are asked of every video. Write your own."
        text.table("prompt", why, text="Describe what happens in the video.")
    _answer(text, columns)
    if has_turns:
        text.table("turns", "The turns behind the first question and answer.", column="turns")
    return text


def _splits(text: Text, splits: Splits, columns: Columns, directory: Any) -> None:
    why = f"Guessed: {columns.reasons.get('split', 'nothing tells of splits, so that all rows are train')}."
    if any("media_root" in place for place in splits.values()):
        why += f" media_root: {columns.reasons['media_root']}."
    for split, place in splits.items():
        text.table(f"splits.{split}", why, directory=directory(split), **place)
        why = ""


def _answer(text: Text, columns: Columns) -> None:
    key = f"answers.{_key(str(columns.answer))}"
    if columns.numbers is not None:
        low, high = columns.numbers
        why = (
            f"Guessed: {columns.reasons['answer']}, and {columns.reasons['numbers']}; the scale may be wider."
        )
        text.table(key, why, kind="integer", minimum=low, maximum=high)
        return
    text.table(key, f"Guessed: {columns.reasons['answer']}; it is taken as text.", kind="text")


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _toml(name)


def images(name: str, columns: Columns, splits: Splits, remarks: Sequence[str] = ()) -> Text:
    """Images with conversations, from one table a split."""
    text = _begun(name, "arrow_snapshot", "images with texts become a snapshot of rows", remarks)
    _splits(text, splits, columns, lambda _split: name)
    named = {"id": columns.id} if columns.id is not None else {}
    turns = columns.turns or "conversations"
    text.table(
        "columns", f"Guessed: {columns.reasons['media']}.", **named, image=columns.media, conversations=turns
    )
    if columns.turns is None:
        why = f"Guessed: {columns.reasons['answer']}."
        if columns.prompt is None:
            why += " No column looks like a question: the same is asked of every image. Write your own."
        asked = {"question": columns.prompt} if columns.prompt else {"text": "Describe the image."}
        text.table("turns", why, **asked, answer=columns.answer)
    text.table("keep", "As upstream: an image, and a question and its answer at least.", minimum_turns=2)
    return text


def parquet_images(name: str, table: str, splits: Sequence[str], columns: Columns) -> Text:
    """A folder of parquet files with the images in them, as a dataset of the Hub has it."""
    columns.reasons["split"] = "the files' names, or the card, tell of the splits"
    return images(name, columns, {split: {"table": table} for split in splits})


def lerobot(name: str, trees: Mapping[str, str], groups: Sequence[str], fps: float) -> Text:
    """LeRobot v3.0 trees, by name with their places; `groups` are the roots of the one tree that has any."""
    text = _begun(name, "lerobot", "meta/info.json states the version v3.0")
    for each, tree in trees.items():
        text.table(f"datasets.{each}", directory=each, tree=tree)
    form = {"form": "groups", "groups": list(groups)} if groups else {"form": "single"}
    why = f"the tree has the groups {', '.join(groups)}" if groups else f"{len(trees)} tree(s) of one root"
    text.table("roots", f"Guessed: {why}.", **form)
    seconds = f"{16 / fps:.3g} s at {fps:g} frames a second"
    text.table(
        "windows",
        f"16 actions are {seconds}: choose your policy's chunk.",
        chunk_length=16,
        splits=["full"],
        order="ascending",
        seed=0,
        validation_share=0.0,
    )
    return text


def reasoning(name: str, splits: Mapping[str, Sequence[str]], remarks: Sequence[str] = ()) -> Text:
    """Annotation files of questions about videos."""
    why = "the files hold items of question and answer about videos"
    text = _begun(name, "reasoning_qa", why, remarks)
    why = "Guessed from the files' names: val, test and eval in a name make it val."
    for split in sorted(splits):
        text.table(f"splits.{split}", why, directory=f"{name}/{split}")
        why = ""
    why = "Videos are looked for where a file says, else beside it; media_roots names another folder."
    for split, files in sorted(splits.items()):
        text.table(f"inputs.{split}", why, annotations=list(files))
        why = ""
    for split in sorted(splits):
        mode = "hybrid" if split == "train" else "answer"
        text.table(f"sampling.{split}", "Upstream's default for this split.", response_mode=mode)
    return text


def sft(name: str, why: str, source: Mapping[str, str], remarks: Sequence[str] = ()) -> Text:
    """Videos with captions, for the generator."""
    text = _begun(name, "sft_jsonl", why, remarks)
    text.table(f"datasets.{name}", directory=name)
    text.table("source", "Relative to this file.", **source)
    text.table(
        "loader",
        "As in upstream's shipped recipes.",
        num_video_frames=-1,
        temporal_interval_mode="max_30fps",
        frame_selection_mode="first",
        min_short_edge=0,
        resolution="256",
        max_caption_tokens=2048,
    )
    return text
