"""Public datasets into the exact layouts that training reads, checked before a GPU is rented.

The public names are loaded when first used, so that `import prep` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prep.comparison import diff
    from prep.environment import env
    from prep.errors import PrepError
    from prep.findings import Finding, Report
    from prep.preparation import Options, Result, adopt, failures, prepare
    from prep.readers import open
    from prep.validation import validate

__all__ = [
    "Finding",
    "Options",
    "PrepError",
    "Report",
    "Result",
    "__version__",
    "adopt",
    "diff",
    "env",
    "failures",
    "open",
    "prepare",
    "validate",
]

__version__ = "0.1.0"

_HOMES = {
    "Finding": "prep.findings",
    "Options": "prep.preparation",
    "PrepError": "prep.errors",
    "Report": "prep.findings",
    "Result": "prep.preparation",
    "adopt": "prep.preparation",
    "diff": "prep.comparison",
    "env": "prep.environment",
    "failures": "prep.preparation",
    "open": "prep.readers",
    "prepare": "prep.preparation",
    "validate": "prep.validation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'prep' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
