"""The robot stage: a LeRobot v3.0 tree is linked or fetched, checked by its metadata, and indexed.

The tree itself is never written to: it is linked into the dataset's directory, where the
manifest, the filter in upstream's form and the window indices stand beside it. An index is a
view, so another recipe, chunk length or filter adds one and changes nothing of the dataset.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from prep import __version__
from prep.errors import UsageError
from prep.files import disk_errors, link_or_copy, sha256_of, sync_folder, write_whole
from prep.manifest import STATE, FileRow, Known, Manifest, RecordRow, rows_digest
from prep.recipe import Recipe, Split, canonical_json
from prep.stages.finished import refuse_change
from prep.stages.options import Result, RobotOptions
from prep.stages.robot_hub import HubTree, fetch_tree, holds_root
from prep.stages.robot_report import incomplete, report
from prep.stages.robot_tree import Presence, Tree, find_tree, presence
from prep.stages.robot_windows import Filter, Group, SplitIndex, build, filter_for, load_groups
from prep.workspace import Workspace

__all__ = ["Prepared", "prepare_robot"]

LOCATION = f"{STATE}/location.json"


@dataclass(slots=True)
class Prepared:
    """A robot dataset on its way: where it is made, its tree, episodes, filter and indices."""

    recipe: Recipe
    part: Split
    root: Path
    options: RobotOptions
    tree: Tree
    groups: list[Group]
    keep: Filter | None
    indices: list[SplitIndex]
    presences: dict[str, Presence]
    hub: HubTree | None = None


def prepare_robot(recipe: Recipe, part: Split, out_root: Path, options: RobotOptions) -> Result:
    """Prepare one robot dataset below `out_root`.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError, EnvironmentLacksError and
    PrepError (a filter that would select the wrong windows: nothing is written).
    """
    began = time.monotonic()
    local = _local_tree(recipe, part, out_root, options)
    if local is not None:
        result = _index(recipe, part, out_root, options, local, None)
    else:
        root = out_root / part.directory
        with Workspace(root, wait=options.wait) as workspace:
            fetched = fetch_tree(part, root, options)
            workspace.clear()
        result = _index(recipe, part, out_root, options, find_tree(root), fetched)
    result.seconds = time.monotonic() - began
    return result


def _local_tree(recipe: Recipe, part: Split, out_root: Path, options: RobotOptions) -> Tree | None:
    """The tree that is to be used: the one named, one below the out-root, or one of the environment."""
    rules = recipe.document["roots"]
    if options.root is not None:
        return find_tree(options.root, rules.get("names"))
    for name in _directory_names(rules, part):
        if holds_root(out_root / name) and (out_root / name / "manifest.json").is_file():
            return find_tree(out_root / name)
    for variable in rules.get("variables", ()):
        if os.environ.get(variable):
            return find_tree(Path(os.environ[variable]), rules.get("names"))
    return None


def _directory_names(rules: Mapping[str, Any], part: Split) -> list[str]:
    names = [part.directory, *rules.get("names", {}).values()]
    suffix = rules.get("sharded_suffix")
    return list(dict.fromkeys([*names, *(f"{name}{suffix}" for name in names if suffix)]))


def _index(
    recipe: Recipe, part: Split, out_root: Path, options: RobotOptions, tree: Tree, fetched: HubTree | None
) -> Result:
    rules = recipe.document["roots"]
    root = out_root / _directory(rules, part, tree)
    chosen = tree.chosen(rules.get("groups"))
    if not chosen.roots:
        raise UsageError(
            f"{tree.folder} has no {' or '.join(rules['groups'])} episodes.",
            remedy="Give another tree or recipe.",
        )
    single = rules["form"] == "single"
    groups = load_groups(
        [("" if single else name, item) for name, item in chosen.roots], recipe.document["windows"]
    )
    keep = _filter(recipe, groups, options)
    chunk = options.chunk_length or recipe.document["windows"]["chunk_length"]
    indices = list(build(recipe, groups, chunk, root, keep))
    presences = {name: presence(item, len(group.episodes.numbers))
                 for (name, item), group in zip(chosen.roots, groups, strict=True)}  # fmt: skip
    prepared = Prepared(recipe, part, root, options, tree, groups, keep, indices, presences, fetched)
    if any(not item.is_whole and not item.is_metadata_only for item in presences.values()):
        return incomplete(prepared)
    result = report(prepared)
    if result.exit_status == 0 and not options.dry_run:
        _publish(prepared, result)
    return result


def _directory(rules: Mapping[str, Any], part: Split, tree: Tree) -> str:
    """The name that upstream looks the features up by."""
    if rules["form"] == "single":
        return part.directory
    name = rules.get("names", {}).get(tree.size_name(), part.directory)
    return f"{name}{rules.get('sharded_suffix', '')}" if tree.form == "sharded" else str(name)


def _filter(recipe: Recipe, groups: list[Group], options: RobotOptions) -> Filter | None:
    if options.keep_ranges is None:
        return None
    rule = recipe.document.get("filter")
    if rule is None:
        raise UsageError(f"The recipe {recipe.name} takes no filter.", remedy="Leave out --keep-ranges.")
    path = Path(options.keep_ranges)
    if options.keep_ranges == "hub":
        from prep import hub

        listing = hub.listing(rule["repo"], rule["revision"], repo_type="model", offline=options.offline)
        path = hub.download(listing, rule["file"], offline=options.offline)
    prefix = options.source_prefix or os.environ.get(rule.get("variable", ""))
    return filter_for(path, groups, prefix=prefix, allow_overlap="KEP001" in options.ignore)


def _publish(prepared: Prepared, result: Result) -> None:
    root, options = prepared.root, prepared.options
    files, records = _file_rows(prepared), _record_rows(prepared)
    manifest = Manifest.load(root)
    changed = _changes(prepared, manifest, files, records)
    if changed and not options.update:
        refuse_change(root, changed)
    if manifest is not None and not changed and all(index.path.is_file() for index in prepared.indices):
        result.outcome, result.dataset_id = "unchanged", manifest.dataset_id
        return
    with Workspace(root, wait=options.wait) as workspace, workspace.held():
        _link(prepared)
        if prepared.keep is not None:
            prepared.keep.write(root)
        for index in prepared.indices:
            index.index.save(index.path)
        if manifest is None or changed:
            manifest = Manifest.write(root, _facts(prepared), files, records)
        sync_folder(root)
        workspace.clear()
    result.dataset_id = manifest.dataset_id


def _changes(
    prepared: Prepared, manifest: Manifest | None, files: list[FileRow], records: list[RecordRow]
) -> list[str]:
    """What would change of the dataset or of an index that is there."""
    changed = []
    if manifest is not None:
        tables = (("files", files, FileRow), ("records", records, RecordRow))
        for name, rows, row_type in tables:
            before = manifest.document["tables"][name]
            if before["sha256"] != rows_digest(rows, row_type):
                changed.append(f"{name}: {before['rows']} rows → {len(rows)} rows of other content")
    stale = (item.path for item in prepared.indices if _differs(item))
    changed.extend(f"{path.name}: built from another filter, recipe or tree" for path in stale)
    return changed


def _differs(item: SplitIndex) -> bool:
    return item.path.is_file() and item.path.read_bytes() != item.index.to_bytes()


def _links(prepared: Prepared) -> Iterator[tuple[str, Path]]:
    """Each name in the dataset's directory and what of the tree it stands for."""
    tree = prepared.tree
    if tree.folder.resolve() == prepared.root.resolve():
        return
    if prepared.recipe.document["roots"]["form"] == "single":
        parts = ((name, tree.folder / name) for name in ("meta", "data", "videos"))
        yield from ((name, path) for name, path in parts if path.is_dir())
    elif tree.form == "flat":
        yield "success", tree.folder
    else:
        for group in dict.fromkeys(name.split("/")[0] for name, _ in tree.roots):
            yield group, tree.folder / group


