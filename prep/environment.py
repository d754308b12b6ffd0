"""The environment that upstream's launcher reads, from the manifests of prepared datasets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prep.errors import UsageError
from prep.manifest import MANIFEST, Manifest, short_id
from prep.recipe import Recipe, recipe_from
from prep.window_lists import filter_path, index_parameters

__all__ = ["Environment", "env", "manifests_below"]

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\{(\w*)\}")
# What stands unquoted in an override's value, in Hydra's grammar.
_OVERRIDABLE = re.compile(r"[A-Za-z0-9_./:@%+=-]+")
_DEEPEST = 4  # a repository's owner, its name, a subset, and the split of it
_TOLD = 3  # of the values that one variable cannot have at once
_OFFLINE_NOTE = "The Hub is switched off below: the backbone's weights must be in its cache already."


@dataclass(slots=True)
class Environment:
    """Variables to set, and remarks for the person who sets them."""

    variables: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def text(self, form: str) -> str:
        """As shell `export` lines, a dotenv file, or JSON."""
        if form == "json":
            return json.dumps({"variables": self.variables, "remarks": self.remarks}, indent=2)
        # A line break in a path must not end the comment: the text goes through `eval`.
        remarks = [f"# {' '.join(remark.splitlines())}" for remark in self.remarks]
        if form == "dotenv":
            lines = [f"{name}={_dotenv_quoted(value)}" for name, value in self.variables.items()]
        else:
            lines = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return "\n".join([*remarks, *lines])


def _dotenv_quoted(value: str) -> str:
    """Bare where that is safe, else in single quotes, within which nothing is expanded."""
    if re.fullmatch(r"[A-Za-z0-9_./-]*", value):
        return value
    if "'" not in value:
        return f"'{value}'"
    escaped = re.sub(r'([\\"$`])', r"\\\1", value)
    return f'"{escaped}"'


def manifests_below(path: Path) -> Iterator[Manifest]:
    """The manifests at `path` and up to four folders below it; a broken one raises PrepError.

    A dataset's own folders are not searched.
    """
    yield from _manifests(path, _DEEPEST)


def _manifests(path: Path, depth: int) -> Iterator[Manifest]:
    own = Manifest.load(path)
    if own is not None:
        yield own
        return
    # Hidden folders are those of runs that are not at their end.
    for folder in sorted(child for child in path.iterdir() if child.is_dir()) if depth else ():
        if not folder.name.startswith("."):
            yield from _manifests(folder, depth - 1)


def env(path: str | Path, *, consumer: str | None = None) -> Environment:
    """The environment for the dataset at `path`, or for those below it that `consumer` reads.

    Raises UsageError if nothing is prepared there, no dataset is read by `consumer`, or two
    datasets would set one variable to two values.
    """
    root = Path(path)
    if not root.is_dir():
        raise UsageError(
            f"{root} is not a directory.", remedy="Give a prepared dataset or the folder above it."
        )
    found = [
        (manifest, recipe) for manifest in manifests_below(root) for recipe in _recipes(manifest).values()
    ]
    if not found:
        raise UsageError(
            f"{root} holds no prepared dataset.",
            remedy="Prepare one, or run `prep adopt DIR` on a tree that another tool made.",
        )
    wanted = [pair for pair in found if consumer is None or consumer in pair[1].consumers]
    if not wanted:
        known = sorted({name for _, recipe in found for name in recipe.consumers})
        raise UsageError(
            f"No dataset in {root} is for {consumer!r}.",
            remedy=f"These are for: {', '.join(known) or 'nothing'}.",
        )
    return _merged(wanted)


def _recipes(manifest: Manifest) -> dict[str, Recipe]:
    """The recipes that a dataset serves, by name: its own, and those of the window indices beside it."""
    documents = [manifest.document["recipe"]]
    if manifest.document["kind"] == "lerobot":
        documents += [parameters["recipe_document"] for _, parameters in index_parameters(manifest.root)]
    named = str(manifest.root / MANIFEST)
    recipes = [recipe_from(document, folder=manifest.root, named=named) for document in documents]
    return {recipe.name: recipe for recipe in recipes}


def _merged(wanted: list[tuple[Manifest, Recipe]]) -> Environment:
    result = Environment()
    setters: dict[str, dict[str, list[str]]] = {}
    for manifest, recipe in wanted:
        result.remarks.append(f"{short_id(manifest.dataset_id)} in {_absolute(manifest.root)}")
        for name, value in _variables(manifest, recipe).items():
            setters.setdefault(name, {}).setdefault(value, []).append(str(manifest.root))
    for name, values in setters.items():
        if len(values) > 1:
            raise _several(name, [f"{value} (from {', '.join(roots)})" for value, roots in values.items()])
        result.variables[name] = next(iter(values))
    result.variables.update(_filter_overrides(wanted, result.remarks))
    result.variables.update(_launch_overrides(wanted, result.remarks))
    result.remarks.extend(_missing_splits(wanted))
    result.remarks.extend(_without_training(wanted))
    not_provided = {name: what for _, recipe in wanted for name, what in recipe.not_provided.items()}
    result.remarks.extend(f"not provided by prep: {name}, {what}" for name, what in not_provided.items())
    result.remarks.append(_OFFLINE_NOTE)
    result.variables.update(_OFFLINE)
    return result


def _several(name: str, choices: list[str]) -> UsageError:
    """That a variable cannot have all of these values; a few are told, and how many there are."""
    number = "Two" if len(choices) == 2 else f"{len(choices)}"
    more = f"; and {len(choices) - _TOLD} more" if len(choices) > _TOLD else ""
    return UsageError(
        f"{number} datasets would set {name}: {'; '.join(choices[:_TOLD])}{more}.",
        remedy="Give one of the directories instead.",
    )


def _filter_overrides(wanted: list[tuple[Manifest, Recipe]], remarks: list[str]) -> dict[str, str]:
    """The overrides by which upstream's launcher turns on the filter that an index was built with."""
    choices: dict[str, set[str]] = {}
    for manifest, recipe in wanted:
        if "filter" in recipe.document:
            filters = _filters(manifest, recipe)
            if len(filters) > 1:
                remarks.append(
                    f"{recipe.name}: its indices have {len(filters)} choices of a filter; none is turned on"
                )
            texts = {_overrides(manifest, recipe, next(iter(filters)))} if len(filters) == 1 else {""}
            choices.setdefault(recipe.name, set()).update(texts)
    found = set().union(*choices.values())
    if len(found) > 1:
        remarks.append(f"{', '.join(choices)} differ in their filter; none is turned on: name one with --for")
    if len(found) != 1 or found == {""}:
        return {}
    remarks.append("EXTRA_TAIL_OVERRIDES turns the filter on; without it upstream trains on every window")
    return {"EXTRA_TAIL_OVERRIDES": found.pop()}


