"""Upstream's random choices, taken over: it is handed ours, and what it chose from is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from prep.errors import PrepError

__all__ = ["Draws"]


class Draws:
    """Stands for the module `random` inside one module of upstream.

    `wanted` is what our reader chose; it is chosen if it is a candidate, else the first candidate is.
    `candidates` are the options of each choice since `hand_over` began. Seeded generators stay
    Python's own. Another index is never drawn: where upstream would silently take another sample,
    PrepError is raised.
    """

    Random = random.Random

    def __init__(self) -> None:
        self.wanted: Any = None
        self.candidates: list[list[Any]] = []

    def choice(self, options: Sequence[Any]) -> Any:
        """Our choice of the options."""
        self.candidates.append(list(options))
        return self.wanted if self.wanted in options else options[0]

    def choices(
        self, options: Sequence[Any], weights: Sequence[float] | None = None, *, k: int = 1
    ) -> list[Any]:
        """Our choice, `k` times; the weights say which options could be drawn at all."""
        possible = [
            each
            for each, weight in zip(options, weights or [1.0] * len(options), strict=True)
            if weight > 0.0
        ]
        if not possible:
            raise PrepError("Upstream draws from options that all have the weight 0.")
        return [self.choice(possible)] * k

    def randint(self, first: int, last: int) -> int:
        """Refused: upstream draws a whole number only to replace a sample that it could not read."""
        raise PrepError(
            f"Upstream could not read the sample, and would take one of {first} to {last} instead."
        )

    @contextmanager
    def hand_over(self, module: ModuleType, wanted: Any) -> Iterator[None]:
        """While this lasts, the module draws what `wanted` says."""
        own = module.random
        self.wanted, self.candidates = wanted, []
        module.random = self  # type: ignore[attr-defined]
        try:
            yield
        finally:
            module.random = own  # type: ignore[attr-defined]
