"""A robot dataset is published: tree linked or copied, filter and indices written, manifest last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from prep import __version__
from prep.errors import UsageError, WouldChangeError
from prep.files import disk_errors, link_or_copy, sha256_of, sync_folder, write_whole
from prep.manifest import STATE, FileRow, Known, Manifest, RecordRow
from prep.recipe import canonical_json
from prep.stages.options import Result
from prep.window_lists import filter_path
from prep.workspace import Workspace, is_unfinished

if TYPE_CHECKING:
    from prep.stages.robot import Prepared
    from prep.stages.robot_hub import HubPlan
    from prep.stages.robot_windows import Group, SplitIndex

__all__ = ["publish", "refuse_additions"]

LOCATION = f"{STATE}/location.json"
_SHOWN = 3


def publish(prepared: Prepared, result: Result) -> None:
    """Write what is new; raises WouldChangeError where something finished would change without `update`."""
    root, options = prepared.root, prepared.options
    links = [] if options.copy else list(_links(prepared))
    _refuse_occupied(root, links)
    manifest = Manifest.load(root)
    known = {row.path: row for row in manifest.files()} if manifest is not None else {}
    files, records = list(_file_rows(prepared, known)), list(_record_rows(prepared))
    changed = [] if manifest is None else _changes(manifest, known, files, records)
    stale = [item.path.name for item in prepared.indices if _differs(item)]
    grows = manifest is not None and _grows(manifest, files)
    if grows and prepared.recipe.document["windows"].get("episodes_from") == "rows":
        stale = []  # there were no rows yet, and the index was built from the episode table in their place
    if not options.update and (stale or (changed and not grows)):
        raise WouldChangeError(
            f"{root} is finished, and this run would change it: {'; '.join([*changed, *_stale(stale)])}.",
            remedy="Add --update to change it, or give another --out-root.",
        )
    if manifest is not None and not changed and _is_settled(prepared, links):
        result.outcome, result.dataset_id = "unchanged", manifest.dataset_id
        return
    with Workspace(root, wait=options.wait, cancel=options.cancel) as workspace, workspace.held():
        _place(prepared, links)
        for index in prepared.indices:
            index.index.save(index.path)
        if manifest is None or changed:
            manifest = Manifest.write(root, _facts(prepared, manifest), files, records)
        sync_folder(root)
        workspace.clear()
    result.dataset_id = manifest.dataset_id


def refuse_additions(prepared: Prepared, plan: HubPlan) -> None:
    """Before anything is fetched: raise WouldChangeError if it would add to a finished dataset."""
    manifest = Manifest.load(prepared.root)
    if manifest is None or prepared.options.update or manifest.document["details"].get("metadata_only"):
        return
    listed = {row.path for row in manifest.files()}
    added = [name for name in (*plan.metadata, *plan.needed) if name not in listed]
    if added:
        raise WouldChangeError(
            f"{prepared.root} is finished, and this run would add {len(added)} files to it ({added[0]} …).",
            remedy="Add --update to change it, or give another --out-root.",
        )


def _refuse_occupied(root: Path, links: Sequence[tuple[str, Path]]) -> None:
    for name, _ in links:
        if (root / name).exists() and not (root / name).is_symlink():
            raise UsageError(
                f"{root / name} is there and is no link.",
                remedy="Give another --out-root, or move it away.",
            )


def _changes(
    manifest: Manifest,
    known: dict[str, FileRow],
    files: Sequence[FileRow],
    records: Sequence[RecordRow],
) -> list[str]:
    """What would change of the dataset, in words."""
    now = {row.path: row for row in files}
    kinds = {
        "added": [path for path in now if path not in known],
        "gone": [path for path in known if path not in now],
        "changed": [path for path in now if path in known and now[path] != known[path]],
    }
    changed = [
        f"{len(paths)} files {kind} ({', '.join(paths[:_SHOWN])}{' …' * (len(paths) > _SHOWN)})"
        for kind, paths in kinds.items()
        if paths
    ]
    if manifest.records() != records:
        changed.append(
            f"{manifest.document['counts']['rows']} episodes → {len(records)}, or of other content"
        )
    return changed


def _stale(names: Sequence[str]) -> Iterator[str]:
    yield from (f"{name} was built from another filter, recipe or tree" for name in names)


def _grows(manifest: Manifest, files: Sequence[FileRow]) -> bool:
    """Whether a dataset of metadata alone only gains files: that completes it, and changes nothing of it."""
    return bool(manifest.document["details"].get("metadata_only")) and set(manifest.files()) <= set(files)


def _differs(item: SplitIndex) -> bool:
    return item.path.is_file() and item.path.read_bytes() != item.index.to_bytes()


def _is_settled(prepared: Prepared, links: Sequence[tuple[str, Path]]) -> bool:
    """Whether every view and link is in place as this run would make it."""
    root, keep = prepared.root, prepared.keep
    return (
        not is_unfinished(root)
        and all(item.path.is_file() and not _differs(item) for item in prepared.indices)
        and (keep is None or (root / filter_path(keep.sha256)).is_file())
        and all(
            (root / name).is_symlink() and (root / name).resolve() == path.resolve() for name, path in links
        )
    )


def _links(prepared: Prepared) -> Iterator[tuple[str, Path]]:
    """Each name in the dataset's directory and what of the tree it stands for."""
    tree = prepared.tree
    if prepared.is_in_place:
        return
    if prepared.recipe.document["roots"]["form"] == "single":
        parts = ((name, tree.folder / name) for name in ("meta", "data", "videos"))
        yield from ((name, path) for name, path in parts if path.is_dir())
    elif tree.form == "flat":
        yield "success", tree.folder
    else:
        for group in dict.fromkeys(name.split("/")[0] for name, _ in tree.roots):
            yield group, tree.folder / group


