"""Two readers, field by field: the samples at the same places of both, and their order.

The public function is `prep.diff`. One side is ours, the other a reference: upstream's own dataset
class, lerobot, or another prepared directory (`prep.upstream.adapters`). Nothing is written into
either tree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep.differences import Shape, compare_values, describe
from prep.errors import PrepError, UsageError
from prep.readers import Reader

__all__ = ["Comparison", "FieldTally", "Side", "compare", "diff", "identity_text"]

_PLACES_KEPT = 20


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its reader, its name, and the facts that the report keeps of it.

    `notes` say, by key, what a reference cannot give, and why.
    """

    name: str
    reader: Reader
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class First:
    """The first sample whose field lies outside the tolerance: where, and both values there."""

    index: int
    identity: str
    place: str
    ours: str
    reference: str


@dataclass(slots=True)
class FieldTally:
    """What was found of one field over all samples.

    `differing` counts samples whose bytes differ, `outside` those that differ by more than the
    tolerance (or in dtype or shape); `values_differing` of `values` single numbers are not equal.
    """

    name: str
    tolerance: float = 0.0
    intended: str = ""
    compared: int = 0
    identical: int = 0
    differing: int = 0
    outside: int = 0
    values: int = 0
    values_differing: int = 0
    maximum: float | int | None = None
    ours: Shape | None = None
    reference: Shape | None = None
    first: First | None = None

    def add(self, index: int, identity: str, ours: object, reference: object) -> bool:
        """Compare one sample's values; whether it is the first that lies outside the tolerance."""
        found = compare_values(ours, reference, self.tolerance)
        self.compared += 1
        self.values += found.values
        self.values_differing += found.differing
        self.identical += found.identical
        self.differing += not found.identical
        self.outside += not found.within
        if found.maximum is not None:
            self.maximum = found.maximum if self.maximum is None else max(self.maximum, found.maximum)
        is_first = not found.within and self.first is None
        if self.ours is None or is_first:
            self.ours, self.reference = describe(ours), describe(reference)
        if is_first:
            self.first = First(index, identity, found.place, found.ours, found.reference)
        return is_first

    @property
    def is_clean(self) -> bool:
        """Whether nothing lies outside the tolerance, or all of it is intended."""
        return not self.outside or bool(self.intended)


@dataclass(slots=True)
class Lone:
    """A key that only one side has, in so many samples; `intended` is the recipe's or adapter's reason."""

    side: str
    key: str
    samples: int = 0
    intended: str = ""


@dataclass(slots=True)
class Order:
    """How the two indices agree: lengths, spans where both sides have them, identities of the samples."""

    ours: int
    reference: int
    spans: Mapping[str, Any] | None = None
    compared: int = 0
    differing: int = 0
    first: Mapping[str, Any] | None = None

    def add(self, index: int, ours: str, reference: str) -> None:
        """Compare the identities of one place."""
        self.compared += 1
        if ours != reference:
            self.differing += 1
            self.first = self.first or {"index": index, "ours": ours, "reference": reference}

    @property
    def is_clean(self) -> bool:
        """Whether both indices have the same length, spans and samples."""
        return self.ours == self.reference and not self.differing and (self.spans or {}).get("same", True)


@dataclass(slots=True)
class Comparison:
    """What `diff` found: the order of the samples, each field, lone keys, and what could not be read."""

    subject: str
    ours: Side
    reference: Side
    seed: int
    order: Order
    environment: Mapping[str, Any] = field(default_factory=dict)
    fields: dict[str, FieldTally] = field(default_factory=dict)
    lone: dict[tuple[str, str], Lone] = field(default_factory=dict)
    unreadable: list[dict[str, Any]] = field(default_factory=list)
    unreadable_count: int = 0
    samples: int = 0
    picture: str = ""
    intended: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """1 if anything differs outside the tolerances that the recipe doesn't declare, else 0."""
        clean = (
            self.order.is_clean
            and not self.unreadable_count
            and all(tally.is_clean for tally in self.fields.values())
            and all(lone.intended for lone in self.lone.values())
        )
        return 0 if clean else 1


def diff(
    directory: str | Path,
    reference: str | Path,
    *,
    samples: int = 200,
    seed: int = 0,
    fields: Sequence[str] = (),
    atol: Mapping[str, float] | None = None,
    png: Path | None = None,
    index: str | None = None,
    model_input: bool = False,
    on_sample: Callable[[], None] = lambda: None,
) -> Comparison:
    """Compare the dataset at `directory` with a reference, on samples drawn by `seed`.

    `reference` is `cosmos`, `lerobot`, `tao-daft` or another prepared directory. `fields` restricts
    the comparison, `atol` gives a field's tolerance (0 where it gives none), `index` names a window index
    where a dataset has several, `model_input` compares what a model is given of robot windows, `png`
    gets the first differing picture of both sides. Raises UsageError, PrepError, and
    EnvironmentLacksError where the reference is not installed.
    """
    from prep.upstream.adapters import open_sides
    from prep.versions import environment

    ours, other, intended = open_sides(Path(directory), reference, index=index, model_input=model_input)
    return compare(
        ours,
        other,
        subject=str(directory),
        samples=samples,
        seed=seed,
        fields=fields,
        atol=atol or {},
        intended=intended,
        png=png,
        on_sample=on_sample,
        environment=environment,
    )


