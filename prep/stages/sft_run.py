"""One SFT run: what is asked, which source it is, and the plan of its clips."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.errors import FetchError, PrepError, UsageError
from prep.files import sha256_of
from prep.layouts.sft_sources import source_of
from prep.layouts.sft_windows import Loader
from prep.manifest import Manifest
from prep.recipe import Recipe, Split
from prep.stages.sft_captions import captions_plan
from prep.stages.sft_curator import curator_plan
from prep.stages.sft_options import SftOptions
from prep.stages.sft_plan import Clip, Plan
from prep.stages.sft_split import hold_out
from prep.stages.sft_tokens import tokenizer_sha256
from prep.stages.sft_tree import hub_plan, tree_folder, tree_plan

__all__ = ["Run"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True)
class Run:
    """One dataset being prepared into `root`, as the recipe and the options want it."""

    recipe: Recipe
    part: Split
    root: Path
    options: SftOptions
    form: str
    place: Path | None
    loader: Loader

    @classmethod
    def of(cls, recipe: Recipe, part: Split, out_root: Path, options: SftOptions) -> Run:
        """The run; raises UsageError for options that contradict one another or name nothing."""
        if options.name is not None and not _NAME.fullmatch(options.name):
            raise UsageError(
                f"{options.name!r} is no name for a dataset.", remedy="Use letters, digits and _ - . in it."
            )
        form, place = _source(recipe, part, options)
        asked = {"num_video_frames": options.num_video_frames, "min_short_edge": options.min_short_edge}
        if options.num_video_frames is not None and (
            options.num_video_frames < -1 or not options.num_video_frames
        ):
            raise UsageError(
                "--num-video-frames is 0 or below -1.", remedy="Give the recipe's number, or -1."
            )
        loader = Loader.of(recipe.document, asked)
        run = cls(recipe, part, out_root / (options.name or part.directory), options, form, place, loader)
        group = run.build("group")
        if group is not None:
            _pattern(group)  # a broken one is told even where nothing is held out
        return run

    @property
    def is_in_place(self) -> bool:
        """Whether the source tree is the dataset's own directory."""
        if self.form != "tree" or self.place is None or not self.root.exists():
            return False
        return tree_folder(self.place, self.part).resolve() == self.root.resolve()

    @property
    def is_built(self) -> bool:
        """Whether the JSONL is made here, not taken as it stands."""
        return self.form in ("captions", "curator")

    def build(self, key: str) -> Any:
        """A setting of how a JSONL is built: the option, else the recipe's."""
        given = getattr(self.options, key)
        return self.recipe.document.get("build", {}).get(key) if given is None else given

    def request(self, before: Manifest | None) -> dict[str, Any]:
        """The options that shape the dataset, free of anything of this machine.

        What only adds to a finished dataset stays as it is where it is not asked for: the figures of
        a tokenizer, and prompts that were aligned.
        """
        options, fraction = self.options, self.build("val_fraction") or 0.0
        built: dict[str, Any] = {}
        if self.is_built:
            built = {
                "val_fraction": fraction,
                "seed": (self.build("seed") or 0) if fraction else None,
                "group": self.build("group") if fraction else None,
                "caption_model": self.build("caption_model"),
                "enhanced_caption_model": self.build("enhanced_caption_model"),
            }
        was = before.document["request"] if before is not None else {}
        return {
            "source": self.asked(),
            "form": self.form,
            "limit": options.limit,
            "num_video_frames": self.loader.num_video_frames,
            "min_short_edge": self.loader.min_short_edge,
            "align_prompts": options.align_prompts or bool(was.get("align_prompts")),
            "tokenizer": tokenizer_sha256(options.tokenizer) if options.tokenizer else was.get("tokenizer"),
            **built,
        }

    def asked(self) -> str:
        """The source as a manifest may keep it."""
        if self.form != "hub":
            return "local"
        pinned = f"@{self.part.revision}" if self.part.revision else ""
        return self.options.source or f"{self.part.repo}{pinned}"

    def plan(self, commit: str | None = None, *, facts_only: bool = False) -> Plan:
        """Read the source; `commit` is the one that an earlier run had of an unpinned repository.

        With `facts_only` no clip is opened: enough to see whether the source has changed.
        """
        options, place = self.options, self.place
        if self.form == "hub":
            return self._hub_plan(commit)
        assert place is not None
        if self.form == "tree":
            return tree_plan(tree_folder(place, self.part), options.limit)
        if self.form == "curator":
            plan = curator_plan(
                place,
                self.loader,
                caption_model=self.build("caption_model"),
                enhanced_model=self.build("enhanced_caption_model"),
                limit=options.limit,
            )
        else:
            videos = _given(self.recipe, options.videos, "videos")
            assert videos is not None
            plan = captions_plan(
                place,
                videos,
                self.loader,
                limit=options.limit,
                jobs=options.jobs,
                cancel=options.cancel,
                facts_only=facts_only,
            )
        if not facts_only:
            self._missing(plan)
            self._split(plan)
        return plan

    def _hub_plan(self, commit: str | None) -> Plan:
        source = self.options.source
        try:
            return hub_plan(self.asked(), commit, self.part, self.options)
        except PrepError as error:
            if source is not None and "@" not in source:
                # A path that was mistyped looks like the name of a repository.
                error.message += f" There is no folder {source} here, so it was taken for a Hub repository."
            raise

    def _missing(self, plan: Plan) -> None:
        """Drop the clips whose video is not there, before any is held out."""
        for clip in plan.kept():
            if clip.media:
                try:
                    plan.locate(clip.source)
                except FetchError as error:
                    clip.drop(error.reason, error.message)

    def _split(self, plan: Plan) -> None:
        fraction = self.build("val_fraction") or 0.0
        kept = plan.kept()
        if not fraction or not kept:
            return
        group = self.build("group")
        if group is not None:
            plan.notes += _grouped([clip for clip in kept if not clip.group], group)
        for clip in kept:
            clip.group = clip.group or source_of(clip.uuid)
        hold_out(kept, fraction, self.build("seed") or 0, _twins(plan))