def _place(prepared: Prepared, links: Sequence[tuple[str, Path]]) -> None:
    """Put the tree and the filter into the dataset's directory."""
    root = prepared.root
    if prepared.options.copy:
        for name, source in _links(prepared):
            if (root / name).is_symlink():
                (root / name).unlink()
            _copy(source.resolve(), root / name)
        (root / LOCATION).unlink(missing_ok=True)
    for name, source in links:
        with disk_errors(root / name):
            (root / name).unlink(missing_ok=True)
            (root / name).symlink_to(source.resolve())
    if links:
        location = {name: str(source.resolve()) for name, source in links}
        write_whole(root / LOCATION, json.dumps(location, indent=2, sort_keys=True).encode() + b"\n")
    if prepared.keep is not None:
        prepared.keep.write(root)


def _copy(origin: Path, target: Path) -> None:
    # Trees of the Hub's cache, and of people who spread them over disks, are full of links.
    for folder, _, names in os.walk(origin, followlinks=True):
        for name in names:
            source = Path(folder) / name
            destination = target / source.relative_to(origin)
            if not (destination.is_file() and destination.stat().st_size == source.stat().st_size):
                with disk_errors(destination):
                    link_or_copy(source, destination)


def _file_rows(prepared: Prepared, known: dict[str, FileRow]) -> Iterator[FileRow]:
    """Metadata by hash; frame tables and videos by size, or by the Hub's own hash; sorted by path."""
    paths = sorted(path for group in prepared.all_groups for path in _group_paths(group))
    for path, file, role in paths:
        size = file.stat().st_size
        if role == "source":
            yield FileRow(path, size, sha256_of(file), "computed", "source")
        else:
            yield _payload_row(prepared, path, size, known.get(path))


def _group_paths(group: Group) -> Iterator[tuple[str, Path, str]]:
    """Each file of a root that is there: its path in the dataset, where it stands, its role."""
    start = f"{group.name}/" if group.name else ""
    base = group.root.path
    for path in (base / "meta").rglob("*"):
        if path.is_file():
            yield start + path.relative_to(base).as_posix(), path, "source"
    for _, relative, _ in group.root.needed_files():
        if (base / relative).is_file():
            yield start + relative, base / relative, "payload"


def _payload_row(prepared: Prepared, path: str, size: int, before: FileRow | None) -> FileRow:
    sha256 = prepared.hub.hashes.get(path) if prepared.hub is not None else None
    if sha256 is None and prepared.is_in_place and before is not None and before.size == size:
        return before  # what an earlier run knew of it: the Hub's hash, or that it stands elsewhere
    known: Known = "hub_listing" if sha256 else "external" if prepared.is_linked else "size_only"
    return FileRow(path, size, sha256, known, "payload")


def _record_rows(prepared: Prepared) -> Iterator[RecordRow]:
    """One record an episode, whatever a filter keeps of it: the filter is a view."""
    row = 0
    for group in prepared.all_groups:
        episodes = group.episodes
        ids = episodes.ids.to_pylist() if episodes.ids is not None else [""] * len(episodes.numbers)
        columns = (episodes.numbers.tolist(), episodes.lengths.tolist(), episodes.first_rows.tolist(), ids)
        for number, length, first_row, name in zip(*columns, strict=True):
            row += 1
            content = hashlib.sha256(orjson.dumps([number, length, first_row, name])).hexdigest()
            identity = f"{group.name}/{number:06d}" if group.name else f"{number:06d}"
            yield RecordRow(row, identity, "full", "kept", "", "", name or "", None, None, content)


def _facts(prepared: Prepared, before: Manifest | None) -> dict[str, Any]:
    recipe, groups = prepared.recipe, prepared.all_groups
    origin = _origin(prepared, before)
    sources = []
    for group in groups:
        info = group.root.path / "meta/info.json"
        name = f"{group.name}/meta/info.json" if group.name else "meta/info.json"
        sources.append({**origin, "file": name, "size": info.stat().st_size, "sha256": sha256_of(info)})
    episodes = sum(len(group.episodes.numbers) for group in groups)
    frames = sum(int(group.episodes.lengths.sum()) for group in groups)
    request = {"roots": [group.name for group in groups], "source": origin.get("repo", "local")}
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
        "details": {
            "form": prepared.tree.form,
            "metadata_only": all(state.is_metadata_only for state in prepared.presences.values()),
            **({"statistics": recipe.document["statistics"]} if "statistics" in recipe.document else {}),
        },
        "fingerprint": hashlib.sha256(canonical_json(inputs)).hexdigest(),
    }


def _origin(prepared: Prepared, before: Manifest | None) -> dict[str, Any]:
    """Where the tree came from: the Hub, as fetched now or noted before, or this machine."""
    if prepared.hub is not None:
        return prepared.hub.facts
    source = before.document["sources"][0] if before is not None and prepared.is_in_place else {}
    own = ("file", "size", "sha256")
    return {key: value for key, value in source.items() if key not in own} or {"kind": "local"}
