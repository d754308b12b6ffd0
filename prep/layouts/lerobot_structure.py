"""Checks of `meta/info.json` and `meta/stats.json`: version, templates, features, totals, statistics.

Every rule takes the facts and yields findings; nothing here reads frames or videos.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prep.findings import Finding, found
from prep.layouts.lerobot import INFO, version_of
from prep.layouts.lerobot_facts import TASKS, Facts, positive

__all__ = ["INFO_RULES", "STATS", "STATS_RULES", "read_json", "refused", "statistics"]

STATS: Final = "meta/stats.json"
_CONVERT: Final = "python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=OWNER/NAME"
_WRITE: Final = (
    "No converter reads it: open it with datasets.load_from_disk and write it with LeRobotDataset.create, "
    "add_frame and save_episode of lerobot, or take the dataset's v3.0 revision from the Hub."
)
_V2_FILES: Final = ("meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl")
_STANDARD: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_KEYS: Final[Mapping[str, type]] = {
    "features": dict,
    "data_path": str,
    "total_episodes": int,
    "total_frames": int,
}
_TEMPLATE_NAMES: Final = frozenset(("chunk_index", "file_index", "video_key"))
_MEASURES: Final = frozenset(("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99"))
_USED: Final = frozenset(("min", "max", "mean", "std"))
_SPAN: Final = re.compile(r"\s*([0-9]{1,18})\s*:\s*([0-9]{1,18})\s*")
_RATE: Final = 1e-3
"""Share by which two statements of one frame rate may differ: 29.97 is not 30."""
_NO_STATISTICS: Final = ("string", "binary")


def refused(root: Path) -> list[Finding]:
    """Why a directory is not taken for a v3.0 root: another version, or an info.json that cannot be read."""
    version = version_of(root)
    if version == "v3.0":
        return []
    if (root / INFO).is_file() and (version is None or not version.startswith("v")):
        _, finding = read_json(root, INFO, "LER003")
        stated = f"it states the version {version!r}" if version else "it states no codebase_version"
        return [finding or found("LER003", INFO, f"{stated}; expected 'v3.0'")]
    if version is None and (saved := _saved_dataset(root)):
        return [found("LAY001", "", saved, remedy=_WRITE)]
    if version is None:
        return [found("LAY002", INFO, f"there is no {INFO}: no LeRobot tree")]
    if version.startswith("v3"):
        message = f"LeRobot format {version}; this version reads v3.0"
        return [found("LER001", INFO, message, remedy="Use a newer cosmos-prep, or a v3.0 copy.")]
    present = [name for name in _V2_FILES if (root / name).is_file()]
    beside = f" with {', '.join(present)}" if present else ""
    message = f"LeRobot format {version}{beside}; training reads v3.0"
    return [found("LER001", INFO, message, remedy=f"Convert it: `{_CONVERT}`.")]


def _saved_dataset(root: Path) -> str:
    """What a folder is that `datasets` saved, as the LeRobot format before v2 was; empty for another."""
    for folder in (root, root / "train"):
        if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
            return "a Dataset saved by `datasets` (state.json); training reads a LeRobot v3.0 tree"
    if (root / "dataset_dict.json").is_file():
        return "a DatasetDict saved by `datasets` (dataset_dict.json); training reads a LeRobot v3.0 tree"
    return ""


def read_json(root: Path, relative: str, code: str) -> tuple[Any, Finding | None]:
    """A JSON object; None and a finding where the file holds something else."""
    try:
        document = json.loads((root / relative).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return None, found(code, relative, f"cannot be read as JSON: {reason}")
    if isinstance(document, dict):
        return document, None
    return None, found(code, relative, f"holds a {type(document).__name__}; expected an object")


# --- info.json ---------------------------------------------------------------------------


def check_versions(facts: Facts) -> Iterator[Finding]:
    """LER002: files of format 2 beside, or in place of, those of format 3."""
    old = [name for name in _V2_FILES if (facts.root.path / name).is_file()]
    if old:
        lacks = not facts.root.episode_files
        what = "in place of the episode table" if lacks else "beside the tables of v3.0"
        message = (
            f"{INFO} says v3.0, and {', '.join(old)} of v2 {'stand' if len(old) > 1 else 'stands'} {what}"
        )
        yield found("LER002", old[0], message, severity="error" if lacks else "warning")


def check_keys(facts: Facts) -> Iterator[Finding]:
    """LER003: the keys that readers take without asking."""
    for key, kind in _KEYS.items():
        value = facts.root.info.get(key)
        if key not in facts.root.info:
            yield found("LER003", INFO, f"there is no {key}", place=f"/{key}")
        elif not isinstance(value, kind) or isinstance(value, bool):
            message = f"{key} is {_shown(value)}; expected {kind.__name__}"
            yield found("LER003", INFO, message, place=f"/{key}")
    tasks = facts.root.info.get("total_tasks")
    if tasks is not None and (not isinstance(tasks, int) or isinstance(tasks, bool)):
        yield found("LER003", INFO, f"total_tasks is {_shown(tasks)}; expected int", place="/total_tasks")
    if facts.root.cameras and not isinstance(facts.root.info.get("video_path"), str):
        message = f"video_path is {_shown(facts.root.info.get('video_path'))}, and there are video features"
        yield found("LER003", INFO, message, place="/video_path")


def check_templates(facts: Facts) -> Iterator[Finding]:
    """LER004 and FIL011: placeholders that lerobot does not fill in, or that leave files out."""
    needed = {"data_path": {"file_index"}}
    if facts.root.cameras:
        needed["video_path"] = {"file_index"} | ({"video_key"} if len(facts.root.cameras) > 1 else set())
    for key, wanted in needed.items():
        template = facts.root.info.get(key)
        if isinstance(template, str):
            yield from _check_template(facts, key, template, wanted)


def _check_template(facts: Facts, key: str, template: str, wanted: set[str]) -> Iterator[Finding]:
    place = f"/{key}"
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        yield found("LER004", INFO, f"{key} {template!r} is no template: {error}", place=place)
        return
    foreign = sorted(names - _TEMPLATE_NAMES)
    if foreign:
        message = f"{key} names {', '.join(foreign)}; lerobot fills in chunk_index, file_index and video_key"
        yield found("LER004", INFO, message, place=place, severity=facts.strict())
    elif wanted - names:
        message = f"{key} {template!r} has no {', '.join(sorted(wanted - names))}: all files get one name"
        yield found("LER004", INFO, message, place=place)
    if template.startswith("/") or ".." in template.split("/"):
        yield found("FIL011", INFO, f"{key} is {template!r}", place=place)


def check_features(facts: Facts) -> Iterator[Finding]:
    """LER005 to LER008: what each declared feature says of itself."""
    declared = facts.root.info.get("features")
    if not isinstance(declared, dict):
        return  # LER003 says so
    for name, feature in declared.items():
        place = f"/features/{name}"
        if not isinstance(feature, dict):
            yield found("LER005", INFO, f"{name} is {_shown(feature)}; expected an object", place=place)
            continue
        missing = [key for key in ("dtype", "shape") if key not in feature]
        if missing:
            yield found("LER005", INFO, f"{name} has no {' and no '.join(missing)}", place=place)
        elif not isinstance(feature["dtype"], str):
            message = f"{name} has the dtype {_shown(feature['dtype'])}; expected its name"
            yield found("LER005", INFO, message, place=f"{place}/dtype")
        elif not positive(feature["shape"]):
            message = f"{name} has the shape {_shown(feature['shape'])}; expected sizes of at least 1"
            yield found("LER006", INFO, message, place=f"{place}/shape", severity=facts.strict())
        elif message := _names_misfit(name, feature):
            yield found("LER007", INFO, message, place=f"{place}/names")
    for name in _STANDARD:
        if name not in declared:
            message = f"{name} is not among the {len(declared)} features"
            yield found("LER008", INFO, message, place="/features", severity=facts.strict())


def _names_misfit(name: str, feature: Mapping[str, Any]) -> str:
    shape, names = feature["shape"], feature.get("names")
    if "names" not in feature:
        return f"{name} has no names; lerobot reads the key of every feature"
    if names is None:
        return ""
    count = len(list(_flat(names)))
    # The names are those of the entries of a vector, or those of the axes.
    allowed = {len(shape), shape[0]} if len(shape) == 1 else {len(shape)}
    return "" if count in allowed else f"{name} has {count} names for the shape {shape}"


def _flat(names: Any) -> Iterator[Any]:
    if isinstance(names, dict):
        for part in names.values():
            yield from _flat(part)
    elif isinstance(names, list):
        for part in names:
            yield from _flat(part)
    else:
        yield names


def check_rate(facts: Facts) -> Iterator[Finding]:
    """LER012: the frame rate, also where features state one."""
    if facts.fps is None:
        message = f"fps is {_shown(facts.root.info.get('fps'))}; expected frames a second above 0"
        yield found("LER012", INFO, message, place="/fps")
        return
    for name, feature in facts.root.features.items():
        details = feature.get("info") or feature.get("video_info")
        stated = {"fps": feature.get("fps")}
        if isinstance(details, dict):
            stated["video.fps"] = details.get("video.fps")
        for key, value in stated.items():
            if value is not None and not (_is_number(value) and abs(value / facts.fps - 1) <= _RATE):
                message = f"{name} states {key} {_shown(value)}; the dataset states {facts.fps:g}"
                yield found("LER012", INFO, message, place=f"/features/{name}")


def check_totals(facts: Facts) -> Iterator[Finding]:
    """LER013: stated totals against the tables."""
    counted: dict[str, int] = {}
    if facts.rows_per_file and len(facts.rows_per_file) == len(facts.root.episode_files):
        counted["total_episodes"] = sum(facts.rows_per_file.values())
    if "length" in facts.numbers:
        counted["total_frames"] = _frames(facts, facts.root.info.get("total_frames"))
    if facts.tasks is not None:
        counted["total_tasks"] = len(facts.tasks.texts)
    for key, number in counted.items():
        stated = facts.root.info.get(key)
        if isinstance(stated, int) and stated != number:
            where = TASKS if key == "total_tasks" else "the episode table"
            yield found("LER013", INFO, f"{key} is {stated}; {where} has {number}", place=f"/{key}")


def _frames(facts: Facts, stated: object) -> int:
    """The sum of the episodes' lengths, or of their rows where that is what is stated (LER026 tells)."""
    by_length = int(facts.numbers["length"].sum())
    if not facts.usable:
        return by_length
    by_rows = int((facts.numbers["dataset_to_index"] - facts.numbers["dataset_from_index"]).sum())
    return by_rows if by_rows == stated else by_length


