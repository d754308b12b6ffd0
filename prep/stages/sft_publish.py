"""The last step of the SFT stage: clips to their names, JSONL files, prompts, and the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prep import __version__
from prep.clip_header import ClipHeader, read_header
from prep.errors import PrepError
from prep.files import disk_errors, sync_folder, write_whole
from prep.layouts.sft_consumption import Consumption, TokenCount
from prep.layouts.sft_jsonl import LINES, SPLITS, SUMMARY, is_media
from prep.layouts.sft_windows import CAPTION_JSON
from prep.manifest import MANIFEST, FileRow, Manifest, RecordRow
from prep.pool import map_threads
from prep.progress import counted
from prep.recipe import canonical_json
from prep.stages.payload import Store, place
from prep.stages.sft_plan import Clip, Plan
from prep.stages.sft_prompts import Aligned, align, is_prompt
from prep.workspace import Workspace

if TYPE_CHECKING:
    from prep.stages.sft_run import Run

__all__ = ["Publication", "is_payload", "record_rows", "told"]


def is_payload(path: str) -> bool:
    """Whether a path of the dataset is content of the source that is linked, never rewritten."""
    return is_media(path) or (path.split("/")[1:2] == ["captions"] and not path.endswith(".jsonl"))


@dataclass(slots=True)
class Publication:
    """Brings a dataset to the state of a plan; may be stopped at any point and done again."""

    run: Run
    plan: Plan
    workspace: Workspace
    before: Manifest | None
    tokens: TokenCount | None = None

    def publish(self) -> tuple[Manifest, list[str]]:
        """Move clips, write the views, and write the manifest last; with what a user should know."""
        run, workspace, before = self.run, self.workspace, self.before
        earlier = [row.path for row in before.files() if row.role == "view"] if before is not None else []
        with workspace.held():
            (run.root / MANIFEST).unlink(missing_ok=True)
            place(workspace, self._wanted(), Store.look(workspace, is_payload))
        aligned = run.request(before)["align_prompts"]
        prompts, lines = self._prompts(aligned=aligned), self._lines()
        views = {**lines, **self._summaries(), **prompts.files}
        consumption = self._consumption(lines)
        with workspace.held():
            files = [self._view(path, data) for path, data in views.items()]
            for path in (*earlier, *self._known_views()):
                if path not in views:
                    (run.root / path).unlink(missing_ok=True)
            sync_folder(run.root)
            rows = sorted([*files, *self._payload()], key=lambda row: row.path)
            facts = self._facts(consumption)
            manifest = Manifest.write(run.root, facts, rows, list(record_rows(self.plan, self._digests())))
        return manifest, prompts.notes(dry_run=False) if aligned else []

    def changes(self) -> list[str]:
        """The JSONL files of which the disk holds another text than the plan gives."""
        root = self.run.root
        return [
            path
            for path, data in self._lines().items()
            if not (root / path).is_file() or (root / path).read_bytes() != data
        ]

    def _digests(self) -> dict[str, str]:
        """The sha256 of each source's content."""
        return {name: content.sha256 for name, content in self.workspace.ledger.sources.items()}

    def _named(self) -> dict[str, str]:
        """Each payload path of the dataset and the source's name of it."""
        named = {clip.path: clip.source for clip in self.plan.kept() if clip.media}
        return named | {path: name for path, name in self.plan.extras.items() if is_payload(path)}

    def _wanted(self) -> dict[str, str]:
        digests = self._digests()
        return {path: digests[name] for path, name in self._named().items()}

    def _payload(self) -> Iterator[FileRow]:
        for path, name in self._named().items():
            content = self.workspace.ledger.sources[name]
            yield FileRow(path, content.size, content.sha256, "computed", "payload")

    def _known_views(self) -> Iterator[str]:
        """The views that a killed run may have left of another request; none in a tree taken over."""
        if not self.run.is_in_place:
            yield from (f"{split}/{name}" for split in SPLITS for name in (LINES, SUMMARY))

    def _lines(self) -> dict[str, bytes]:
        splits = _by_split(self.plan.kept())
        return {
            f"{split}/{LINES}": b"".join(clip.text() for clip in clips) for split, clips in splits.items()
        }

    def _summaries(self) -> dict[str, bytes]:
        """Upstream's summary beside each JSONL that is built here, without the paths of this machine."""
        if self.plan.summary is None:
            return {}
        loader, drops = self.run.loader, self.plan.drops()
        filters = {
            "max_duration_s": loader.max_duration,
            "min_window_frames": max(loader.min_window_frames, loader.num_video_frames),
            "min_short_edge": loader.min_short_edge,
            "num_video_frames": loader.num_video_frames,
        }
        written = {}
        for split, clips in _by_split(self.plan.kept()).items():
            # A dropped clip belongs to no split: it is told once, beside the training clips.
            told_here = drops if split == SPLITS[0] else {}
            document = {
                **self.plan.summary,
                "records_kept": len(clips),
                "records_with_caption_json": sum(CAPTION_JSON in _first_window(clip) for clip in clips),
                "records_dropped": sum(told_here.values()),
                "drops_by_reason": told_here,
                "filters": filters,
            }
            written[f"{split}/{SUMMARY}"] = json.dumps(document, indent=2).encode() + b"\n"
        return written

    def _prompts(self, *, aligned: bool) -> Aligned:
        paths = [path for path in self.plan.extras if is_prompt(path)]
        if aligned:
            return align(paths, self.plan.extras, self.plan.locate)
        locate, extras = self.plan.locate, self.plan.extras
        return Aligned({path: Path(locate(extras[path])).read_bytes() for path in paths})

    def _view(self, path: str, data: bytes) -> FileRow:
        target = self.run.root / path
        with disk_errors(target):
            if not (target.is_file() and target.read_bytes() == data):
                target.parent.mkdir(parents=True, exist_ok=True)
                write_whole(target, data)
                sync_folder(target.parent)
        return FileRow(path, len(data), hashlib.sha256(data).hexdigest(), "computed", "view")

    def _consumption(self, lines: Mapping[str, bytes]) -> dict[str, Any]:
        headers, splits = self._headers(), dict[str, Any]()
        for split, clips in _by_split(self.plan.kept()).items():
            counts = Consumption(self.run.loader, self.tokens)
            for clip in clips:
                counts.take(clip.data(), headers.get(clip.path))
            splits[split] = counts.as_dict() | self._tokens_before(split, lines)
        trained = splits.get(SPLITS[0], {}).get("records_kept", 0)
        return {"samples": trained, "num_video_frames": self.run.loader.num_video_frames, "splits": splits}

    def _tokens_before(self, split: str, lines: Mapping[str, bytes]) -> dict[str, Any]:
        """The figures of an earlier run's tokenizer, where none is given now and the lines are the same."""
        if self.tokens is not None or self.before is None:
            return {}
        path = f"{split}/{LINES}"
        digests = {row.path: row.sha256 for row in self.before.files()}
        if digests.get(path) != hashlib.sha256(lines[path]).hexdigest():
            return {}
        known = self.before.document["consumption"].get("splits", {}).get(split, {})
        return {name: known[name] for name in ("captions_over_limit", "max_caption_tokens") if name in known}

    def _headers(self) -> dict[str, ClipHeader]:
        """What each clip's file states; a file whose header is broken is counted by its record."""
        root, options = self.run.root, self.run.options

        def one(clip: Clip) -> ClipHeader | None:
            try:
                return clip.header or read_header(root / clip.path)
            except PrepError:
                return None

        clips = [clip for clip in self.plan.kept() if clip.media]
        found = map_threads(
            lambda at: one(clips[at]), range(len(clips)), jobs=options.jobs, cancel=options.cancel
        )
        return {clips[at].path: header for at, header in found if header is not None}

    def _facts(self, consumption: Mapping[str, Any]) -> dict[str, Any]:
        run, plan = self.run, self.plan
        kept, request = len(plan.kept()), run.request(self.before)
        if not all("captions_over_limit" in counts for counts in consumption["splits"].values()):
            request["tokenizer"] = None
        inputs = {
            "recipe": run.recipe.sha256,
            "request": request,
            "sources": [source["sha256"] for source in plan.facts],
        }
        return {
            "prep_version": __version__,
            "name": run.root.name,
            "split": run.part.name,
            "kind": run.recipe.kind,
            "recipe": dict(run.recipe.document),
            "recipe_sha256": run.recipe.sha256,
            "request": request,
            "sources": plan.facts,
            "counts": {"rows": len(plan.clips), "kept": kept, "failed": len(plan.clips) - kept},
            "drops": plan.drops(),
            "consumption": dict(consumption),
            "details": {
                "files": {path: len(_by_split(plan.kept())[path.split("/")[0]]) for path in self._lines()}
            },
            "fingerprint": hashlib.sha256(canonical_json(inputs)).hexdigest(),
        }