def _link(prepared: Prepared) -> None:
    root = prepared.root
    location = {}
    for name, source in _links(prepared):
        target, origin = root / name, source.resolve()
        if prepared.options.copy:
            _copy(origin, target)
            continue
        location[name] = str(origin)
        if target.is_symlink():
            target.unlink()
        elif target.exists():
            raise UsageError(
                f"{target} is there and is no link.", remedy="Give another --out-root, or move it away."
            )
        with disk_errors(target):
            target.symlink_to(origin)
    if location:
        write_whole(root / LOCATION, json.dumps(location, indent=2, sort_keys=True).encode() + b"\n")


def _copy(origin: Path, target: Path) -> None:
    for folder, _, names in os.walk(origin):
        for name in names:
            source = Path(folder) / name
            destination = target / source.relative_to(origin)
            if not (destination.is_file() and destination.stat().st_size == source.stat().st_size):
                with disk_errors(destination):
                    link_or_copy(source, destination)


def _file_rows(prepared: Prepared) -> list[FileRow]:
    """Metadata by hash; frame tables and videos by size, or by the Hub's own hash."""
    hashes = prepared.hub.hashes if prepared.hub is not None else {}
    linked = prepared.tree.folder.resolve() != prepared.root.resolve() and not prepared.options.copy
    rows = []
    for group in prepared.groups:
        start = f"{group.name}/" if group.name else ""
        for path in sorted((group.root.path / "meta").rglob("*")):
            if path.is_file():
                relative = path.relative_to(group.root.path).as_posix()
                rows.append(
                    FileRow(start + relative, path.stat().st_size, sha256_of(path), "computed", "source")
                )
        for _, relative, _ in group.root.needed_files():
            path = group.root.path / relative
            if path.is_file():
                sha256 = hashes.get(start + relative)
                known: Known = "hub_listing" if sha256 else "external" if linked else "size_only"
                rows.append(FileRow(start + relative, path.stat().st_size, sha256, known, "payload"))
    return sorted(rows, key=lambda row: row.path)