def check_splits(facts: Facts) -> Iterator[Finding]:
    """LER014: ranges of episodes, each inside the dataset and apart from the others."""
    splits = facts.root.info.get("splits")
    if splits is None:
        return
    if not isinstance(splits, dict):
        yield found("LER014", INFO, f"splits is {_shown(splits)}; expected an object", place="/splits")
        return
    total = facts.count or facts.root.info.get("total_episodes")
    before: list[tuple[int, int, str]] = []
    for name, text in splits.items():
        span, place = _span(text), f"/splits/{name}"
        if span is None:
            message = f"{name} is {_shown(text)}; expected 'first:end'"
            yield found("LER014", INFO, message, place=place)
            continue
        if span[0] > span[1] or (isinstance(total, int) and span[1] > total):
            yield found("LER014", INFO, f"{name} is {text!r}; there are {total} episodes", place=place)
        others = [other for first, end, other in before if first < span[1] and span[0] < end]
        if others:
            yield found("LER014", INFO, f"{name} {text!r} overlaps {', '.join(others)}", place=place)
        before.append((*span, name))


def _span(text: Any) -> tuple[int, int] | None:
    parts = _SPAN.fullmatch(text) if isinstance(text, str) else None
    return (int(parts[1]), int(parts[2])) if parts else None


