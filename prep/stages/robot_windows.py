"""Window indices of a robot dataset: built from its roots, with or without a filter, and saved beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prep.errors import PrepError, UsageError
from prep.files import sha256_of, write_whole
from prep.findings import Finding, found
from prep.keep_ranges import KeepRanges, RangeCensus, load_keep_ranges
from prep.layouts.lerobot import Root, frame_episodes, numbered_files
from prep.permutation import sampled_fraction, torch_permutation
from prep.recipe import Recipe
from prep.window_lists import WINDOWS_FOLDER, filter_path
from prep.windows import Episodes, WindowIndex, join_spans, root_spans

__all__ = [
    "Filter",
    "Group",
    "SplitIndex",
    "build",
    "filter_for",
    "load_groups",
]

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Group:
    """One root as the index sees it: its name in the dataset, its episodes, its blank instructions."""

    name: str
    root: Root
    episodes: Episodes
    blank_instructions: int


def load_groups(roots: Sequence[tuple[str, Root]], rules: Mapping[str, Any]) -> list[Group]:
    """Read the episodes of each root: from its table, or from the rows of all frame tables."""
    groups = []
    for name, root in roots:
        rows = rules.get("episodes_from") == "rows"
        episodes = (frame_episodes(root) if rows else None) or root.episodes()
        drawn = rules.get("instructions") == "drawn"
        groups.append(Group(name, root, episodes, _blank_instructions(root, drawn=drawn)))
    return groups


def _blank_instructions(root: Root, *, drawn: bool) -> int:
    """How many task texts may give a blank instruction: one blank part where a part is `drawn`, else all."""
    blank = any if drawn else all
    texts = (text for text in root.tasks().texts if text is not None)
    return sum(blank(not part.strip() for part in text.split("|")) for text in texts)


@dataclass(slots=True)
class Filter:
    """A keep-ranges filter met with the dataset's episodes: what matched, what is odd."""

    path: Path
    ranges: KeepRanges
    matched: int = 0
    unmatched_episodes: list[str] = field(default_factory=list)
    unmatched_episode_count: int = 0
    unmatched_keys: list[str] = field(default_factory=list)
    unmatched_key_count: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        """The digest of the filter in upstream's key form, the same for every spelling of the keys."""
        digest = hashlib.sha256()
        for piece in self.ranges.rekeyed():
            digest.update(piece)
        return digest.hexdigest()

    def write(self, folder: Path) -> Path:
        """Write the filter in upstream's key form below `folder`; the name holds its digest."""
        path = folder / filter_path(self.sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self.ranges.rekeyed())
        return path


def filter_for(
    path: Path,
    groups: Sequence[Group],
    *,
    prefix: str | None,
    allow_overlap: bool,
    others: Sequence[Group] = (),
) -> Filter:
    """Read a filter and match it with the episodes of all groups.

    `others` are groups of the tree that the recipe does not read: keys of their episodes are no strays.
    Raises PrepError in one sentence for a filter that would select the wrong windows.
    """
    example = next(
        (group.episodes.ids[0].as_py() for group in groups if group.episodes.ids is not None), None
    )
    if example is None:
        raise PrepError(
            "The episode table has no column episode_id, so a filter can match nothing.",
            remedy="Index without --keep-ranges, or use a tree whose episodes have ids.",
        )
    result = Filter(path, load_keep_ranges(path, example_id=example, prefix=prefix))
    hit = np.zeros(len(result.ranges), dtype=bool)
    for group in groups:
        entries = result.ranges.match(group.episodes)
        hit[entries[entries >= 0]] = True
        _note_unmatched(result, group, entries)
        _note_oddities(result, group, allow_overlap=allow_overlap)
    for group in others:
        if group.episodes.ids is not None:
            entries = result.ranges.match(group.episodes)
            hit[entries[entries >= 0]] = True
    _note_unmatched_keys(result, hit)
    if not result.matched:
        key, episode = result.ranges.ids[0].as_py(), example
        raise PrepError(
            f"{path}: no key matches an episode: the filter names {key!r}, the dataset {episode!r}.",
            remedy="Give the filter of this dataset, or the keys' prefix with --source-prefix.",
        )
    return result


def _note_unmatched(result: Filter, group: Group, entries: Any) -> None:
    lost = np.flatnonzero(entries < 0)
    result.matched += len(entries) - len(lost)
    result.unmatched_episode_count += len(lost)
    if group.episodes.ids is not None:
        wanted = _EXAMPLES - len(result.unmatched_episodes)
        result.unmatched_episodes += [group.episodes.ids[int(at)].as_py() for at in lost[:wanted]]


def _note_unmatched_keys(result: Filter, hit: Any) -> None:
    lost = np.flatnonzero(~hit)
    result.unmatched_key_count = len(lost)
    result.unmatched_keys = [result.ranges.ids[int(at)].as_py() for at in lost[:_EXAMPLES]]