def _by_split(clips: Sequence[Clip]) -> dict[str, list[Clip]]:
    groups = {split: [clip for clip in clips if clip.split == split] for split in SPLITS}
    return {split: members for split, members in groups.items() if members}


def _first_window(clip: Clip) -> Mapping[str, Any]:
    windows = clip.record.get("t2w_windows") or [{}]
    first: Mapping[str, Any] = windows[0]
    return first


def record_rows(plan: Plan, digests: Mapping[str, str]) -> Iterator[RecordRow]:
    """The records of a plan; `digests` are those of the videos that are there."""
    for clip in plan.clips:
        kept = not clip.reason
        yield RecordRow(
            row=clip.row,
            id=clip.uuid,
            split=clip.split,
            status="kept" if kept else "failed",
            reason=clip.reason,
            detail=clip.detail,
            source=clip.source,
            media=clip.path if kept and clip.media else None,
            media_sha256=digests.get(clip.source) if kept and clip.media else None,
            sha256=hashlib.sha256(clip.text()).hexdigest() if kept else None,
        )


def told(consumption: Mapping[str, Any]) -> list[str]:
    """What training will keep, a line or two for each split."""
    notes = []
    for split, counts in consumption.get("splits", {}).items():
        drops = {**counts["records_dropped"]}
        windows = counts["windows_dropped"]
        captions = ", ".join(f"{name} {count}" for name, count in counts["captions"].items()) or "none"
        text = (
            f"{split}: training keeps {counts['records_kept']} of {counts['records']} records and "
            f"{counts['windows_kept']} of {counts['windows']} windows; captions: {captions}; "
            f"{counts['frames']} frames, {counts['hours']} hours"
        )
        if "captions_over_limit" in counts:
            text += f"; {counts['captions_over_limit']} captions over {counts['max_caption_tokens']} tokens"
        notes.append(text)
        for noun, by_reason in (("record", drops), ("window", windows)):
            notes += [f"{split}: {counted(number, noun)} dropped: {why}" for why, number in by_reason.items()]
    return notes
