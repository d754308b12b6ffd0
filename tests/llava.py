"""LLaVA rows in parquet, written with the real `datasets`, and repositories of them on a loopback Hub."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from prep.loopback import LoopbackHub

__all__ = ["REPO", "Rows", "card", "parquet", "picture", "publish", "qwen_rows", "row"]

REPO = "lmms-lab/LLaVA-OneVision-Data"
FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "image": datasets.Image(),
        "conversations": [{"from": datasets.Value("string"), "value": datasets.Value("string")}],
        "data_source": datasets.Value("string"),
    }
)
Rows = Sequence[Mapping[str, Any]]


def picture(number: int, size: tuple[int, int] = (24, 16), mode: str = "RGB", kind: str = "PNG") -> bytes:
    """A small image whose pixels tell its number."""
    image = Image.new("RGB", size, (number % 256, number // 256 % 256, 77))
    buffer = io.BytesIO()
    image.convert(mode).save(buffer, kind)
    return buffer.getvalue()


def row(number: int, data: bytes | None = None, **values: Any) -> dict[str, Any]:
    """A record as the dataset has them; `data` are the image's bytes, `values` replace columns."""
    return {
        "id": f"row {number}",
        "image": {"bytes": picture(number) if data is None else data, "path": f"{number}.png"},
        "conversations": [
            {"from": "human", "value": f"<image>\nWhat is number {number}?"},
            {"from": "gpt", "value": f"It is {number}."},
        ],
        "data_source": "made",
        **values,
    }


def parquet(rows: Rows, *, group: int = 100, stated: bool = True) -> bytes:
    """Rows as the Hub's parquet, row groups of `group` rows; `stated` with the features in it."""
    schema = FEATURES.arrow_schema if stated else FEATURES.arrow_schema.remove_metadata()
    table = pa.Table.from_pylist([dict(each) for each in rows], schema=schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=group)
    return buffer.getvalue()


def card(subsets: Iterable[str]) -> bytes:
    """The repository's card, with a config for each subset as the real one has."""
    lines = ["---", "license: apache-2.0", "configs:"]
    for subset in subsets:
        lines += [f"- config_name: {subset}", "  data_files:"]
        lines += ["  - split: train", f"    path: {subset}/train-*"]
    return "\n".join([*lines, "---", "# LLaVA rows", ""]).encode()


def publish(hub: LoopbackHub, subsets: Mapping[str, Sequence[Rows]], **more: Any) -> str:
    """Commit subsets, each as several parquet files, to the repository; the commit."""
    files: dict[str, bytes] = {"README.md": card(subsets)}
    for subset, parts in subsets.items():
        for at, rows in enumerate(parts):
            files[f"{subset}/train-{at:05d}-of-{len(parts):05d}.parquet"] = parquet(rows, **more)
    return hub.add_repo(REPO, files, lfs=["*.parquet"])


def qwen_rows(real_data: Path) -> list[dict[str, Any]]:
    """The real conversations of Qwen's demo with real images: as many rows as there are images and videos."""
    texts = [
        *json.loads((real_data / "llava/qwen_single_images.json").read_text("utf-8")),
        *json.loads((real_data / "llava/qwen_video.json").read_text("utf-8")),
    ]
    images = sorted(
        path for path in (real_data / "image").rglob("*") if path.suffix in (".png", ".jpg", ".tif")
    )
    return [
        {
            "id": f"qwen_{at}",
            "image": {"bytes": path.read_bytes(), "path": path.name},
            "conversations": texts[at % len(texts)]["conversations"],
            "data_source": "qwen",
        }
        for at, path in enumerate(images)
    ]
