"""Batches packed in the order of the stream, under a budget of tokens or a count of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from prep.dataflow.base import SampleBatcher
from prep.log import logger

__all__ = ["SequentialPackingBatcher"]

_VIDEO = "[channel, frame, height, width]"
_Sized = tuple[dict[str, Any], int]


class SequentialPackingBatcher(SampleBatcher):
    """Samples in stream order, until the next one would reach the budget (contracts, section 7).

    Exactly one of two must be given: `max_sequence_length`, the tokens that a batch stays below, or
    `max_samples_per_batch`, a plain count, for which no sample is sized. A sample that would reach the
    budget waits for the next batch, and later ones may take its place; once `lookahead_limit` samples
    wait, the batch is done (0: every batch has one sample, as upstream). A sample that reaches the
    budget by itself is logged as an error and discarded.

    The rest says what a sample costs: the tokenizer's factors and `patch_spatial` for images and video,
    `sound_latent_fps` (latents a second; 0: sound costs nothing) and `audio_sample_rate` in Hz for sound.
    Raises ValueError for wrong parameters.
    """

    def __init__(
        self,
        max_sequence_length: int | None = None,
        tokenizer_spatial_compression_factor: int = 16,
        tokenizer_temporal_compression_factor: int = 4,
        patch_spatial: int = 2,
        max_samples_per_batch: int | None = None,
        lookahead_limit: int = 10,
        sound_latent_fps: float = 0,
        audio_sample_rate: int = 48000,
    ) -> None:
        self.max_sequence_length = max_sequence_length
        self.tokenizer_spatial_compression_factor = tokenizer_spatial_compression_factor
        self.tokenizer_temporal_compression_factor = tokenizer_temporal_compression_factor
        self.patch_spatial = patch_spatial
        self.max_samples_per_batch = max_samples_per_batch
        self.lookahead_limit = lookahead_limit
        self.sound_latent_fps = sound_latent_fps
        self.audio_sample_rate = audio_sample_rate
        self._check()
        own = type(self).batches is SequentialPackingBatcher.batches
        self.draws_exactly = max_samples_per_batch is not None and own

    def _check(self) -> None:
        if (self.max_sequence_length is None) == (self.max_samples_per_batch is None):
            raise ValueError(
                "Exactly one of max_sequence_length and max_samples_per_batch must be given, but they are "
                f"{self.max_sequence_length} and {self.max_samples_per_batch}. Give the first for a budget "
                "of tokens, the second for a count of samples, and None for the other."
            )
        for name, value in self._parameters().items():
            least = 0 if name == "lookahead_limit" else 1
            if value is not None and name != "sound_latent_fps" and value < least:
                raise ValueError(f"{name} must be at least {least}, but it is {value}. Give a larger one.")

    def _parameters(self) -> dict[str, Any]:
        return {
            "max_sequence_length": self.max_sequence_length,
            "tokenizer_spatial_compression_factor": self.tokenizer_spatial_compression_factor,
            "tokenizer_temporal_compression_factor": self.tokenizer_temporal_compression_factor,
            "patch_spatial": self.patch_spatial,
            "max_samples_per_batch": self.max_samples_per_batch,
            "lookahead_limit": self.lookahead_limit,
            "sound_latent_fps": self.sound_latent_fps,
            "audio_sample_rate": self.audio_sample_rate,
        }

    def batches(self, samples: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The batches of a stream.

        What is drawn and not delivered at a yield are the samples that wait, at most `lookahead_limit`,
        in drawing order; they come first again.
        """
        # Not a generator: its frame would hold the sample that it gave last.
        drawn = map(self._sized, samples)
        waiting: list[_Sized] = []
        while True:
            # A batch ends by looking ahead only after all that waited were looked at: the first of them
            # is taken or discarded, so that fewer than the limit can wait again. None is left behind.
            group, waiting, ended = self._fill(chain(waiting, drawn))
            if group:
                yield group
            del group  # while the next samples are made, the batch is the receiver's alone
            if ended and not waiting:
                return

    def _sized(self, sample: dict[str, Any]) -> _Sized:
        return sample, 0 if self.max_sequence_length is None else self.sample_size(sample)

    def _fill(self, stream: Iterator[_Sized]) -> tuple[list[dict[str, Any]], list[_Sized], bool]:
        """One batch, who waits after it, and whether the stream has ended."""
        group: list[dict[str, Any]] = []
        waiting: list[_Sized] = []
        room: float = float("inf") if self.max_sequence_length is None else self.max_sequence_length
        for sample, size in stream:
            if size < room:
                group.append(sample)
                room -= size
            elif group:
                waiting.append((sample, size))
            else:
                self._discard_oversized(sample, size)
                continue
            if len(waiting) >= self.lookahead_limit or len(group) == self.max_samples_per_batch:
                self._measure(room)
                return group, waiting, False
        self._measure(room)
        return group, waiting, True

    def _measure(self, room: float) -> None:
        budget = self.max_sequence_length
        self.measured = None if budget is None else (budget - int(room), budget)

    def _discard_oversized(self, sample: dict[str, Any], size: int) -> None:
        logger.error(
            "a sample of {} tokens does not fit below max_sequence_length={}: "
            "raise the budget, or leave such samples out before",
            size,
            self.max_sequence_length,
        )
        self.discard(sample, "oversized")

    def sample_size(self, sample: dict[str, Any]) -> int:
        """Tokens of one sample: text and its end, images or video, actions, sound.

        `text_token_ids` is a list of tokens, [tokens], [1, tokens], or a list with one such tensor. An
        image is [channel, height, width], a video [channel, frame, height, width], each alone or in a
        list. An action is [step, dimension]. Of several sound clips the first counts.
        Raises KeyError if the sample has no text, or neither `images` nor `video`.
        """
        try:
            tokens = 1 + _text_tokens(sample["text_token_ids"])
            key = "images" if "images" in sample else "video"
            media = sample[key]
        except KeyError:
            raise KeyError(_lacking(sample)) from None
        tokens += self._latents(media if isinstance(media, list) else (media,), key == "images")
        if "action" in sample:
            tokens += _action_steps(sample["action"])
        if self.sound_latent_fps > 0 and "sound" in sample:
            tokens += self._sound_latents(sample["sound"])
        return tokens

    def _latents(self, media: Iterable[Any], still: bool) -> int:
        side = self.tokenizer_spatial_compression_factor * self.patch_spatial
        pace = self.tokenizer_temporal_compression_factor
        tokens, frames = 0, 1
        for each in media:
            try:
                if still:
                    _, height, width = each.shape
                else:
                    _, frames, height, width = each.shape
            except (AttributeError, ValueError):
                raise ValueError(_misshapen(each, still)) from None
            tokens += (height // side) * (width // side) * (1 + (frames - 1) // pace) + 2
        return tokens

    def _sound_latents(self, sound: Any) -> int:
        while isinstance(sound, list) and sound:
            sound = sound[0]
        if not hasattr(sound, "shape"):
            return 0
        seconds = sound.shape[-1] / self.audio_sample_rate
        return int(seconds * self.sound_latent_fps)

    def load(self, group: list[dict[str, Any]]) -> tuple[int, int] | None:
        """Tokens of a batch's samples, and the budget; None where batches are counted, not measured."""
        if self.max_sequence_length is None:
            return None
        return sum(self.sample_size(sample) for sample in group), self.max_sequence_length

    def fingerprint(self) -> Mapping[str, Any]:
        """The batcher's name and its parameters."""
        return {**super().fingerprint(), **self._parameters()}


def _text_tokens(text: Any) -> int:
    if isinstance(text, list):
        # A list of tokens, or of tensors, of which the first counts; a single token may be a scalar.
        if text and not isinstance(text[0], int) and (shape := getattr(text[0], "shape", ())):
            return shape[0]  # type: ignore[no-any-return]
        return len(text)
    shape = getattr(text, "shape", None)
    if shape is None:
        return len(text)
    return shape[0] if len(shape) == 1 else shape[1]  # type: ignore[no-any-return]


def _action_steps(action: Any) -> int:
    if isinstance(action, list):
        return sum(part.shape[0] for part in action if part is not None)
    return 0 if action is None else action.shape[0]


def _lacking(sample: dict[str, Any]) -> str:
    wanted = "neither 'images' nor 'video'" if "text_token_ids" in sample else "no 'text_token_ids'"
    keys = ", ".join(sorted(each for each in map(str, sample) if not each.startswith("_")))
    return (
        f"a sample has {wanted}, by which sequential packing sizes it; its keys are {keys}. Add what is "
        "missing, give max_samples_per_batch instead of a budget, or override sample_size"
    )


def _misshapen(media: Any, still: bool) -> str:
    key, wanted = ("images", "[channel, height, width]") if still else ("video", _VIDEO)
    shape = getattr(media, "shape", None)
    found = type(media).__name__ if shape is None else f"shape {list(shape)}"
    return f"{key!r} of a sample must be {wanted}, but it is {found}; make it so in the processor"