def _record_rows(prepared: Prepared) -> list[RecordRow]:
    """One record an episode, whatever a filter keeps of it: the filter is a view."""
    rows: list[RecordRow] = []
    for group in prepared.groups:
        episodes = group.episodes
        ids = episodes.ids.to_pylist() if episodes.ids is not None else [""] * len(episodes.numbers)
        columns = (episodes.numbers.tolist(), episodes.lengths.tolist(), episodes.first_rows.tolist(), ids)
        for number, length, first_row, name in zip(*columns, strict=True):
            content = hashlib.sha256(orjson.dumps([number, length, first_row, name])).hexdigest()
            identity = f"{group.name}/{number:06d}" if group.name else f"{number:06d}"
            rows.append(
                RecordRow(len(rows) + 1, identity, "full", "kept", "", "", name or "", None, None, content)
            )
    return rows


def _facts(prepared: Prepared) -> dict[str, Any]:
    recipe = prepared.recipe
    origin = prepared.hub.facts if prepared.hub is not None else {"kind": "local"}
    sources = []
    for group in prepared.groups:
        info = group.root.path / "meta/info.json"
        name = f"{group.name}/meta/info.json" if group.name else "meta/info.json"
        sources.append({**origin, "file": name, "size": info.stat().st_size, "sha256": sha256_of(info)})
    episodes = sum(len(group.episodes.numbers) for group in prepared.groups)
    frames = sum(int(group.episodes.lengths.sum()) for group in prepared.groups)
    request = {"roots": [group.name for group in prepared.groups], "source": origin.get("repo", "local")}
    inputs = {"recipe": recipe.sha256, "request": request, "roots": [source["sha256"] for source in sources]}
    return {
        "prep_version": __version__,
        "name": prepared.root.name,
        "split": prepared.part.name,
        "kind": recipe.kind,
        "recipe": dict(recipe.document),
        "recipe_sha256": recipe.sha256,
        "request": request,
        "sources": sources,
        "counts": {"rows": episodes, "kept": episodes, "failed": 0},
        "drops": {},
        "consumption": {"episodes": episodes, "frames": frames},
        "details": {"form": prepared.tree.form},
        "fingerprint": hashlib.sha256(canonical_json(inputs)).hexdigest(),
    }
