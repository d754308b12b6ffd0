"""The reader of the reasoning layout (contracts, section 6)."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from prep.documents import BrokenDocumentError
from prep.errors import PrepError
from prep.layouts.reasoning_qa import Sampling, conversation
from prep.layouts.reasoning_qa_checks import items_of
from prep.layouts.reasoning_qa_tree import media_roots
from prep.manifest import Manifest

__all__ = ["ReasoningReader"]


class ReasoningReader:
    """Message lists of the exposed samples, in upstream's order.

    A sample is a dict: `id` str, `messages` (what upstream hands to the chat template: optional system,
    user with the video's path and the question, assistant), `item` int (the raw item, from 0, over all
    files) and `form` ("answer" or "think"). Which item a sample shows is worked out, never listed. No
    file is opened before the first sample; a reader pickles without what it has read.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.root = manifest.root
        self.dataset_id = manifest.dataset_id
        self.sampling = Sampling.of(manifest.document["request"])
        self._document = {key: manifest.document[key] for key in ("details", "request", "split")}
        entries = manifest.document["details"]["annotations"]
        self._files = [str(entry["file"]) for entry in entries]
        self._starts = list(accumulate((entry["items"] for entry in entries), initial=0))
        self._items: dict[int, list[dict[str, Any]]] = {}
        self._roots: list[Path] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": {}, "_roots": None}

    def __len__(self) -> int:
        return self.sampling.exposed(self._starts[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1.

        Raises IndexError outside (negative indices too), PrepError for a file that cannot be read.
        """
        place, count = operator.index(index), len(self)
        if not 0 <= place < count:
            raise IndexError(f"sample {place} of {self.dataset_id}: there are {count}")
        raw, form = self.sampling.resolve(place)
        file = bisect_right(self._starts, raw) - 1
        item = self._loaded(file)[raw - self._starts[file]]
        video = os.path.join(self._media_roots()[file], item["video_id"])  # noqa: PTH118 - as upstream joins
        return {
            "id": f"{self._files[file]}/items/{raw - self._starts[file]}",
            "messages": conversation(item, video, form, self.sampling),
            "item": raw,
            "form": form,
        }

    def _loaded(self, file: int) -> list[dict[str, Any]]:
        if file not in self._items:
            path = self.root / self._files[file]
            try:
                items = items_of(path)
            except (OSError, KeyError, BrokenDocumentError) as error:
                raise _unreadable(path, str(error)) from error
            expected = self._starts[file + 1] - self._starts[file]
            if len(items) != expected:
                raise _unreadable(path, f"it has {len(items)} items, the manifest states {expected}")
            self._items[file] = items
        return self._items[file]

    def _media_roots(self) -> list[Path]:
        if self._roots is None:
            self._roots = media_roots(self.root, self._document)
        return self._roots


def _unreadable(path: Path, reason: str) -> PrepError:
    return PrepError(f"{path}: cannot be read: {reason}.", remedy="`prep validate` says what is wrong.")
