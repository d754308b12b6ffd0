"""All checks of a LeRobot v3.0 root in one run: metadata, files, rows, videos (contracts, section 4)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prep.findings import Finding, Report
from prep.layouts.lerobot import INFO, Root
from prep.layouts.lerobot_episodes import EPISODE_RULES, TASK_RULES
from prep.layouts.lerobot_facts import EPISODES, TASKS, THRESHOLDS, Facts, Level, Needed, Reader, gather
from prep.layouts.lerobot_files import FILE_RULES, check_same_bytes
from prep.layouts.lerobot_rows import check_rows, check_schema
from prep.layouts.lerobot_structure import INFO_RULES, STATS, STATS_RULES, read_json, refused
from prep.layouts.lerobot_values import Extremes, check_extremes
from prep.layouts.lerobot_videos import check_alike, check_file
from prep.pool import map_threads
from prep.rules import applied, guarded

if TYPE_CHECKING:
    from prep.media import VideoFacts

__all__ = ["THRESHOLDS", "Level", "Reader", "check_root"]


def check_root(
    path: Path,
    *,
    level: Level = "standard",
    reader: Reader = "lerobot",
    needs_ids: bool | None = None,
    jobs: int = 1,
    sample: int | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Iterator[Finding]:
    """The findings of one root; their paths are relative to it.

    quick     metadata, and which files are there (one look at each folder, the first table's columns)
    standard  quick, and every row of the frame tables, every video opened with one frame decoded
    deep      standard, and every frame decoded

    `reader` is who trains on it: lerobot, or upstream's own parquet reader (LIBERO), which bears more.
    `needs_ids`: whether a filter will look episodes up by `episode_id`; None tells it from the features.
    `jobs` threads decode videos; `sample` takes so many of them, chosen by `seed`.
    `report`, if given, is told what was counted and what was left out.
    """
    told = report or Report(subject=str(path))
    stopped = guarded("version", INFO, lambda: refused(path))
    document, broken = read_json(path, INFO, "LER003")
    if stopped or document is None:
        yield from stopped or ([broken] if broken else [])
        told.skip("episodes, frames and videos", f"{path.name}: no LeRobot v3.0 root that can be read")
        return
    videos = _Videos(level, jobs, sample, seed)
    yield from _check_opened(Root(path, document), level, reader, needs_ids, videos, told)


def _check_opened(
    root: Root, level: Level, reader: Reader, needs_ids: bool | None, videos: _Videos, report: Report
) -> Iterator[Finding]:
    findings: list[Finding] = []
    gathered: list[Facts] = []

    def read() -> list[Finding]:
        gathered.append(gather(root, reader, needs_ids, findings.append))
        return []

    crashed = guarded("gather", INFO, read)
    yield from (*findings, *crashed)
    facts = gathered[0] if gathered else Facts(root, reader)
    report.count("episodes", facts.count)
    yield from applied(INFO_RULES, facts, INFO)
    yield from applied(EPISODE_RULES, facts, EPISODES)
    yield from applied(TASK_RULES, facts, TASKS)
    yield from applied(STATS_RULES, facts, STATS)
    yield from applied(FILE_RULES, facts, "")
    if not facts.usable:
        report.skip("where rows and videos stand", "the episode table cannot be used")
    if level == "quick":
        yield from guarded("check_schema", "data", lambda: check_schema(facts))
        report.skip("rows of the frame tables", "level quick")
        report.skip("videos", "level quick")
        return
    yield from _check_tables(facts, report)
    yield from _check_videos(facts, videos, report)
    if level == "standard":
        report.skip("every video frame, and the pictures at the episodes' borders", "level standard")


def _check_tables(facts: Facts, report: Report) -> Iterator[Finding]:
    seen: set[str] = set()
    extremes = Extremes()
    wanted, there = facts.needed("") or [], facts.readable("")
    if len(there) < len(wanted):
        report.skip(
            f"rows of {len(wanted) - len(there)} frame tables", "the files are not there, or hold no data"
        )
    for item in there:
        yield from guarded("check_rows", item.path, partial(check_rows, facts, item, seen, extremes))
        report.count("frame tables")
    report.count("frames", extremes.rows)
    if len(there) == len(wanted):
        yield from guarded("check_extremes", "data", lambda: check_extremes(facts, extremes))


@dataclass(frozen=True, slots=True)
class _Videos:
    """How far videos are decoded, and which."""

    level: Level
    jobs: int
    sample: int | None
    seed: int

    def chosen(self, items: list[Needed]) -> list[Needed]:
        """The sample, in the order of the items."""
        if self.sample is None or self.sample >= len(items):
            return items
        places = sorted(random.Random(self.seed).sample(range(len(items)), self.sample))
        return [items[place] for place in places]


def _check_videos(facts: Facts, videos: _Videos, report: Report) -> Iterator[Finding]:
    items: list[Needed] = []
    missing = 0
    for camera in facts.root.cameras:
        there = facts.readable(camera)
        missing += len(facts.needed(camera) or ()) - len(there)
        items += there
    if missing:
        report.skip(f"{missing} videos", "the files are not there, or hold no data")
    yield from guarded("check_same_bytes", "videos", lambda: check_same_bytes(facts))
    chosen = videos.chosen(items)
    if len(chosen) < len(items):
        left = f"{len(items) - len(chosen)} of {len(items)} videos"
        report.skip(left, f"sampled {len(chosen)} of {len(items)}, seed {videos.seed}")
    yield from _in_order(facts, chosen, videos)
    report.count("videos", len(chosen))


def _in_order(facts: Facts, items: list[Needed], videos: _Videos) -> Iterator[Finding]:
    """The findings of each video in the order of the items, however many threads work on them."""
    level: Literal["standard", "deep"] = "deep" if videos.level == "deep" else "standard"

    def check(item: Needed) -> tuple[list[VideoFacts], list[Finding]]:
        probes: list[VideoFacts] = []

        def run() -> list[Finding]:
            probe, findings = check_file(facts, item, level)
            probes.extend([probe] if probe is not None else [])
            return findings

        return probes, guarded("check_file", item.path, run)

    waiting: dict[int, tuple[list[VideoFacts], list[Finding]]] = {}
    firsts: dict[str, VideoFacts] = {}
    due = 0
    numbered = list(enumerate(items))
    for (number, _), outcome in map_threads(lambda entry: check(entry[1]), numbered, jobs=videos.jobs):
        waiting[number] = outcome
        while due in waiting:
            probes, findings = waiting.pop(due)
            yield from findings
            for probe in probes:
                yield from check_alike(facts, items[due], probe, firsts.setdefault(items[due].camera, probe))
            due += 1
