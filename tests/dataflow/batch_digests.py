"""A digest over a batch's structure, types and values, whatever its keys' order."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def written(value: Any) -> Any:
    """`value` as JSON: a tensor by type, shape and values, a list apart from a tuple, others by repr."""
    if hasattr(value, "dtype"):
        return [type(value).__name__, str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, dict):
        return {str(key): written(each) for key, each in value.items()}
    if isinstance(value, list):
        return ["list", *map(written, value)]
    return repr(value)


def batch_digest(batches: list[Any]) -> str:
    return hashlib.sha256(json.dumps(written(batches), sort_keys=True).encode()).hexdigest()
