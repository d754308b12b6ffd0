"""Keys of a recipe that its schema does not have, each with the place and the near name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["UnknownKey", "unknown_keys"]

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key at a JSON pointer, and the keys that may stand there."""

    pointer: str
    key: str
    known: Sequence[str]

    @property
    def near(self) -> str | None:
        """The known key that is spelt most like it."""
        return next(iter(difflib.get_close_matches(self.key, self.known, n=1)), None)


def unknown_keys(schema: Schema, document: Any, pointer: str = "") -> Iterator[UnknownKey]:
    """The keys of `document` that the schema has not, outermost first.

    Of alternatives (`oneOf`) a key is known if one of them has it.
    """
    if not isinstance(document, Mapping):
        return
    forms = [schema, *schema.get("oneOf", ())]
    known = {key: value for form in forms for key, value in form.get("properties", {}).items()}
    others = [form["additionalProperties"] for form in forms if "additionalProperties" in form]
    open_to = next((other for other in others if isinstance(other, Mapping)), None)
    is_closed = bool(known) and open_to is None and False in others
    for key, value in document.items():
        if key in known:
            yield from unknown_keys(known[key], value, f"{pointer}/{key}")
        elif open_to is not None:
            yield from unknown_keys(open_to, value, f"{pointer}/{key}")
        elif is_closed:
            yield UnknownKey(pointer or "/", str(key), tuple(known))