def _launch_overrides(wanted: list[tuple[Manifest, Recipe]], remarks: list[str]) -> dict[str, str]:
    """The overrides by which an upstream recipe that asks the Hub by name reads a snapshot instead.

    Raises UsageError for several snapshots: it reads one.
    """
    found: dict[str, dict[str, tuple[Path, str]]] = {}
    for manifest, recipe in wanted:
        launch = recipe.document.get("launch")
        if launch is None:
            continue
        if manifest.document["details"].get("form") == "hub":
            start = _absolute(manifest.root).parents[3]
            remarks.append(f"upstream's load_dataset finds the subset where it is run in {start}")
            continue
        texts = [text.replace("{directory}", _overridable(manifest.root)) for text in launch["overrides"]]
        told = (manifest.root, launch.get("remark", ""))
        found.setdefault(launch["variable"], {})[" ".join(texts)] = told
    for name, values in found.items():
        if len(values) > 1:
            raise _several(name, [str(root) for root, _ in values.values()])
        remarks.extend(remark for _, remark in values.values() if remark)
    return {name: next(iter(values)) for name, values in found.items()}


def _overridable(path: Path, below: str = "") -> str:
    """A path as it may stand in an override; raises UsageError if it cannot."""
    text = str(_absolute(path) / below)
    if not _OVERRIDABLE.fullmatch(text):
        raise UsageError(
            f"{text}: upstream's launcher splits its overrides at spaces, and Hydra reads other signs as "
            "grammar.",
            remedy="Prepare into a directory whose path has only letters, digits and _ - . / in it.",
        )
    return text


