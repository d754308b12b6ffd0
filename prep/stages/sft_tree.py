"""SFT records that are there as a JSONL already: in a folder of this machine, or in a Hub repository."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prep import hub, schemas
from prep.errors import FetchError, UsageError
from prep.files import sha256_of
from prep.findings import Finding, found
from prep.layouts.sft_jsonl import EXTRA_FOLDERS, LINES, SPLITS, find_lines, parsed, read_lines, resolved
from prep.recipe import Split
from prep.stages.sft_captions import located_in
from prep.stages.sft_options import SftOptions
from prep.stages.sft_plan import Clip, Plan

__all__ = ["hub_plan", "tree_folder", "tree_plan"]


def tree_folder(folder: Path, part: Split) -> Path:
    """The folder that holds `train/`: the one given, or the one below it that the repository has.

    Raises UsageError where neither holds a JSONL.
    """
    below = [folder / part.folder] if part.folder else []
    for candidate in (folder, *below):
        if find_lines(candidate):
            return candidate
    raise UsageError(
        f"{folder} holds no train/{LINES}.",
        remedy="Give the folder above train/, or build one with --from-captions or --from-curator.",
    )


def tree_plan(folder: Path, limit: int | None) -> Plan:
    """The records of a local tree."""
    clips, facts, findings = _read(find_lines(folder), limit, {"kind": "local"})
    names = (
        path.relative_to(folder).as_posix()
        for split in SPLITS
        if (folder / split).is_dir()
        for path in sorted((folder / split).rglob("*"))
        if path.is_file()
    )
    extras = _extras(names, clips, limit)
    return Plan("tree", clips, facts, located_in(folder), extras=extras, findings=findings)


def hub_plan(source: str, commit: str | None, part: Split, options: SftOptions) -> Plan:
    """The records of a Hub repository, `owner/name[@revision]`; only the JSONL files are fetched.

    `commit` is what an earlier run took the revision for.
    """
    repo, asked = hub.parse_source(source)
    listing = hub.listing(repo, commit or asked, offline=options.offline)
    start = f"{part.folder}/" if part.folder else ""
    names = {name[len(start) :]: name for name in listing.files if name.startswith(start)}
    lines = {split: f"{split}/{LINES}" for split in SPLITS if f"{split}/{LINES}" in names}
    if not lines:
        raise UsageError(
            f"{repo} has no {start}train/{LINES} at {listing.commit}.",
            remedy="Name another repository or revision with --source owner/name@revision.",
        )
    paths = {
        split: hub.download(listing, names[name], offline=options.offline) for split, name in lines.items()
    }
    origin = {"kind": "hub", "repo": repo, "asked": asked, "commit": listing.commit}
    clips, facts, findings = _read(paths, options.limit, origin)

    def locate(name: str) -> Path:
        if name not in names and listing.verified:
            raise FetchError("missing_video", f"{listing.repo} has no {start}{name}.", transient=False)
        return hub.download(listing, f"{start}{name}", offline=options.offline)

    sizes = {name: listing.files[full].size or 0 for name, full in names.items()}
    stated = ((name, listing.files[full].sha256) for name, full in names.items())
    extras = _extras(sorted(names), clips, options.limit)
    return Plan(
        "hub",
        clips,
        facts,
        locate,
        extras=extras,
        findings=findings,
        sizes=sizes,
        hashes={name: sha256 for name, sha256 in stated if sha256 is not None},
        is_far=True,
        is_verified=listing.verified,
    )


def _read(
    paths: Mapping[str, Path], limit: int | None, origin: Mapping[str, Any]
) -> tuple[list[Clip], list[dict[str, Any]], list[Finding]]:
    """The clips of each split's JSONL, the facts of the files, and what was borne in reading them."""
    clips: list[Clip] = []
    facts, findings = [], []
    for split, path in paths.items():
        taken, blank = 0, 0
        for line in read_lines(path):
            # Borne in a source; upstream's parser would stop at each of them.
            data = line.data.removeprefix(BOM_UTF8) if line.number == 1 else line.data
            if not data.strip():
                blank += 1
                continue
            if taken == limit:
                break
            taken += 1
            clips.append(_clip(len(clips) + 1, split, line.number, data.rstrip(b"\r")))
        name = f"{split}/{LINES}.gz" if path.name.endswith(".gz") else f"{split}/{LINES}"
        facts.append({**origin, "file": name, "size": path.stat().st_size, "sha256": sha256_of(path)})
        if blank:
            findings.append(found("TAB009", name, f"{blank} blank lines are left out"))
    return clips, facts, findings


def _clip(row: int, split: str, number: int, data: bytes) -> Clip:
    """A line as a clip; one that upstream's parser would stop at is dropped."""
    place = f"{split}/{LINES} line {number}"
    clip = Clip(row, "", split, line=data)
    try:
        record = parsed(data)
    except (ValueError, RecursionError) as error:
        return clip.drop("malformed_json", f"{place}: {error}")
    breaches = list(schemas.errors("sft-record", record))
    if breaches:
        pointer, message = breaches[0]
        return clip.drop("bad_record", f"{place}: {pointer}: {message}")
    clip.uuid = record["uuid"]
    path = resolved(split, record["vision_path"])
    if path is None:
        return (
            clip
            if "://" in record["vision_path"]
            else clip.drop("absolute_path", f"{place}: {record['vision_path']}")
        )
    if ".." in path.split("/"):
        return clip.drop("outside_source", f"{place}: {record['vision_path']} leaves the dataset")
    clip.source, clip.media = path, record["vision_path"]
    return clip


def _extras(names: Iterable[str], clips: list[Clip], limit: int | None) -> dict[str, str]:
    """The other files of the layout; with a limit only those of the clips that are taken."""
    taken = {clip.uuid for clip in clips}
    extras = {}
    for name in names:
        split, _, rest = name.partition("/")
        folder, _, below = rest.partition("/")
        if (
            split not in SPLITS
            or not below
            or not (folder in EXTRA_FOLDERS or folder.startswith("inference_prompt"))
        ):
            continue
        stem = below.partition("/")[0].rpartition(".")[0] or below.partition("/")[0]
        if limit is None or stem in taken:
            extras[name] = name
    return extras
