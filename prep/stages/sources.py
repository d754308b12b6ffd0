"""Source tables: from what the recipe or the user names to a local file, with the facts that prove it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.errors import PrepError, UsageError
from prep.files import disk_errors, link_or_copy, sha256_of
from prep.manifest import STATE, Manifest
from prep.recipe import Recipe, Split
from prep.stages.options import Options
from prep.workspace import Workspace

__all__ = [
    "SOURCE_FOLDER",
    "SourceTable",
    "asked_source",
    "check_out_root",
    "given_source",
    "local_table",
    "open_source",
    "taken_for_hub",
]

SOURCE_FOLDER = f"{STATE}/source"
_TABLES = (".csv", ".json", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table on this disk, the facts of it for the manifest, and the folder of its local media.

    `verified` is false where the Hub could not be asked what the table should be.
    """

    path: Path
    facts: Mapping[str, Any]
    media_folder: Path | None = None
    verified: bool = True

    def local_media(self) -> tuple[tuple[str, str], ...]:
        """The folder of local media as a mirror to itself: only what lies below it may be read."""
        if self.media_folder is None:
            return ()
        start = self.media_folder.as_uri() + "/"
        return ((start, start),)


def asked_source(split: Split, options: Options) -> str:
    """The source as a manifest may keep it: `owner/name[@revision]`, or `local` for a local file.

    Raises UsageError for a local path that is not there.
    """
    given = options.sources.get(split.name)
    if given is None:
        pinned = f"@{split.revision}" if split.revision else ""
        return "local" if split.table else f"{split.repo}{pinned}"
    return given_source(given)


def given_source(given: str) -> str:
    """A `--source` as a manifest may keep it; raises UsageError for a local path that is mistyped.

    A name that is not on this disk is the Hub's, unless it ends as a table does, or begins with a folder
    that is here and names no revision.
    """
    path = Path(given).expanduser()
    if path.exists():
        return "local"
    first, slash, _ = given.partition("/")
    begins_here = slash and "@" not in given and first not in ("", ".", "..") and Path(first).is_dir()
    if path.suffix.lower() in _TABLES or begins_here:
        raise UsageError(
            f"There is no source at {given}.",
            remedy="Give a folder or file that exists; for a Hub repository owner/name@revision.",
        )
    return given


@contextmanager
def taken_for_hub(given: str | None) -> Iterator[None]:
    """Add to what the Hub says of a source that was given that there is no such folder here."""
    try:
        yield
    except PrepError as error:
        if given is not None:
            told = f"There is no folder {given} here, so it was taken for a Hub repository."
            error.message = f"{error.message} {told}"
        raise


def check_out_root(out_root: Path) -> None:
    """Raise UsageError for an out-root that is a file."""
    if out_root.exists() and not out_root.is_dir():
        raise UsageError(f"--out-root {out_root} is a file.", remedy="Give a folder, there or not yet.")


def local_table(recipe: Recipe, split: Split, options: Options) -> Path | None:
    """The local table, if the source is local; raises UsageError if it is not there."""
    given = options.sources.get(split.name)
    if given is None:
        return _existing(recipe.folder / split.table, split) if split.table else None
    path = Path(given).expanduser()
    if path.is_dir():
        return _existing(path / (split.file or split.table or ""), split)
    if path.is_file():
        return path
    if given.count("/") != 1 or given.startswith((".", "/", "~")):
        raise UsageError(
            f"The source {given!r} of split {split.name} is neither a local folder or file nor owner/name.",
            remedy="Give a folder that exists, or owner/name, or owner/name@revision.",
        )
    return None


def _existing(path: Path, split: Split) -> Path:
    if not path.is_file():
        raise UsageError(
            f"The source of split {split.name} has no table at {path}.",
            remedy="Give the folder that holds the table, or the table itself.",
        )
    return path