def _filters(manifest: Manifest, recipe: Recipe) -> set[str | None]:
    """The digests of the filters that a recipe's indices were built with; None for one without.

    Unfiltered indices beside filtered ones are no choice: they are there to compare with.
    """
    found = {
        parameters["filter"]
        for _, parameters in index_parameters(manifest.root)
        if parameters["recipe"] == recipe.name
    }
    return found - {None} or found


def _overrides(manifest: Manifest, recipe: Recipe, filter_sha256: str | None) -> str:
    if filter_sha256 is None:
        return ""
    path = _overridable(manifest.root, filter_path(filter_sha256))
    return " ".join(text.replace("{filter}", path) for text in recipe.document["filter"]["overrides"])


def _variables(manifest: Manifest, recipe: Recipe) -> Mapping[str, str]:
    name = manifest.document["name"]
    absolute = _absolute(manifest.root)
    if recipe.kind == "reasoning_qa":
        from prep.layouts.reasoning_qa_tree import environment

        return {**_of_templates(recipe, absolute), **environment(absolute, manifest.document)}
    needs_name = any("{out_root}" in template for template in recipe.environment.values())
    if needs_name and absolute.name != name:
        raise UsageError(
            f"{absolute}: upstream looks for a directory named {name}.", remedy=f"Rename it to {name}."
        )
    return _of_templates(recipe, absolute)


def _of_templates(recipe: Recipe, absolute: Path) -> dict[str, str]:
    """The variables of the recipe's own table, their places filled in."""
    parent = str(absolute.parent)
    values = {"out_root": parent, "parent": parent, "directory": str(absolute)}
    for variable, template in recipe.environment.items():
        unknown = set(_PLACE.findall(template)) - values.keys()
        if unknown or not _NAME.fullmatch(variable):
            raise UsageError(
                f"The recipe {recipe.name} sets {variable} to {template!r}, which cannot be exported.",
                remedy=f"A name has letters, digits and _; a value may use {', '.join(values)} in braces.",
            )
    return {
        variable: _PLACE.sub(lambda match: values[match[1]], template)
        for variable, template in recipe.environment.items()
    }


def _missing_splits(wanted: list[tuple[Manifest, Recipe]]) -> Iterator[str]:
    there = {(recipe.name, manifest.document["split"]) for manifest, recipe in wanted}
    for manifest, recipe in {recipe.name: (manifest, recipe) for manifest, recipe in wanted}.values():
        for split in recipe.splits:
            beside = _out_root(manifest, recipe) / split.directory / MANIFEST
            if (recipe.name, split.name) not in there and not beside.is_file():
                yield f"not there: {split.directory} (split {split.name}), which the recipe reads as well"


def _without_training(wanted: list[tuple[Manifest, Recipe]]) -> Iterator[str]:
    """SFT datasets of which upstream's trainer finds no JSONL, since it reads that of `train`."""
    for root in dict.fromkeys(manifest.root for manifest, recipe in wanted if recipe.kind == "sft_jsonl"):
        if not (root / "train").is_dir():
            yield f"not there: train in {_absolute(root)}, which upstream's training reads"


def _out_root(manifest: Manifest, recipe: Recipe) -> Path:
    """The folder above a dataset's directory, which may be several names deep."""
    own = next((split for split in recipe.splits if split.name == manifest.document["split"]), None)
    depth = own.directory.count("/") + 1 if own is not None else 1
    parents = manifest.root.absolute().parents
    return parents[min(depth, len(parents)) - 1]


def _absolute(path: Path) -> Path:
    """Absolute and without a trailing slash; links are kept, since the user knows the path by them."""
    return path.resolve() if ".." in path.parts else path.absolute()