def _twins(plan: Plan) -> dict[str, str]:
    """The digest of each video whose size another video has too; no other can have a twin."""
    paths = {clip.source: plan.locate(clip.source) for clip in plan.kept() if clip.media}
    sizes = Counter(path.stat().st_size for path in paths.values())
    return {name: sha256_of(path) for name, path in paths.items() if sizes[path.stat().st_size] > 1}


def _grouped(clips: Sequence[Clip], text: str) -> list[str]:
    """Give the clips that `--group` matches their source; what is to be said of the others.

    `clips` are those whose source nothing else states. Raises UsageError where it matches none of them.
    """
    if not clips:
        return ["--group is not used: the curator states each clip's source_video"]
    pattern, missed = _pattern(text), list[str]()
    for clip in clips:
        match = pattern.search(clip.uuid)
        if match is not None and match[1]:
            clip.group = source_of(clip.uuid, pattern)
        else:
            missed.append(clip.uuid)
    if len(missed) == len(clips):
        raise UsageError(
            f"--group {text!r} matches no clip's name, such as {missed[0]!r}.",
            remedy="Correct it, or leave it out: names such as ride_clip001 are told apart without it.",
        )
    if not missed:
        return []
    share = f"{len(missed)} of {len(clips)} clips"
    return [f"{share} do not match --group, such as {missed[0]}: their source is told as without it"]


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--group {text!r} is no regular expression: {error}.", remedy="Correct it."
        ) from error
    if not pattern.groups:
        raise UsageError(f"--group {text!r} has no group.", remedy="Put the source's part in ( ).")
    return pattern


def _source(recipe: Recipe, part: Split, options: SftOptions) -> tuple[str, Path | None]:
    """Which form the source has, and where it stands on this machine."""
    captions = _given(recipe, options.captions, "captions")
    curator = _given(recipe, options.curator, "curator")
    named = {
        "--from-captions": options.captions,
        "--from-curator": options.curator,
        "--source": options.source,
    }
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are given.", remedy="Give one source.")
    if options.source is not None:
        return _tree_or_hub(options.source)
    if options.curator is not None or (curator is not None and options.captions is None):
        return "curator", _directory(curator)
    if captions is not None:
        if _given(recipe, options.videos, "videos") is None:
            raise UsageError("--from-captions needs the videos.", remedy="Give their folder with --videos.")
        return "captions", captions
    tree = _given(recipe, None, "tree")
    if tree is not None:
        return "tree", _directory(tree)
    if part.repo is None:
        raise UsageError(
            f"The recipe {recipe.name} names no source.",
            remedy="Give --from-captions DIR --videos DIR, --from-curator DIR, or --source DIR.",
        )
    return "hub", None


def _tree_or_hub(source: str) -> tuple[str, Path | None]:
    path = Path(source).expanduser()
    if path.is_dir():
        return "tree", path
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise UsageError(
            f"The source {source!r} is neither a local folder nor owner/name.",
            remedy="Give a folder that exists, or owner/name@revision.",
        )
    if path.parent.is_dir() and "@" not in path.name:
        raise UsageError(
            f"{path.parent} is a folder here, and holds no folder {path.name}.",
            remedy="Give a folder that exists, or owner/name@revision for a repository of the Hub.",
        )
    return "hub", None


def _given(recipe: Recipe, option: Path | None, key: str) -> Path | None:
    stated = recipe.document.get("source", {}).get(key)
    return option if option is not None else recipe.folder / stated if stated is not None else None


def _directory(path: Path | None) -> Path:
    if path is None or not path.is_dir():
        raise UsageError(f"{path} is not a directory.", remedy="Give the source's folder.")
    return path
