"""A comparison as text for people and as JSON for programs (`schemas/diff.schema.json`)."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from prep.comparison import Comparison, FieldTally, Lone, Side
from prep.differences import Shape
from prep.manifest import short_id
from prep.progress import counted

__all__ = ["as_dict", "render_json", "render_text"]

_WIDTH: Final = 100


def as_dict(found: Comparison) -> dict[str, Any]:
    """The comparison as its schema has it."""
    return {
        "schema": "prep-diff/1",
        "subject": found.subject,
        "status": found.exit_status,
        "samples": found.samples,
        "seed": found.seed,
        "ours": _side(found.ours),
        "reference": {**_side(found.reference), "notes": dict(found.reference.notes)},
        "index": asdict(found.order),
        "fields": [_field(tally) for tally in found.fields.values()],
        "only_one_side": [asdict(lone) for lone in found.lone.values()],
        "unreadable": {"count": found.unreadable_count, "places": found.unreadable},
        "picture": found.picture,
        "environment": dict(found.environment),
    }


def _side(side: Side) -> dict[str, Any]:
    return {"name": side.name, "facts": dict(side.facts)}


def _field(tally: FieldTally) -> dict[str, Any]:
    return {
        "field": tally.name,
        "tolerance": tally.tolerance,
        "intended": tally.intended,
        "compared": tally.compared,
        "identical": tally.identical,
        "differing": tally.differing,
        "outside": tally.outside,
        "values": tally.values,
        "values_differing": tally.values_differing,
        "max_abs_difference": "infinite" if tally.maximum == math.inf else tally.maximum,
        "ours": _shape(tally.ours),
        "reference": _shape(tally.reference),
        "first": asdict(tally.first) if tally.first is not None else None,
    }


def _shape(shape: Shape | None) -> dict[str, Any] | None:
    return None if shape is None else {"dtype": shape.dtype, "shape": list(shape.shape)}


def render_json(found: Comparison) -> str:
    """The comparison as JSON, ASCII only, with a newline at its end."""
    return json.dumps(as_dict(found), indent=2) + "\n"


def render_text(found: Comparison) -> str:
    """The comparison for people: the sides, the order, a line a field, what differs, the verdict."""
    blocks = [
        list(_heading(found)),
        list(_order_lines(found)),
        list(_table(list(found.fields.values()))),
        list(_first_lines(found)),
        list(_apart_lines(found)),
        list(_environment_lines(found)),
        [_verdict(found)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heading(found: Comparison) -> Iterator[str]:
    for side in (found.ours, found.reference):
        dataset_id = side.facts.get("dataset_id")
        told = short_id(dataset_id) if dataset_id else str(side.facts.get("loaded", ""))
        yield from _wrapped(f"{side.name}: {told}", "      ")
    yield f"compared: {counted(found.samples, 'sample')}, drawn with seed {found.seed}"


def _order_lines(found: Comparison) -> Iterator[str]:
    order = found.order
    yield f"length: {order.ours} ours, {order.reference} reference{_unlike(order.ours != order.reference)}"
    if order.spans is not None:
        spans = order.spans
        yield f"spans: {spans['ours']} ours, {spans['reference']} reference{_unlike(not spans['same'])}"
        if spans["first"]:
            yield f"  first: {spans['first']}"
    same = order.compared - order.differing
    yield f"identities: {same} of {order.compared} the same{_unlike(bool(order.differing))}"
    if order.first is not None:
        first = order.first
        yield f"  first: sample {first['index']} is {first['ours']} ours, {first['reference']} reference"


def _unlike(differs: bool) -> str:
    return "  DIFFERENT" if differs else ""


def _table(tallies: list[FieldTally]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("field", "identical", "outside", "max |difference|", "ours", "reference", "")
    ]
    rows += [_row(tally) for tally in tallies]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        yield "  ".join(f"{text:<{width}}" for text, width in zip(row, [*widths, 0], strict=True)).rstrip()


def _row(tally: FieldTally) -> tuple[str, ...]:
    return (
        tally.name,
        f"{tally.identical}/{tally.compared}",
        str(tally.outside),
        "-" if tally.maximum is None else f"{tally.maximum:.6g}",
        str(tally.ours),
        str(tally.reference),
        "intended" if tally.outside and tally.intended else "DIFFERENT" if tally.outside else "",
    )


def _first_lines(found: Comparison) -> Iterator[str]:
    for tally in found.fields.values():
        first = tally.first
        if first is None:
            continue
        share = f"{tally.values_differing} of {counted(tally.values, 'value')} not equal"
        yield f"{tally.name}: first in sample {first.index} ({first.identity}), {share}"
        yield from _wrapped(f"  ours{first.place and f' at {first.place}'}: {first.ours}", "    ")
        yield from _wrapped(f"  reference: {first.reference}", "    ")
    if found.picture:
        yield f"side by side (ours, reference, difference): {found.picture}"
    for place in found.unreadable:
        yield from _wrapped(f"not read: {place['side']}, sample {place['index']}: {place['message']}", "    ")


def _apart_lines(found: Comparison) -> Iterator[str]:
    for lone in found.lone.values():
        yield from _wrapped(_lone_text(lone), "    ")
    for tally in found.fields.values():
        if tally.intended:
            seen = f"{tally.outside} of {tally.compared} differ" if tally.outside else "yet nothing differs"
            yield from _wrapped(f"intended by the recipe: {tally.name}, {seen}: {tally.intended}", "    ")


def _lone_text(lone: Lone) -> str:
    where = f"only {lone.side} has {lone.key}, in {counted(lone.samples, 'sample')}"
    return f"{where}: {lone.intended}" if lone.intended else f"{where}  DIFFERENT"


def _environment_lines(found: Comparison) -> Iterator[str]:
    facts = found.environment
    if not facts:
        return
    packages = [f"{name} {version}" for name, version in facts["packages"].items()]
    decoders = [f"FFmpeg of {name} {version}" for name, version in facts["ffmpeg"].items()]
    base = [f"prep {facts['prep']}", f"Python {facts['python']}", facts["machine"], facts["cpu"]]
    yield from _wrapped("both sides ran on " + ", ".join([*base, *packages, *decoders]), "    ")


def _verdict(found: Comparison) -> str:
    if not found.exit_status:
        return "no difference outside the tolerances"
    unlike = [tally.name for tally in found.fields.values() if not tally.is_clean]
    unlike += [lone.key for lone in found.lone.values() if not lone.intended]
    if not found.order.is_clean:
        unlike.insert(0, "the order of the samples")
    if found.unreadable_count:
        unlike.append(counted(found.unreadable_count, "sample") + " that cannot be read")
    return f"DIFFERENT: {', '.join(unlike)}"


def _wrapped(text: str, rest: str) -> list[str]:
    plain = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return textwrap.wrap(plain, _WIDTH, subsequent_indent=rest, break_on_hyphens=False) or [plain]