def open_source(
    recipe: Recipe, split: Split, options: Options, manifest: Manifest | None, workspace: Workspace | None
) -> SourceTable:
    """The table of a split, from a local path, an earlier run, or the Hub.

    An unpinned Hub source keeps the commit of the unfinished run, or of the manifest, unless
    `options.refresh`. Raises UsageError, FetchError, IncompleteError as the Hub does.
    """
    local = local_table(recipe, split, options)
    if local is not None:
        folder = _media_folder(recipe, split, options, local)
        return SourceTable(local, _file_facts(local, {"kind": "local"}), folder)
    asked = asked_source(split, options)
    earlier = None if options.refresh else _earlier(asked, manifest, workspace)
    path = None if earlier is None else _still_here(earlier, manifest, workspace)
    if earlier is not None and path is not None:
        return _kept(asked, SourceTable(path, earlier), workspace)
    return _kept(asked, _from_hub(asked, split, options, earlier), workspace)


def _media_folder(recipe: Recipe, split: Split, options: Options, table: Path) -> Path:
    """The folder of local media: the one that the recipe names for its own table, else the table's."""
    if split.media_root is None or split.name in options.sources:
        return table.resolve().parent
    folder = (recipe.folder / split.media_root).resolve()
    if not folder.is_dir():
        raise UsageError(
            f"The media_root of split {split.name} is no folder: {folder}.",
            remedy="Correct the recipe; its paths are relative to its own folder.",
        )
    return folder


def _earlier(asked: str, manifest: Manifest | None, workspace: Workspace | None) -> Mapping[str, Any] | None:
    """The facts of the table that an earlier run resolved this source to."""
    if workspace is not None and asked in workspace.ledger.pins:
        return workspace.ledger.pins[asked]
    if manifest is not None and manifest.document["request"].get("source") == asked:
        facts: Mapping[str, Any] = manifest.document["sources"][0]
        return facts
    return None


def _still_here(
    facts: Mapping[str, Any], manifest: Manifest | None, workspace: Workspace | None
) -> Path | None:
    """Where an earlier run left the table, if its bytes are still those of the facts."""
    places = [_kept_table(workspace, facts)] if workspace is not None else []
    roots = [item.root for item in (workspace, manifest) if item is not None]
    places.extend(root / SOURCE_FOLDER / Path(facts["file"]).name for root in roots)
    return next((path for path in places if path.is_file() and sha256_of(path) == facts["sha256"]), None)


def _kept_table(workspace: Workspace, facts: Mapping[str, Any]) -> Path:
    return workspace.incoming / f"table-{facts['sha256']}"


def _kept(asked: str, table: SourceTable, workspace: Workspace | None) -> SourceTable:
    """The table in the run's folder and its commit in the ledger, for the run that goes on after a kill."""
    if workspace is None:
        return table
    kept = _kept_table(workspace, table.facts)
    if table.path != kept:
        with disk_errors(kept):
            link_or_copy(table.path, kept)
    if workspace.ledger.pins.get(asked) != table.facts:
        workspace.ledger.pin(asked, dict(table.facts))
    return SourceTable(kept, table.facts, verified=table.verified)


def _from_hub(asked: str, split: Split, options: Options, earlier: Mapping[str, Any] | None) -> SourceTable:
    """The table from the Hub, at the commit of an earlier run if there was one."""
    from prep import hub

    repo, revision = hub.parse_source(asked)
    with taken_for_hub(options.sources.get(split.name)):
        listing = hub.listing(repo, earlier["commit"] if earlier else revision, offline=options.offline)
    path = hub.download(listing, split.file or "", offline=options.offline)
    facts = _file_facts(
        path,
        {
            "kind": "hub",
            "repo": repo,
            "asked": revision,
            "commit": listing.commit,
            "file": split.file,
        },
    )
    same = earlier is not None and earlier["sha256"] == facts["sha256"]
    return SourceTable(path, earlier if same and earlier else facts, verified=listing.verified)


def _file_facts(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    return {"file": path.name, "size": path.stat().st_size, "sha256": sha256_of(path), **facts}
