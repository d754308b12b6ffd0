"""The snapshot part of the embedded first run: images with conversations, and plain `datasets` upon them.

One row has an image that is cut off, one has none, and one is a question without an answer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prep.demo_steps import Steps, reasons
from prep.loopback import LoopbackHub

__all__ = ["run"]

_REPO = "lmms-lab/LLaVA-OneVision-Data"
_SUBSET = "shapes(drawn)"
_SIZE = (64, 48)  # width, height in pixels
_COLOURS = ("red", "green", "blue", "orange", "purple", "white", "black", "gray")
_ID = "shape_"
_CUT, _NO_IMAGE, _NO_ANSWER = 2, 4, 6  # numbers of rows, from 0
_RESULT = "^  (status|rows|kept|dataset id|failed row|note: left out)"

_CARD = f"""\
---
license: apache-2.0
configs:
- config_name: {_SUBSET}
  data_files:
  - split: train
    path: {_SUBSET}/train-*
---
"""
_ON_PURPOSE = f"""\
On purpose: the image of {_ID}{_CUT} is cut off, which would end a training run in the middle;
{_ID}{_NO_IMAGE} has no image, and {_ID}{_NO_ANSWER} no answer."""


def run(steps: Steps, hub: LoopbackHub, folder: Path) -> None:
    """Serve a subset, prepare it, and open it in a process that knows nothing of prep."""
    steps.tell(f"Parquet with images, served as {_REPO}, subset {_SUBSET}", _ON_PURPOSE)
    table = _parquet([_row(number) for number in range(len(_COLOURS))])
    files: Mapping[str, bytes | Path] = {
        "README.md": _CARD.encode(),
        f"{_SUBSET}/train-00000-of-00001.parquet": table,
    }
    hub.add_repo(_REPO, files, lfs=("*.parquet",))
    given = ("--subset", _SUBSET, "--on-bad-image", "drop")
    steps.run("llava-ov", *given, "--out-root", folder / "data", shown=_RESULT)
    (root,) = (folder / "data" / "llava_ov").glob("shapes_drawn-*/train")
    left_out = {"image_broken": 1, "no_image": 1, "too_few_turns": 1}
    steps.expect("rows that are left out", reasons(root), left_out)
    _open_without_prep(steps, root)


def _open_without_prep(steps: Steps, root: Path) -> None:
    kept = len(_COLOURS) - len((_CUT, _NO_IMAGE, _NO_ANSWER))
    program = (
        "import sys, datasets; d = datasets.load_from_disk(sys.argv[1]); "
        f"assert len(d) == {kept}; print(d); print(d[0])"
    )
    steps.run_python(program, root, why="Plain `datasets`, in a process of its own:")


def _row(number: int) -> dict[str, Any]:
    colour = _COLOURS[number]
    image = {"bytes": _image(colour, cut=number == _CUT), "path": f"{colour}.png"}
    turns = [
        {"from": "human", "value": "<image>\nWhich colour is the square?"},
        {"from": "gpt", "value": f"It is {colour}."},
    ]
    return {
        "id": f"{_ID}{number}",
        "image": None if number == _NO_IMAGE else image,
        "conversations": turns[:1] if number == _NO_ANSWER else turns,
        "data_source": "drawn",
    }


def _image(colour: str, *, cut: bool) -> bytes:
    from PIL import Image

    picture = Image.linear_gradient("L").resize(_SIZE).convert("RGB")
    picture.paste(Image.new("RGB", (20, 20), colour), (22, 14))
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()[: -150 if cut else None]


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    """The rows as the Hub's own parquet is written: the features stand in the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Image, Value

    turn = {"from": Value("string"), "value": Value("string")}
    features = Features(id=Value("string"), image=Image(), conversations=[turn], data_source=Value("string"))
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=features.arrow_schema), written)
    return written.getvalue()
