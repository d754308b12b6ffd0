"""Processors that make messages: VideoPhy-2, LLaVA-OneVision, video reasoning (contracts, 2, 3 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from prep.clip_frames import sampled_frames
from prep.dataflow.base import LoaderError, RawItemProcessor
from prep.dataflow.roles.chat import ChatInputs, with_media

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ReasoningMessages", "ShareGPTToMessages", "VideoPhy2Frames"]

_IMAGE: Final = "image_0"


class VideoPhy2Frames(RawItemProcessor):
    """Conversations with their clip's frames in place of its name.

    An item is a sample of the conversations reader: `texts`, the turns, and `media`, the key that a block
    names → the file's bytes. A video block becomes ``{"type": "video", "video": frames, "fps": fps}``, the
    frames PIL images in RGB: `fps` a second, and at most `max_frames`, chosen as upstream chooses them. An
    image block gets its image.

    What is called of `processor`, and what a sample is, says ChatInputs. `rate` is which rate stands in the
    block: ``"reported"``, upstream's at the locked commit, where thinning to `max_frames` leaves it as it
    was, or ``"true"``, that of the frames that are there.
    """

    def __init__(
        self,
        processor: Any = None,
        max_frames: int = 32,
        fps: float = 2.0,
        *,
        rate: Literal["reported", "true"] = "reported",
        ignore_index: int = -100,
    ) -> None:
        if max_frames < 1 or fps <= 0:
            raise LoaderError(
                f"max_frames is {max_frames} and fps is {fps}; expected at least 1 and more than 0."
            )
        self.max_frames, self.fps, self.rate = max_frames, fps, rate
        self.inputs = ChatInputs(processor, ignore_index)

    def process(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Raises KeyError for a key that is not among the media, PrepError for a clip without frames."""
        return self.inputs.of(self.messages(item))

    def messages(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages of an item, as the processor is given them."""
        kinds = {
            block[block["type"]]: block["type"]
            for turn in item["texts"]
            if not isinstance(turn["content"], str)
            for block in turn["content"]
            if block["type"] in ("video", "image") and isinstance(block[block["type"]], str)
        }
        name = str(item.get("path") or item.get("id") or "a clip")
        media = {key: self._block(kind, item["media"][key], name) for key, kind in kinds.items()}
        return with_media(item["texts"], media)

    def _block(self, kind: str, data: bytes, name: str) -> dict[str, Any]:
        if kind == "image":
            return {"type": "image", "image": _picture(data)}
        clip = sampled_frames(data, max_frames=self.max_frames, fps=self.fps, name=name)
        return {
            "type": "video",
            "video": clip.frames,
            "fps": clip.fps if self.rate == "reported" else clip.true_fps,
        }


class ShareGPTToMessages(RawItemProcessor):
    """LLaVA-OneVision rows as messages with the image in the first human turn.

    An item is a row as the dataset has it, `conversations` (a list of `from` and `value`) and `image` (an
    image of PIL, or encoded as ``{"bytes": …}`` or bytes; None for a row without), or a sample of the
    snapshot reader. The image block becomes ``{"type": "image", "image": image}``, an image of PIL in RGB,
    upright. What is called of `processor`, and what a sample is, says ChatInputs.
    """

    def __init__(self, processor: Any = None, *, ignore_index: int = -100) -> None:
        self.inputs = ChatInputs(processor, ignore_index)

    def process(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Raises PrepError for an image that cannot be decoded."""
        return self.inputs.of(self.messages(item))

    def messages(self, item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages of an item, as the processor is given them."""
        from prep.layouts.arrow_snapshot import messages

        picture = _picture(item.get("image"))
        media = {_IMAGE: {"type": "image", "image": picture}}
        if "messages" in item:
            return with_media(item["messages"], media)
        return with_media(messages(item["conversations"], _IMAGE if picture is not None else None), media)


class ReasoningMessages(RawItemProcessor):
    """Exposed samples of the reasoning reader, which are messages already: the video block holds a path.

    The messages are handed on in upstream's form; the processor opens the video. What is called of it, and
    what a sample is, says ChatInputs.
    """

    def __init__(self, processor: Any = None, *, ignore_index: int = -100) -> None:
        self.inputs = ChatInputs(processor, ignore_index)

    def process(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Raises what the processor raises."""
        # Anew, since upstream's processors change the messages that they are given.
        return self.inputs.of(with_media(item["messages"], {}))


def _picture(image: Any) -> Image | None:
    """An image of a row, in whichever form, as PIL's in RGB."""
    from PIL import Image

    from prep.images import rgb

    if image is None or isinstance(image, Image.Image):
        return image if image is None else image.convert("RGB")
    data: Any = image.get("bytes") if isinstance(image, Mapping) else image
    return Image.fromarray(rgb(data) if isinstance(data, bytes) else data)
