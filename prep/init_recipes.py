"""The text of a first recipe of each kind, every guess with its reason as a comment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep.init_tables import Columns

__all__ = ["Text", "conversations", "lerobot", "reasoning", "sft", "snapshot"]


@dataclass(slots=True)
class Text:
    """A recipe as lines of TOML, and remarks for the person who asked for it."""

    kind: str
    lines: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def comment(self, text: str) -> None:
        """A line for people."""
        self.lines.append(f"# {' '.join(text.split())}")

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
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's text is TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _begun(name: str, kind: str, why: str) -> Text:
    text = Text(kind)
    text.comment("A first recipe, written by `prep init`: look at each guess, correct it, then run it.")
    text.lines += [f"name = {_toml(name)}", ""]
    text.comment(f"Guessed: {why}.")
    text.lines.append(f"kind = {_toml(kind)}")
    return text


def conversations(
    name: str, columns: Columns, tables: Mapping[str, str], remarks: Sequence[str] = ()
) -> Text:
    """Videos with questions and answers, from one table a split."""
    reasons = columns.reasons
    text = _begun(name, "conversations", "a table of videos with texts is prepared as conversations")
    for remark in remarks:
        text.comment(remark)
    why = f"Guessed: {reasons.get('split', 'nothing tells of splits, so that all rows are train')}."
    for split, table in tables.items():
        text.table(f"splits.{split}", why, directory=f"{name}_{split}", table=table)
        why = ""
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
        why = reasons.get("prompt", "the table has this column to be filled in")
        text.table("prompt", f"Guessed: {why}.", column=columns.prompt)
    else:
        why = "No column looks like a question: the same words are asked of every video. Write your own."
        text.table("prompt", why, text="Describe what happens in the video.")
    _answer(text, columns)
    text.remarks += remarks
    return text


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


def lerobot(name: str, path: Path, roots: Sequence[str]) -> Text:
    """A LeRobot v3.0 tree; the tree itself is named on the command line."""
    info = json.loads((path / roots[0] / "meta/info.json").read_text(encoding="utf-8"))
    single = list(roots) == [""]
    text = _begun(name, "lerobot", "meta/info.json states the version v3.0")
    text.table(f"datasets.{name}", directory=name)
    given = {} if single else {"groups": sorted({root.split("/")[0] for root in roots})}
    why = "one tree" if single else f"{len(roots)} trees in groups"
    text.table("roots", f"Guessed: {why}.", form="single" if single else "groups", **given)
    seconds = f"{16 / float(info['fps']):.3g} s at {info['fps']} frames a second"
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


def reasoning(name: str, splits: Mapping[str, Sequence[str]]) -> Text:
    """Annotation files of questions about videos."""
    text = _begun(name, "reasoning_qa", "the files hold items of question and answer about videos")
    why = "Guessed from the files' names: val, test and eval in a name make it val."
    for split in sorted(splits):
        text.table(f"splits.{split}", why, directory=f"{name}/{split}")
        why = ""
    for split, files in sorted(splits.items()):
        text.table(f"inputs.{split}", annotations=list(files))
    for split in sorted(splits):
        mode = "hybrid" if split == "train" else "answer"
        text.table(f"sampling.{split}", "Upstream's default for this split.", response_mode=mode)
    return text


def sft(name: str, why: str) -> Text:
    """Videos with captions, for the generator."""
    text = _begun(name, "sft_jsonl", why)
    text.table(f"datasets.{name}", directory=name)
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


def snapshot(name: str, columns: Mapping[str, str], why: str) -> Text:
    """Images with conversations."""
    text = _begun(name, "arrow_snapshot", f"images ({why})")
    text.table("splits.train", "Name the Hub's dataset with `repo`.", directory=name)
    chosen = {"id": "id", "image": "image", "conversations": "conversations", **columns}
    text.table("columns", "Guessed from the columns' names and what they hold.", **chosen)
    text.table("keep", "An image, and so many turns.", minimum_turns=2)
    return text
