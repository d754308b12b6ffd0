"""The robot stage: a LeRobot v3.0 tree is linked or fetched, checked by its metadata, and indexed.

The tree itself is never written to: it is linked into the dataset's directory, where the
manifest, the filter in upstream's form and the window indices stand beside it. An index is a
view, so another recipe, chunk length or filter adds one and changes nothing of the dataset.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.errors import UsageError
from prep.findings import catalogue
from prep.manifest import Manifest
from prep.recipe import Recipe, Split
from prep.stages.options import Result, RobotOptions
from prep.stages.robot_hub import HubPlan, plan_fetch
from prep.stages.robot_publish import publish, refuse_additions
from prep.stages.robot_report import incomplete, report
from prep.stages.robot_tree import Presence, Tree, find_tree, presence, root_names
from prep.stages.robot_windows import Filter, Group, SplitIndex, build, filter_for, load_groups
from prep.workspace import Workspace, is_unfinished

__all__ = ["Prepared", "prepare_robot"]


@dataclass(slots=True)
class Prepared:
    """A robot dataset on its way: where it is made, its tree, episodes, filter and indices.

    `all_groups` are the roots of the whole tree, which the dataset consists of; `groups` those that
    the recipe reads, and `presences` tell of their files.
    """

    recipe: Recipe
    part: Split
    root: Path
    options: RobotOptions
    tree: Tree
    all_groups: list[Group]
    groups: list[Group]
    keep: Filter | None
    indices: list[SplitIndex]
    presences: dict[str, Presence]
    hub: HubPlan | None = None

    @property
    def is_linked(self) -> bool:
        """Whether the tree stands elsewhere, and is neither fetched nor copied."""
        return not (self.options.copy or self.is_in_place)

    @property
    def is_in_place(self) -> bool:
        """Whether the tree is the dataset's own directory."""
        return self.tree.folder.resolve() == self.root.resolve()

    @property
    def is_incomplete(self) -> bool:
        """Whether some of the files are there and some are not, and that was not asked for."""
        states = self.presences.values()
        return not self.options.metadata_only and any(
            not state.is_whole and not state.is_metadata_only for state in states
        )


def prepare_robot(recipe: Recipe, part: Split, out_root: Path, options: RobotOptions) -> Result:
    """Prepare one robot dataset below `out_root`.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError, EnvironmentLacksError and
    PrepError (a filter that would select the wrong windows: nothing is written).
    """
    began = time.monotonic()
    _check_options(options)
    local = _local_tree(recipe, part, out_root, options)
    if local is not None:
        result = _from_tree(_prepared(recipe, part, out_root, options, local))
    else:
        result = _from_hub(recipe, part, out_root, options)
    result.seconds = time.monotonic() - began
    return result


def _check_options(options: RobotOptions) -> None:
    unknown = next((code for code in options.ignore if code not in catalogue()), None)
    if unknown is not None:
        raise UsageError(f"There is no code {unknown!r}.", remedy="`prep explain` lists all codes.")
    if options.root is not None and options.include is not None:
        raise UsageError(
            "--include chooses what is fetched from the Hub; --root names a local tree.",
            remedy="Give one of the two.",
        )


def _local_tree(recipe: Recipe, part: Split, out_root: Path, options: RobotOptions) -> Tree | None:
    """The tree to be used: the one asked for, the recipe's, one below the out-root, or the environment's."""
    rules = recipe.document["roots"]
    if options.root is not None:
        return find_tree(_part_folder(recipe, part, options.root), rules.get("names"))
    if part.tree is not None:
        return find_tree(_part_folder(recipe, part, recipe.folder / part.tree), rules.get("names"))
    for name in _directory_names(rules, part):
        own = _own_tree(recipe, out_root / name, options)
        if own is not None:
            return own
    if options.include is not None:
        return None
    for variable in rules.get("variables", ()):
        if os.environ.get(variable):
            folder = _part_folder(recipe, part, Path(os.environ[variable]))
            return find_tree(folder, rules.get("names"), named=variable)
    return None


def _part_folder(recipe: Recipe, part: Split, folder: Path) -> Path:
    """A suite in the folder above the suites, or the suite itself; not another suite by mistake."""
    if part.folder is None:
        return folder
    if not root_names(folder):
        return folder / part.folder
    name = folder.absolute().name
    others = {each.folder for each in recipe.splits} - {part.folder}
    if name != part.folder and (name in others or (folder.absolute().parent / part.folder).is_dir()):
        raise UsageError(
            f"{folder} is {name}, not {part.folder}.",
            remedy="Give the folder above the suites, or the suite that is asked for.",
        )
    return folder


def _own_tree(recipe: Recipe, folder: Path, options: RobotOptions) -> Tree | None:
    """A tree that stands below the out-root; None if there is none, or the Hub has more of what is asked."""
    if not folder.is_dir() or not root_names(folder):
        return None
    manifest = Manifest.load(folder)
    if manifest is None:
        # What a killed run has fetched so far is no tree: the Hub's listing says what belongs to it.
        return None if is_unfinished(folder) else find_tree(folder)
    tree = find_tree(folder)
    if manifest.document["sources"][0]["kind"] != "hub":
        return tree
    return tree if _suffices(tree, recipe, options) else None


