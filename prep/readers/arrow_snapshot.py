"""The reader of the snapshot layout (contracts, section 3)."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from prep.errors import PrepError
from prep.layouts.arrow_snapshot import Shards, messages
from prep.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ArrowSnapshotReader"]

_IMAGE = "image_0"


class ArrowSnapshotReader:
    """Messages with their image, in the order of the snapshot's rows.

    A sample is a dict: `id` str, `messages` (role and content; the first human turn has the image
    block), `image` uint8 [H, W, 3] RGB upright, `media` (the key that the block names → the encoded
    bytes). Nothing is opened before the first use; a reader pickles without its open shards.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.root = manifest.root
        self.dataset_id = manifest.dataset_id
        details, self.columns = manifest.document["details"], manifest.document["recipe"]["columns"]
        self._rows = [shard["rows"] for shard in details["shards"] if shard["rows"]]
        self._shards: Shards | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": None}

    def __len__(self) -> int:
        return sum(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1.

        Raises IndexError outside (negative indices too), PrepError for a row that cannot be read.
        """
        row = self.row(index)
        data = self._bytes(row, index)
        name = row.get(self.columns.get("id"))
        return {
            "id": str(name) if name else f"{index}",
            "messages": messages(row[self.columns["conversations"]], _IMAGE),
            "image": self._pixels(data, index),
            "media": {_IMAGE: data},
        }

    def row(self, index: int) -> dict[str, Any]:
        """The row as the source has it, its image encoded; raises as indexing does."""
        place, count = operator.index(index), len(self)
        if not 0 <= place < count:
            raise IndexError(f"sample {place} of {self.dataset_id}: there are {count}")
        return self._opened().row(place)

    def _opened(self) -> Shards:
        if self._shards is None:
            manifest = Manifest.load(self.root)
            files = manifest.files() if manifest is not None else []
            names = sorted(row.path for row in files if row.role == "payload")
            self._shards = Shards(self.root, names, self._rows)
        return self._shards

    def _bytes(self, row: dict[str, Any], index: int) -> bytes:
        image = row[self.columns["image"]]
        data = image.get("bytes") if image else None
        if not data:
            raise self._unreadable(index, "its image has no bytes")
        return bytes(data)

    def _pixels(self, data: bytes, index: int) -> NDArray[np.uint8]:
        from prep.images import rgb

        try:
            return rgb(data)
        except PrepError as error:
            raise self._unreadable(index, error.message.removesuffix(".")) from error

    def _unreadable(self, index: int, why: str) -> PrepError:
        return PrepError(
            f"sample {index} of {self.dataset_id}: {why}.", remedy="`prep validate` says what is wrong."
        )