# --- stats.json --------------------------------------------------------------------------


def statistics(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """The statistics by feature, as far as they are objects; empty where there are none."""
    document, _ = read_json(facts.root.path, STATS, "LER015")
    stated = document if isinstance(document, dict) else {}
    return {name: value for name, value in stated.items() if isinstance(value, dict)}


def check_statistics(facts: Facts) -> Iterator[Finding]:
    """LER015 to LER017: statistics of every feature, of its shape, all of them numbers."""
    if not (facts.root.path / STATS).is_file():
        yield found(
            "LER015", STATS, f"there is no {STATS}: {len(facts.root.features)} features have no statistics"
        )
        return
    _, finding = read_json(facts.root.path, STATS, "LER015")
    if finding is not None:
        yield finding
        return
    known = statistics(facts)
    lacking = [
        name
        for name, feature in facts.root.features.items()
        if not known.get(name, {}).keys() >= _USED and feature.get("dtype") not in _NO_STATISTICS
    ]
    if lacking:
        message = f"{len(lacking)} of {len(facts.root.features)} features lack {', '.join(sorted(_USED))},"
        message += f" or some of these; the first is {lacking[0]}"
        yield found("LER015", STATS, message)
    for name, measures in known.items():
        feature = facts.root.features.get(name)
        if feature is not None and positive(feature.get("shape")):
            yield from _check_measures(name, feature, measures)


def _check_measures(name: str, feature: Mapping[str, Any], measures: Mapping[str, Any]) -> Iterator[Finding]:
    shape: Sequence[int] = feature["shape"]
    picture = feature.get("dtype") in ("video", "image")
    # A picture has one value a channel, whichever end of the shape the channels stand at.
    expected = {shape[0], shape[-1]} if picture else {math.prod(shape)}
    for measure, value in measures.items():
        if measure not in _MEASURES:
            continue
        values, place = list(_flat(value)), f"/{name}/{measure}"
        broken = [one for one in values if not _is_number(one)]
        if broken:
            count = f"{len(broken)} of {len(values)} are no numbers"
            message = f"{measure} of {name} holds {_shown(broken[0])}; {count}"
            yield found("LER017", STATS, message, place=place)
        if len(values) not in expected:
            message = f"{measure} of {name} has {len(values)} values; its shape is {list(shape)}"
            yield found("LER016", STATS, message, place=place)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


Rule = Callable[[Facts], Iterator[Finding]]
INFO_RULES: Final[Sequence[Rule]] = (
    check_versions,
    check_keys,
    check_templates,
    check_features,
    check_rate,
    check_totals,
    check_splits,
)
STATS_RULES: Final[Sequence[Rule]] = (check_statistics,)