def compare(
    ours: Side,
    reference: Side,
    *,
    subject: str = "",
    samples: int = 200,
    seed: int = 0,
    fields: Sequence[str] = (),
    atol: Mapping[str, float] | None = None,
    intended: Mapping[str, str] | None = None,
    png: Path | None = None,
    on_sample: Callable[[], None] = lambda: None,
    environment: Callable[[], Mapping[str, Any]] = dict,
) -> Comparison:
    """Compare two sides. Raises UsageError if there is nothing to compare or a field is not known."""
    if png is not None and png.suffix.lower() != ".png":
        raise UsageError(f"{png} is no name of a PNG file.", remedy="Let the name end with .png.")
    lengths = len(ours.reader), len(reference.reader)
    result = Comparison(
        subject,
        ours,
        reference,
        seed,
        Order(*lengths, spans=_spans(ours, reference)),
        intended=intended or {},
    )
    places = _places(min(lengths), samples, seed)
    if not places:
        raise UsageError(
            f"There is no sample to compare: {ours.name} has {lengths[0]}, {reference.name} {lengths[1]}.",
            remedy="Give a reference of the same dataset."
            if max(lengths)
            else "It is empty: take another --index, or prepare it with more data.",
        )
    run = _Run(result, tuple(fields), dict(atol or {}), png)
    for place in places:
        run.add(place)
        on_sample()
    run.finish()
    result.environment = environment()
    return result


def _places(count: int, wanted: int, seed: int) -> list[int]:
    """So many places of 0 to count - 1, ascending: a reader in order decodes each frame once."""
    if wanted >= count:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), wanted))


def _spans(ours: Side, reference: Side) -> dict[str, Any] | None:
    """Whether both sides run through the same spans; None where one has none.

    A reader's `spans()` gives rows (dataset index, episode, first row, windows), in order.
    """
    both = [getattr(side.reader, "spans", None) for side in (ours, reference)]
    if None in both:
        return None
    first, second = ([tuple(map(int, span)) for span in spans()] for spans in both if spans is not None)
    unequal = (at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    at = next(unequal, min(len(first), len(second)))
    same = first == second
    told = None if same else {"span": at, "ours": _at(first, at), "reference": _at(second, at)}
    return {"ours": len(first), "reference": len(second), "same": same, "first": told}


def _at(spans: list[tuple[int, ...]], place: int) -> list[int] | None:
    return list(spans[place]) if place < len(spans) else None


def identity_text(reader: Reader, index: int, sample: Mapping[str, Any]) -> str:
    """What names a sample on every machine: the reader's `identity(index)`, else the sample's `id`."""
    named = getattr(reader, "identity", None)
    if named is not None:
        identity = named(index)
        return identity if isinstance(identity, str) else ":".join(map(str, identity))
    return str(sample.get("id", index))


class _Run:
    """Goes from sample to sample and fills a comparison."""

    def __init__(
        self, result: Comparison, fields: tuple[str, ...], atol: dict[str, float], png: Path | None
    ) -> None:
        self.result = result
        self.fields = fields
        self.atol = atol
        self.png = png
        self.seen: set[str] = set()

    def add(self, index: int) -> None:
        """Read one place of both sides and compare."""
        ours = self._read(self.result.ours, "ours", index, None)
        reference = self._read(self.result.reference, "reference", index, ours)
        if ours is None or reference is None:
            return
        self.result.samples += 1
        names = [
            identity_text(side.reader, index, sample)
            for side, sample in ((self.result.ours, ours), (self.result.reference, reference))
        ]
        self.result.order.add(index, names[0], names[1])
        self.seen.update(ours, reference)
        for key in self._wanted(dict.fromkeys([*ours, *reference])):
            if key in ours and key in reference:
                self._compare(key, index, names[0], ours[key], reference[key])
            else:
                self._lone("ours" if key in ours else "reference", key)

    def finish(self) -> None:
        """Refuse fields and tolerances that no sample has."""
        unknown = [name for name in (*self.fields, *self.atol) if self.seen and name not in self.seen]
        if unknown:
            raise UsageError(
                f"No sample has a field {unknown[0]!r}.", remedy=f"There are: {', '.join(sorted(self.seen))}."
            )

    def _wanted(self, keys: Mapping[str, Any]) -> Iterator[str]:
        return (key for key in keys if not self.fields or key in self.fields)

    def _read(
        self, side: Side, name: str, index: int, beside: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        # A reference that draws is handed our choice, so that both choose alike.
        take = getattr(side.reader, "beside", None) if beside is not None else None
        try:
            return take(index, beside) if take is not None else side.reader[index]
        except PrepError as error:
            self.result.unreadable_count += 1
            if len(self.result.unreadable) < _PLACES_KEPT:
                self.result.unreadable.append({"side": name, "index": index, "message": error.message})
            return None

    def _compare(self, key: str, index: int, identity: str, ours: object, reference: object) -> None:
        tally = self.result.fields.get(key)
        if tally is None:
            tally = FieldTally(key, self.atol.get(key, 0.0), self.result.intended.get(key, ""))
            self.result.fields[key] = tally
        is_first = tally.add(index, identity, ours, reference)
        if is_first and self.png is not None and not self.result.picture:
            from prep.side_by_side import write_picture

            if write_picture(ours, reference, self.png):
                self.result.picture = f"{key} of sample {index} in {self.png}"

    def _lone(self, side: str, key: str) -> None:
        intended = self.result.intended.get(key) or self.result.reference.notes.get(key, "")
        lone = self.result.lone.setdefault((side, key), Lone(side, key, intended=intended))
        lone.samples += 1
