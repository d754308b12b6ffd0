"""A reasoning dataset is published: annotations byte for byte, media linked or copied, manifest last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from prep import __version__
from prep.errors import IncompleteError, UsageError, WouldChangeError
from prep.files import disk_errors, sha256_of, sync_folder, write_whole
from prep.layouts.reasoning_qa import MEDIA, media_folder
from prep.layouts.reasoning_qa_checks import items_of
from prep.layouts.reasoning_qa_tree import LOCATION
from prep.manifest import MANIFEST, FileRow, Known, Manifest, RecordRow
from prep.pool import map_threads
from prep.recipe import canonical_json
from prep.stages.finished import differences
from prep.stages.options import Result
from prep.stages.payload import bring
from prep.workspace import Workspace, is_unfinished

if TYPE_CHECKING:
    from prep.stages.reasoning import Prepared

__all__ = ["publish"]

_SHOWN = 3
_FORMER = "former"


def publish(prepared: Prepared, result: Result) -> None:
    """Write what is new; raises WouldChangeError where something finished would change without `update`."""
    root, options = prepared.root, prepared.options
    if prepared.way != "copy":
        _refuse_occupied(prepared)
    planned = list(_planned(prepared))
    manifest, changed = _met(prepared, planned)
    if manifest is not None and not changed and _is_settled(prepared, manifest):
        result.outcome, result.dataset_id = "unchanged", manifest.dataset_id
        return
    if options.dry_run:
        return
    with Workspace(root, wait=options.wait, cancel=options.cancel) as workspace, workspace.held():
        manifest, _ = _met(prepared, planned)  # another run may have finished while we waited
        _place(prepared, _begin(prepared, workspace, manifest))
        files = [_with_digest(prepared, row) for row in planned]
        records = list(_record_rows(prepared, {row.path: row.sha256 for row in files}))
        manifest = Manifest.write(root, _facts(prepared, result), files, records)
        sync_folder(root)
        workspace.clear()
    result.dataset_id = manifest.dataset_id


def _met(prepared: Prepared, planned: Sequence[FileRow]) -> tuple[Manifest | None, list[str]]:
    """The dataset that is there, and what would change of it; raises WouldChangeError without `update`."""
    manifest = Manifest.load(prepared.root)
    changed = [] if manifest is None else _changes(prepared, manifest, planned)
    if changed and not prepared.options.update:
        raise WouldChangeError(
            f"{prepared.root} is finished, and this run would change it: {'; '.join(changed)}.",
            remedy="Add --update to change it, or give another --out-root.",
        )
    return manifest, changed


def _begin(prepared: Prepared, workspace: Workspace, manifest: Manifest | None) -> list[str]:
    """Take the manifest away, which is not true from here on; the views that it listed.

    They are noted first: the run that goes on after a kill has no manifest to tell of them.
    """
    if manifest is not None:
        views = [row.path for row in manifest.files() if row.role == "view"]
        workspace.ledger.pin(_FORMER, {"views": views})
        workspace.ledger.sync()
        with disk_errors(prepared.root):
            (prepared.root / MANIFEST).unlink()
    former: list[str] = workspace.ledger.pins.get(_FORMER, {}).get("views", [])
    return former


def _links(prepared: Prepared) -> dict[str, Path]:
    """Each name in the dataset's directory that is a link to a media root."""
    if prepared.way != "link":
        return {}
    return {media_folder(number): root.resolve() for number, root in enumerate(prepared.roots)}


def _refuse_occupied(prepared: Prepared) -> None:
    for name in _links(prepared):
        if (prepared.root / name).exists() and not (prepared.root / name).is_symlink():
            raise UsageError(
                f"{prepared.root / name} is there and is no link.",
                remedy="Give another --out-root, or move it away.",
            )


def _media(prepared: Prepared) -> Iterator[tuple[str, Path]]:
    """Each media file of the dataset, once: its path there and where it comes from, sorted by path."""
    found: dict[str, Path] = {}
    if prepared.way != "reference":
        for annotation, number in zip(prepared.annotations, prepared.root_of, strict=True):
            folder = media_folder(number)
            for video in annotation.videos:
                source = annotation.root.path / video
                if _belongs(video) and source.is_file():
                    found.setdefault(f"{folder}/{PurePosixPath(video)}", source)
    yield from sorted(found.items())


def _belongs(video: str) -> bool:
    """Whether a video id names a file below its root; another is left where it is."""
    return not video.startswith("/") and ".." not in PurePosixPath(video).parts


def _planned(prepared: Prepared) -> Iterator[FileRow]:
    """The dataset's files, without the digests of media, which only a copy has."""
    annotations = zip(prepared.names, prepared.annotations, strict=True)
    rows = [FileRow(name, each.size, each.sha256, "computed", "view") for name, each in annotations]
    known: Known = "computed" if prepared.way == "copy" else "external"
    media = _media(prepared)
    rows += [FileRow(path, source.stat().st_size, None, known, "payload") for path, source in media]
    yield from sorted(rows, key=lambda row: row.path)


def _with_digest(prepared: Prepared, row: FileRow) -> FileRow:
    if row.role != "payload" or row.known != "computed":
        return row
    return FileRow(row.path, row.size, sha256_of(prepared.root / row.path), "computed", "payload")


