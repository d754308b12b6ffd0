"""The processor for datasets whose items are samples already."""

from __future__ import annotations

from typing import Any

from prep.dataflow.base import RawItemProcessor

__all__ = ["IdentityProcessor"]


class IdentityProcessor(RawItemProcessor):
    """Gives each item as it is."""

    def process(self, item: Any) -> Any:
        """`item` itself."""
        return item
