"""When a saved state is refused: damaged, of another loader, or of a place that is not there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prep.dataflow.base import LoaderError
from prep.dataflow.plans import Place, Planner
from prep.dataflow.state import VERSION, Progress, decode_masks

__all__ = ["refuse_broken", "refuse_other", "refuse_outside", "refuse_states"]

_KEYS = frozenset(
    (
        "version",
        "identity",
        "dp_rank",
        "next_stream",
        "streams",
        "delivered",
        "first_epoch",
        "obstacle",
        "counts",
        "distributor",
    )
)
_PLANNED = frozenset(("epoch", "position", "pending", "dropped"))

# What may differ where the rest of an epoch is dealt out anew.
_DEALT_ANEW = ("batcher", "dp_world_size", "num_workers", "on_uneven")


def refuse_broken(state: Any, *, planned: bool) -> None:
    """Raise LoaderError if `state` is not what a loader's `state_dict()` gives.

    `planned`: its streams must have positions in an order, as those of a map-style dataset.
    """
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        raise LoaderError(
            "This is no state of a loader of this version.",
            remedy="Give what state_dict() returned, or with reshard=True the list of all ranks.",
        )
    missing = sorted(_KEYS - state.keys())
    wrong = f"it lacks {', '.join(missing)}" if missing else _wrong(state, planned=planned)
    if wrong:
        raise _damaged(wrong)


def _damaged(what: str) -> LoaderError:
    return LoaderError(
        f"The saved state is damaged: {what}.", remedy="Load another checkpoint, or begin anew."
    )


def _wrong(state: Mapping[str, Any], *, planned: bool) -> str:
    """What of a state is of another form, or empty."""
    identity, streams, counts = state["identity"], state["streams"], state["counts"]
    workers = identity.get("num_workers") if isinstance(identity, Mapping) else None
    if not isinstance(workers, int):
        return f"its identity is {identity!r:.60}"
    if not isinstance(streams, Mapping) or sorted(streams) != sorted(map(str, range(workers))):
        return f"its streams are {streams!r:.80}"
    for worker, position in streams.items():
        if position is not None and not (_is_planned(position) if planned else _is_position(position)):
            return f"the position of stream {worker} is {position!r:.80}"
    if not (isinstance(state["next_stream"], int) and 0 <= state["next_stream"] < workers):
        return f"next_stream is {state['next_stream']!r}, of {workers} streams"
    if not isinstance(counts, Mapping) or counts.keys() != Progress(workers).counts().keys():
        return f"its counts are {counts!r:.80}"
    try:
        decode_masks(state["delivered"])
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        return f"what it says was delivered cannot be read ({error})"
    return ""


def _is_planned(state: Any) -> bool:
    """Whether it is a position in an order: counts from 0, and (epoch, position) of what is pending."""
    if (
        not isinstance(state, Mapping)
        or not state.keys() >= _PLANNED
        or not isinstance(state["pending"], list)
    ):
        return False
    places = [(state["epoch"], state["position"]), *(tuple(each) for each in state["pending"])]
    return all(len(each) == 2 and all(isinstance(n, int) and n >= 0 for n in each) for each in places)


def _is_position(state: Any) -> bool:
    """Whether it could be any stream's position: an order's, an iterable's or a mixture's."""
    kinds = (_PLANNED, {"source", "seen", "number", "delivered"}, {"generator", "order", "sources"})
    return isinstance(state, Mapping) and any(kind <= state.keys() for kind in kinds)


def refuse_outside(state: Mapping[str, Any], planner: Planner, place: Place) -> None:
    """Raise LoaderError for a position that its stream does not have."""
    masks = decode_masks(state["delivered"])
    for worker, position in state["streams"].items():
        if position is None:
            continue
        here = place.of(int(worker)).with_delivered(masks)
        # The position is the next one: an epoch's end is among them.
        places = [(position["epoch"], position["position"] - 1), *map(tuple, position["pending"])]
        for epoch, at in places:
            if at < 0 or (place.epochs is not None and epoch >= place.epochs):
                continue
            length = planner.plan(epoch, here).length
            if at >= length:
                raise _damaged(f"stream {worker} stands at {at} of {length} samples of epoch {epoch}")


def refuse_states(
    states: Any, identity: Mapping[str, Any], rank: int, *, planner: Planner | None, reshard: bool
) -> None:
    """Raise LoaderError if a loader of this identity and rank cannot go on from these states."""
    if not isinstance(states, Sequence) or not states:
        raise LoaderError(
            f"A state was expected, not {states!r:.60}.",
            remedy="Give what state_dict() returned, or with reshard=True the list of all ranks.",
        )
    for state in states:
        refuse_broken(state, planned=planner is not None)
        refuse_other(state["identity"], identity, reshard=reshard)
    given = [state["dp_rank"] for state in states]
    if not reshard and given != [rank]:
        raise LoaderError(
            f"Rank {rank} was given the states of the ranks {given}.",
            remedy="Give each rank its own, or all of them with reshard=True.",
        )


def refuse_other(saved: Mapping[str, Any], here: Mapping[str, Any], *, reshard: bool) -> None:
    """Raise LoaderError if a state belongs to something else, by the name of what differs."""
    left_out = _DEALT_ANEW if reshard else ()
    for path, before, now in _differences(saved, here):
        if path.split(".")[0] in left_out or (path == "epochs" and None not in (before, now)):
            continue  # more epochs, or fewer, change no position
        may = path.split(".")[0] in _DEALT_ANEW
        raise LoaderError(
            f"The saved state belongs to another loader: {path} was {before!r} and is {now!r}.",
            remedy="Give reshard=True with the states of all ranks to deal the rest of the epoch anew."
            if may
            else "Load it into a loader over the same data, made with the same arguments.",
        )


def _differences(saved: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        for key in [*saved, *(key for key in here if key not in saved)]:
            yield from _differences(saved.get(key), here.get(key), f"{path}.{key}" if path else str(key))
    elif saved != here:
        yield path, saved, here