def _changes(prepared: Prepared, manifest: Manifest, planned: Sequence[FileRow]) -> list[str]:
    """What would change of the dataset, in words."""
    changed = differences(manifest, _request(prepared), prepared.recipe, None)
    before = {row.path: row for row in manifest.files()}
    now = {row.path: row for row in planned}
    kinds = {
        "added": [path for path in now if path not in before],
        "gone": [path for path in before if path not in now],
        "changed": [path for path in now if path in before and _differs(before[path], now[path])],
    }
    for kind, paths in kinds.items():
        if paths:
            shown = ", ".join(paths[:_SHOWN]) + " …" * (len(paths) > _SHOWN)
            changed.append(f"{len(paths)} files {kind} ({shown})")
    return changed


def _differs(before: FileRow, now: FileRow) -> bool:
    return before.size != now.size or (now.sha256 is not None and before.sha256 != now.sha256)


def _is_settled(prepared: Prepared, manifest: Manifest) -> bool:
    """Whether every file and link is in place as this run would make it.

    Copies are compared by size; with `update` they are not taken to be right, and compared by hash.
    """
    root = prepared.root
    return (
        not is_unfinished(root)
        and not (prepared.options.update and prepared.way == "copy")
        and not manifest.damaged_files(manifest.files())
        and all(
            sha256_of(root / name) == each.sha256
            for name, each in zip(prepared.names, prepared.annotations, strict=True)
        )
        and all(
            (root / name).is_symlink() and (root / name).resolve() == path
            for name, path in _links(prepared).items()
        )
        and _location(prepared) == ((root / LOCATION).read_bytes() if (root / LOCATION).is_file() else None)
    )


def _location(prepared: Prepared) -> bytes | None:
    if prepared.way == "copy":
        return None
    places = [str(root) for root in prepared.roots]
    return json.dumps({"media_roots": places}, indent=2).encode() + b"\n"


def _place(prepared: Prepared, former: Sequence[str]) -> None:
    """Put annotation files, media and the note of the roots into the dataset's directory."""
    root, location = prepared.root, _location(prepared)
    with disk_errors(root):
        for path in former:
            if path not in prepared.names:
                (root / path).unlink(missing_ok=True)
        for name, annotation in zip(prepared.names, prepared.annotations, strict=True):
            write_whole(root / name, _bytes(annotation.path, annotation.sha256))
        _place_media(prepared)
        if location is None:
            (root / LOCATION).unlink(missing_ok=True)
        else:
            write_whole(root / LOCATION, location)


def _bytes(path: Path, sha256: str) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise IncompleteError(f"{path} was changed while it was read.", remedy="Run the same command again.")
    return data


def _place_media(prepared: Prepared) -> None:
    root, links = prepared.root, _links(prepared)
    for link in (root / MEDIA).glob("*"):
        if link.is_symlink():
            link.unlink()
    for name, target in links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    if prepared.way == "copy":
        options = prepared.options
        copies = map_threads(
            lambda copy: _copy(copy[1], root / copy[0]),
            _media(prepared),
            jobs=options.jobs,
            cancel=options.cancel,
        )
        for _ in copies:
            pass


def _copy(source: Path, target: Path) -> None:
    if not _is_same(source, target):
        bring(source, target)


def _is_same(source: Path, target: Path) -> bool:
    """Whether a killed run, or one before, has put this content there already."""
    if not target.is_file() or target.stat().st_size != source.stat().st_size:
        return False
    return source.samefile(target) or sha256_of(source) == sha256_of(target)


def _record_rows(prepared: Prepared, digests: dict[str, str | None]) -> Iterator[RecordRow]:
    """One record a raw item, exposed or not: what training takes of them is a view."""
    row = 0
    for name, annotation, number in zip(prepared.names, prepared.annotations, prepared.root_of, strict=True):
        folder = media_folder(number)
        for index, item in enumerate(items_of(annotation.path)):
            row += 1
            video = str(item.get("video_id", ""))
            place = f"{folder}/{PurePosixPath(video)}"
            media = place if place in digests else None
            identity = f"{name}/items/{index}"
            content = hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()
            yield RecordRow(
                row, identity, prepared.part.name, "kept", "", "", video, media, digests.get(place), content
            )  # fmt: skip


def _request(prepared: Prepared) -> dict[str, Any]:
    return {
        **prepared.source.sampling.as_dict(),
        "media": prepared.way,
        "annotations": prepared.names,
        "source": "local",
    }


def _facts(prepared: Prepared, result: Result) -> dict[str, Any]:
    recipe, request = prepared.recipe, _request(prepared)
    sources = [
        {
            "kind": "local",
            "file": annotation.path.name,
            "size": annotation.size,
            "sha256": annotation.sha256,
            "license": annotation.license or None,
        }
        for annotation in prepared.annotations
    ]
    entries = zip(prepared.names, prepared.annotations, prepared.root_of, strict=True)
    inputs = {"recipe": recipe.sha256, "request": request, "files": [entry["sha256"] for entry in sources]}
    return {
        "prep_version": __version__,
        "name": prepared.part.directory.replace("/", "_"),
        "split": prepared.part.name,
        "kind": recipe.kind,
        "recipe": dict(recipe.document),
        "recipe_sha256": recipe.sha256,
        "request": request,
        "sources": sources,
        "counts": {"rows": prepared.items, "kept": prepared.items, "failed": 0},
        "drops": {},
        "consumption": result.consumption,
        "details": {
            "annotations": [
                {"file": name, "items": each.items, "root": number} for name, each, number in entries
            ],
            "roots": len(prepared.roots),
        },
        "fingerprint": hashlib.sha256(canonical_json(inputs)).hexdigest(),
    }
