"""A small raw world on loopback: a Hub with a VideoPhy-2 table, a host of clips, and what was asked."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from prep.loopback import Fault, FaultKind, LoopbackHub
from prep.preparation import adopt, prepare
from prep.stages.adopted import Adoption
from prep.stages.options import Options, Result

__all__ = ["COLUMNS", "HOST", "REPO", "TABLE", "World", "csv_bytes", "tree"]

HOST = "https://videos.example/"
COLUMNS = ("caption", "video_url", "sa", "pc", "joint", "", "upsampled_caption")
REPO = "videophysics/videophy2_test"
TABLE = "videophy2_test.csv"


def csv_bytes(rows: Iterable[Sequence[str]], header: Sequence[str] = COLUMNS) -> bytes:
    """A table as text, its lines ended by LF."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def tree(root: Path) -> dict[str, bytes]:
    """Every file below `root` by its relative path, hidden ones too."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class World:
    """The server, and runs of the val split into `root`; clip N is `clips/N.mp4` on the host."""

    def __init__(self, hub: LoopbackHub, folder: Path, base: bytes) -> None:
        self.hub = hub
        self.folder = folder
        self.out = folder / "data"
        self.root = self.out / "videophy2_val"
        self._base = base

    def clip(self, number: int) -> bytes:
        """The bytes of clip `number`: a real MP4, with a `free` box at its end that holds the number."""
        return self._base + b"\x00\x00\x00\x10free" + number.to_bytes(8, "big")

    def row(self, number: int, **values: str) -> list[str]:
        """The table's row for clip `number`, which is served; `values` replace columns."""
        self.hub.add_file(f"clips/{number}.mp4", self.clip(number))
        plain = {
            "caption": f"Take {number}.",
            "video_url": f"{HOST}clips/{number}.mp4",
            "sa": str(1 + number * 3 % 5),
            "pc": str(1 + number % 5),
            "joint": str(number % 2),
            "upsampled_caption": f"A long take {number}.",
        } | values
        return [plain.get(name, "") for name in COLUMNS]

    def commit(self, rows: Sequence[Sequence[str]] | bytes) -> str:
        """Make these rows (or bytes) the newest revision of the table; its commit."""
        data = rows if isinstance(rows, bytes) else csv_bytes(rows)
        return self.hub.add_repo(REPO, {TABLE: data})

    def rows(self, count: int) -> list[list[str]]:
        """The rows of clips 1 to `count`, committed."""
        rows = [self.row(number) for number in range(1, count + 1)]
        self.commit(rows)
        return rows

    def fail(self, number: int, kind: FaultKind, times: int | None = None, **fields: Any) -> None:
        """Show a fault on clip `number`; those that ask for patience ask for none."""
        fault = Fault(kind, **{"retry_after": 0, "seconds": 30.0, **fields})
        self.hub.faults.set(f"clips/{number}.mp4", fault, times)

    def options(self, **changes: Any) -> Options:
        """The options of the tests' runs, with some changed."""
        plain = {
            "prompt": "builtin",
            "mirrors": ((HOST, f"{self.hub.endpoint}/files/"),),
            "timeout": 0.5,
            "attempts": 1,
            "jobs": 4,
        }
        return Options(**{**plain, **changes})

    def run(self, out: Path | None = None, **changes: Any) -> Result:
        """Prepare the val split; what is asked of the server from now on is in `asked`."""
        self.hub.clear_requests()
        (result,) = prepare("videophy2", out or self.out, split="val", options=self.options(**changes))
        return result

    def adopt(self, root: Path | None = None, **changes: Any) -> tuple[Result, Adoption]:
        """Adopt the tree at `root`."""
        self.hub.clear_requests()
        named = {name: changes.pop(name) for name in ("recipe", "split") if name in changes}
        return adopt(root or self.root, **named, options=self.options(**changes))

    def fetched(self) -> list[str]:
        """The clips that the last run asked for, by name, with repetitions."""
        return sorted(
            record.path.rpartition("/")[2]
            for record in self.hub.requests
            if record.method == "GET" and record.path.startswith("/files/")
        )