def _suffices(tree: Tree, recipe: Recipe, options: RobotOptions) -> bool:
    names = [name for name, _ in tree.roots]
    if options.include is not None:
        if not any(options.include in name.split("/") for name in names):
            return False
    elif not set(recipe.document["roots"].get("groups", ())) <= {name.split("/")[0] for name in names}:
        return False
    chosen = tree.chosen(recipe.document["roots"].get("groups")).roots
    return options.metadata_only or all(presence(root).is_whole for _, root in chosen)


def _directory_names(rules: Mapping[str, Any], part: Split) -> list[str]:
    names = [part.directory, *rules.get("names", {}).values()]
    suffix = rules.get("sharded_suffix")
    return list(dict.fromkeys([*names, *(f"{name}{suffix}" for name in names if suffix)]))


def _from_tree(prepared: Prepared) -> Result:
    if prepared.is_incomplete:
        return incomplete(prepared)
    result = report(prepared)
    if result.exit_status == 0 and not prepared.options.dry_run:
        publish(prepared, result)
    return result


def _from_hub(recipe: Recipe, part: Split, out_root: Path, options: RobotOptions) -> Result:
    """Fetch what is missing, after everything that the metadata can tell has been found good."""
    plan = plan_fetch(recipe, part, options, _pinned(recipe, part, out_root))
    planned = _prepared(recipe, part, out_root, options, plan.tree, plan)
    root = planned.root
    plan.weigh(root, options)
    result = report(planned)
    if result.exit_status or options.dry_run:
        return result
    refuse_additions(planned, plan)
    with Workspace(root, wait=options.wait, cancel=options.cancel) as workspace:
        pin = workspace.ledger.pins.get(plan.listing.repo, plan.facts)
        if pin["commit"] != plan.listing.commit:  # a killed run began with another: go on with that
            plan = plan_fetch(recipe, part, options, pin["commit"])
        workspace.ledger.pin(plan.listing.repo, {"commit": plan.listing.commit})
        plan.fetch(root, options)
    return _from_tree(_prepared(recipe, part, out_root, options, find_tree(root), plan))


def _pinned(recipe: Recipe, part: Split, out_root: Path) -> str | None:
    """The commit that a dataset below the out-root was fetched at."""
    for name in _directory_names(recipe.document["roots"], part):
        manifest = Manifest.load(out_root / name)
        source = manifest.document["sources"][0] if manifest is not None else {}
        if source.get("repo") == part.repo and "commit" in source:
            return str(source["commit"])
    return None


def _prepared(
    recipe: Recipe,
    part: Split,
    out_root: Path,
    options: RobotOptions,
    tree: Tree,
    plan: HubPlan | None = None,
) -> Prepared:
    """Read the tree's metadata, meet it with the filter, and build the indices; nothing is written."""
    rules = recipe.document["roots"]
    root = out_root / _directory(rules, part, tree)
    _check_place(root, tree, rules)
    wanted = [name for name, _ in tree.chosen(rules.get("groups")).roots]
    if not wanted:
        raise UsageError(
            f"{tree.folder} has no {' or '.join(rules['groups'])} episodes.",
            remedy="Give another tree or recipe.",
        )
    single = rules["form"] == "single"
    named = [("" if single else name, item) for name, item in tree.roots]
    all_groups = load_groups(named, recipe.document["windows"])
    groups = [group for group in all_groups if single or group.name in wanted]
    others = [group for group in all_groups if not single and group.name not in wanted]
    keep = _filter(recipe, groups, others, options)
    chunk = options.chunk_length or recipe.document["windows"]["chunk_length"]
    indices = list(build(recipe, groups, chunk, root, keep))
    presences = {group.name: presence(group.root) for group in groups}
    return Prepared(
        recipe, part, root, options, tree, all_groups, groups, keep, indices, presences, plan
    )  # fmt: skip


def _check_place(root: Path, tree: Tree, rules: Mapping[str, Any]) -> None:
    """Refuse a tree of another form than the recipe's, and an out-root inside the tree."""
    if rules["form"] == "single" and tree.form != "flat":
        raise UsageError(
            f"{tree.folder} holds {len(tree.roots)} roots; this recipe reads one.",
            remedy=f"Give one of them, such as --root {tree.roots[0][1].path}.",
        )
    place, folder = root.resolve(), tree.folder.resolve()
    if rules["form"] == "groups" and tree.form == "flat" and place == folder:
        raise UsageError(
            f"{root} is itself a root; upstream looks for success/ in it.",
            remedy="Move it elsewhere and name it with --root, or move its folders into success/.",
        )
    if folder in place.parents:
        raise UsageError(
            f"The dataset would be made in {root}, inside the tree {tree.folder}, which is never written to.",
            remedy="Give an --out-root outside of it.",
        )


def _directory(rules: Mapping[str, Any], part: Split, tree: Tree) -> str:
    """The name that upstream looks the features up by."""
    if rules["form"] == "single":
        return part.directory
    name = rules.get("names", {}).get(tree.size_name(), part.directory)
    return f"{name}{rules.get('sharded_suffix', '')}" if tree.form == "sharded" else str(name)


def _filter(recipe: Recipe, groups: list[Group], others: list[Group], options: RobotOptions) -> Filter | None:
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
    prefix = options.source_prefix or os.environ.get(rule.get("variable", "")) or None
    accepts = "KEP001" in options.ignore
    return filter_for(path, groups, prefix=prefix, allow_overlap=accepts, others=others)