def _note_oddities(result: Filter, group: Group, *, allow_overlap: bool) -> None:
    census = RangeCensus.of(result.ranges, group.episodes)
    if census.overlapping and not allow_overlap:
        raise PrepError(
            f"{result.path}: ranges of {census.overlap} overlap ({census.overlapping} such episodes): "
            "their windows would count twice.",
            remedy="Correct the filter, or accept it with --ignore KEP001.",
        )
    if census.overlapping:
        message = f"{census.overlapping} episodes of {group.name} have ranges that overlap; accepted"
        result.findings.append(found("KEP001", result.path.name, message))
    counts = {
        "before the episode's start": census.negative_starts,
        "past the episode's end": census.past_the_end,
        "empty": census.empty,
        "out of order": census.unsorted,
    }
    for what, count in counts.items():
        if count:
            verb = "range is" if count == 1 else "ranges are"
            message = f"{group.name}: {count:,} {verb} {what}; kept as upstream keeps them"
            result.findings.append(found("KEP002", result.path.name, message))


@dataclass(frozen=True, slots=True)
class SplitIndex:
    """The index of one split, its count without the filter, and the file that it goes to."""

    split: str
    index: WindowIndex
    unfiltered: int
    path: Path

    def facts(self) -> dict[str, int]:
        """Counts for people and machines."""
        spans = self.index.spans
        pairs = (spans["dataset_index"] << np.int64(40)) | spans["episode_index"]
        _, counts = np.unique(pairs, return_counts=True)
        return {
            "windows": len(self.index),
            "windows_without_filter": self.unfiltered,
            "spans": len(spans["length"]),
            "episodes": len(counts),
            "episodes_with_several_spans": int((counts > 1).sum()),
        }


def build(
    recipe: Recipe,
    groups: Sequence[Group],
    chunk_length: int,
    root: Path,
    keep: Filter | None,
) -> Iterator[SplitIndex]:
    """Build the index of each split of a recipe; nothing is written."""
    rules = recipe.document["windows"]
    multiple = rules.get("multiple", 1)
    if chunk_length % multiple:
        raise UsageError(
            f"The chunk length {chunk_length} is not a multiple of {multiple}, as upstream demands.",
            remedy=f"Give {max(chunk_length // multiple, 1) * multiple} or another multiple.",
        )
    inputs = list(_inputs(groups, rows=rules.get("episodes_from") == "rows"))
    for split in rules["splits"]:
        orders = [_order(group.episodes, rules, split) for group in groups]
        plain = [
            root_spans(group.episodes, order, chunk_length, dataset_index=place)
            for place, (group, order) in enumerate(zip(groups, orders, strict=True))
        ]
        spans = plain
        if keep is not None:
            spans = [
                root_spans(group.episodes, order, chunk_length, dataset_index=place, ranges=keep.ranges)
                for place, (group, order) in enumerate(zip(groups, orders, strict=True))
            ]
        parameters = {
            "recipe": recipe.name,
            "recipe_document": dict(recipe.document),
            "split": split,
            "chunk_length": chunk_length,
            "roots": [group.name for group in groups],
            "filter": keep.sha256 if keep is not None else None,
            "inputs": inputs,
        }
        name = f"{recipe.name}-{split}-c{chunk_length}{'-filtered' if keep is not None else ''}.arrow"
        unfiltered = int(sum(int(part["length"].sum()) for part in plain))
        yield SplitIndex(
            split, WindowIndex(join_spans(spans), parameters), unfiltered, root / WINDOWS_FOLDER / name
        )


def _order(episodes: Episodes, rules: Mapping[str, Any], split: str) -> Any:
    """Positions of a split's episodes, in the recipe's order."""
    count, share, seed = len(episodes.numbers), rules["validation_share"], rules["seed"]
    if rules["order"] == "permuted":
        order = torch_permutation(count, seed)
        held_out = round(count * share)
        return {"train": order[held_out:], "val": order[:held_out], "full": order}[split]
    ascending = np.argsort(episodes.numbers, kind="stable").astype(np.int64)
    if split == "full":
        return ascending
    chosen = sampled_fraction(episodes.numbers[ascending].tolist(), share, seed)
    is_val = np.isin(episodes.numbers[ascending], np.array(sorted(chosen), dtype=np.int64))
    return ascending[is_val if split == "val" else ~is_val]


def _inputs(groups: Sequence[Group], *, rows: bool) -> Iterator[dict[str, Any]]:
    """The files that an index is built from, by their names in the dataset; frame tables if by `rows`."""
    for group in groups:
        tables = numbered_files(group.root.path, "data", ".parquet") if rows else ()
        for relative in ("meta/info.json", "meta/tasks.parquet", *group.root.episode_files, *tables):
            path = group.root.path / relative
            name = f"{group.name}/{relative}" if group.name else relative
            yield {"path": name, "size": path.stat().st_size, "sha256": sha256_of(path)}
