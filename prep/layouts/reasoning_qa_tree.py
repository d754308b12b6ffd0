"""A prepared reasoning dataset on disk: its annotation files, and where their media stand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prep.errors import PrepError, UsageError
from prep.layouts.reasoning_qa import Sampling, media_folder, variable
from prep.layouts.reasoning_qa_checks import items_of
from prep.manifest import STATE

__all__ = ["LOCATION", "environment", "media_paths", "media_roots"]

LOCATION = f"{STATE}/location.json"
"""Machine-local: the media roots that are linked or referred to; outside the dataset id."""

Document = Mapping[str, Any]


def media_roots(root: Path, document: Document) -> list[Path]:
    """The media root of each annotation file, absolute, in the files' order.

    Raises PrepError where the media are only referred to and the note of the place is gone.
    """
    details = document["details"]
    numbers = [entry["root"] for entry in details["annotations"]]
    if document["request"]["media"] != "reference":
        base = Path(os.path.abspath(root))  # noqa: PTH100 - links are kept: the user knows the path by them
        return [base / media_folder(number) for number in numbers]
    places = _places(root)
    if len(places) != details["roots"]:
        raise _lost(root)
    return [Path(places[number]) for number in numbers]


def _places(root: Path) -> list[str]:
    try:
        document = json.loads((root / LOCATION).read_text(encoding="utf-8"))
        return [str(place) for place in document["media_roots"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _lost(root) from error


def _lost(root: Path) -> PrepError:
    return PrepError(
        f"{root / LOCATION} does not say where the media stand, which this dataset refers to.",
        remedy="Prepare it again on this machine with --update, or with --media copy.",
    )


def media_paths(root: Path, document: Document) -> Iterator[Path]:
    """Each video that some item of a prepared dataset names, once a file, as upstream joins it.

    Raises PrepError, OSError and BrokenDocumentError for a dataset that is not whole.
    """
    places = media_roots(root, document)
    for entry, place in zip(document["details"]["annotations"], places, strict=True):
        videos = {item["video_id"]: None for item in items_of(root / entry["file"]) if "video_id" in item}
        yield from (place / video for video in videos)


def environment(root: Path, document: Document) -> dict[str, str]:
    """Upstream's variables for a prepared split: one path, or a JSON array where there are several."""
    split, request = document["split"], document["request"]
    base = Path(os.path.abspath(root))  # noqa: PTH100 - see above
    files = [str(base / entry["file"]) for entry in document["details"]["annotations"]]
    roots = [str(place) for place in media_roots(root, document)]
    sampling = Sampling.of(request)
    values = {
        "ANNOTATIONS": _one_or_all(files),
        "MEDIA_ROOTS": roots[0] if len(set(roots)) == 1 else json.dumps(roots),
        "RESPONSE_MODE": sampling.mode,
        "SAMPLE_STRIDE": str(sampling.stride),
        "SAMPLE_OFFSET": str(sampling.offset),
    }
    if sampling.limit is not None:
        values["LIMIT"] = str(sampling.limit)
    _refuse_misread((*files, *roots), split)
    variables = {variable(split, name): value for name, value in values.items()}
    if sampling.system_prompt:
        variables["COSMOS_VIDEO_SYSTEM_PROMPT"] = sampling.system_prompt
    return variables


def _one_or_all(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else json.dumps(paths)


def _refuse_misread(paths: tuple[str, ...], split: str) -> None:
    for path in paths:
        if path != path.strip():
            raise UsageError(
                f"{variable(split, 'ANNOTATIONS')}: upstream strips the blanks around {path!r}.",
                remedy="Prepare into a directory whose name has none at its end.",
            )
