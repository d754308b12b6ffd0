"""nvidia-tao-daft's reader of video reasoning (contracts, section 6) over the samples that ours exposes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from prep.comparison import Side
from prep.layouts.reasoning_qa import Sampling
from prep.manifest import Manifest
from prep.readers.reasoning_qa import ReasoningReader
from prep.upstream.adapters.requirements import require
from prep.upstream.loading import upstream_errors

__all__ = ["DaftReasoning", "OurReasoning", "open_side", "our_side"]

_NEEDED = {"nvidia_tao_daft": "nvidia-tao-daft>=7"}
_CLASS = "TaoVlReasonV1_0CosmosRLConversationDataset"


def our_side(manifest: Manifest, *, index: str | None = None) -> Side:
    """Our reader, with the video's path taken out of the messages into a field of its own."""
    del index  # items have no windows
    return Side("ours", OurReasoning(ReasoningReader(manifest)), {"dataset_id": manifest.dataset_id})


def open_side(manifest: Manifest, *, index: str | None = None, ours: Any = None) -> Side:
    """tao-daft's reader over the same files; raises EnvironmentLacksError if it is not installed.

    No media root is given to it: it takes each file's folder, whatever the file itself says.
    """
    del index, ours
    require("tao-daft", _NEEDED)
    import importlib.metadata

    from nvidia_tao_daft.datasets import tao_vl_reason_v1_0 as module

    sampling = Sampling.of(manifest.document["request"])
    files = [str(manifest.root / entry["file"]) for entry in manifest.document["details"]["annotations"]]
    with upstream_errors("open the annotation files"):
        dataset = getattr(module, _CLASS)(
            files,
            system_prompt=sampling.system_prompt,
            vision_kwargs=dict(sampling.vision),
            response_mode=sampling.mode,
        )
    version = importlib.metadata.version("nvidia-tao-daft")
    facts = {"loaded": f"nvidia-tao-daft {version}", "reader": f"{module.__name__}.{_CLASS}"}
    return Side("tao-daft", DaftReasoning(dataset, sampling), facts)


class OurReasoning:
    """`ReasoningReader` with the field `video`, and the item and form as identity."""

    def __init__(self, reader: ReasoningReader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.reader[index]
        messages, video = _apart(sample["messages"])
        return {
            "id": _identity(sample["item"], sample["form"]),
            "messages": messages,
            "video": video,
            "item": sample["item"],
            "form": sample["form"],
        }


class DaftReasoning:
    """tao-daft's samples in the order in which ours are exposed.

    Its own order of `hybrid` is all answers, then all reasonings, and it has no stride, offset or limit:
    a sample is found by its raw item and form.
    """

    def __init__(self, dataset: Any, sampling: Sampling) -> None:
        self._dataset = dataset
        self._sampling = sampling
        self._items = len(dataset) // 2 if sampling.mode == "hybrid" else len(dataset)

    def __len__(self) -> int:
        return self._sampling.exposed(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1; raises IndexError outside, PrepError where tao-daft fails."""
        place = operator.index(index)
        if not 0 <= place < len(self):
            raise IndexError(f"sample {place}: there are {len(self)}")
        item, form = self._sampling.resolve(place)
        behind = self._items if self._sampling.mode == "hybrid" and form == "think" else 0
        with upstream_errors(f"read item {item}"):
            conversation = self._dataset[item + behind]
        messages, video = _apart(conversation)
        return {
            "id": _identity(item, form),
            "messages": messages,
            "video": video,
            "item": item,
            "form": form,
        }


def _identity(item: int, form: str) -> str:
    return f"{item}:{form}"


def _apart(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with `<video>` for the video's path, and the path; equal texts stay comparable."""
    paths: list[str] = []

    def block(each: Mapping[str, Any]) -> dict[str, Any]:
        if "video" not in each:
            return dict(each)
        paths.append(str(each["video"]))
        return {**each, "video": "<video>"}

    def content(value: Any) -> Any:
        return [block(each) for each in value] if isinstance(value, list) else value

    told = [{**message, "content": content(message["content"])} for message in messages]
    return told, " ".join(paths)
