"""The reader of robot datasets: one sample a training window (contracts, sections 4 and 5)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.layouts.lerobot import Root
from prep.manifest import Manifest
from prep.readers.robot_canvas import Canvas, check_tier, closest, fill_canvas
from prep.readers.robot_droid import Droid
from prep.readers.robot_frames import Decoder, FrameCache, decoder_name
from prep.readers.robot_libero import Libero, Quantiles
from prep.readers.robot_pictures import Reused, WindowPictures
from prep.readers.robot_rows import EpisodeRoutes, FrameRows
from prep.readers.robot_words import Instruction, check_instruction, chosen
from prep.window_lists import Found, index_parameters, open_index
from prep.windows import Identity, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Robot = Droid | Libero
    Columns = dict[str, NDArray[Any]]

__all__ = ["LeRobotReader"]

_PLACE_COLUMNS: Final = ("index", "episode_index", "timestamp", "task_index")


@dataclass(frozen=True, slots=True)
class _Form:
    """What an upstream recipe makes of windows."""

    robot: Literal["droid", "libero"]
    mode: str
    action_space: Literal["joint_pos", "ee_pose"] = "ee_pose"
    state: bool = False


_FORMS: Final = {
    "action_policy_droid_nano": _Form("droid", "wam", "joint_pos", state=True),
    "action_fd_droid_posttrain": _Form("droid", "forward_dynamics"),
    "action_policy_libero_10_nano": _Form("libero", "wam"),
    "action_policy_libero_all_nano": _Form("libero", "wam"),
}
"""By the consumer that a recipe names."""


class LeRobotReader:
    """Windows of a robot dataset, in the order of one of its window indices.

    A sample has upstream's keys: `video` uint8 [3, C + 1, H, W], `action` float32 (with `state` the
    measured state in a row before), `ai_caption`, `idle_frames`, `conditioning_fps`, `mode`,
    `domain_id`, `viewpoint`, and where they apply `additional_view_description` and `initial_pose`.
    `model_input` gives the thirteen keys of a model instead.

    `index` names the window index (else that of the split `train`). `instruction` is `drawn` (by `seed`
    and the window's identity), `first`, or which part counted from 1. `decoder` is `pyav` or
    `torchcodec`. `statistics` is a file by which LIBERO's actions are normalised. `tier` (256 or 480)
    is that of the canvas. The rest is the recipe's, unless given.

    The index is mapped at once. Videos and frame tables are opened by the process that reads; windows
    read in order decode each frame once. A reader pickles as its arguments.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        index: str | None = None,
        view: str = "concat_view",
        action_space: Literal["joint_pos", "ee_pose"] | None = None,
        state: bool | None = None,
        instruction: Instruction | str = "drawn",
        seed: int = 0,
        decoder: Decoder = "pyav",
        statistics: str | Path | None = None,
        tier: str | int | None = None,
    ) -> None:
        self.root = manifest.root
        self.dataset_id = manifest.dataset_id
        self.view, self.seed, self.tier = view, seed, check_tier(tier)
        self.instruction = check_instruction(instruction)
        if decoder not in ("pyav", "torchcodec"):
            raise UsageError(f"There is no decoder {decoder!r}.", remedy="Give pyav or torchcodec.")
        self._index_name = index or _default_index(manifest)
        self._given = {"action_space": action_space, "state": state, "statistics": statistics}
        self._cache = FrameCache(decoder)
        self._open()

    def _open(self) -> None:
        self.found: Found = open_index(self.root, self._index_name)
        self.index = self.found.index
        parameters = self.index.parameters
        self.chunk_length = int(parameters["chunk_length"])
        self.form = _form(self.found, parameters["recipe_document"])
        self._trees = [_Tree(Root.open(self.root / name), self._robot) for name in self.found.roots]
        self._pictures, self._inputs = WindowPictures(), Reused(np.float32)

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("found", "index", "_trees", "_pictures", "_inputs")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _robot(self, root: Root) -> Robot:
        given, recipe = self._given, self.index.parameters["recipe_document"]
        if self.form.robot == "libero":
            if given["action_space"] or given["state"]:
                raise UsageError("LIBERO's windows have one action space, and no state.")
            block = recipe.get("statistics", {}).get("block", "global_raw")
            path = given["statistics"]
            quantiles = Quantiles.load(Path(path), block) if isinstance(path, str | Path) else None
            return Libero(self.view, root.fps or float(recipe["roots"]["fps"]), quantiles)
        if given["statistics"]:
            raise UsageError("DROID's actions are not normalised.", remedy="Leave out the statistics.")
        return Droid(self.action_space, self.use_state, self.view, float(recipe["roots"]["fps"]))

    @property
    def decoder(self) -> str:
        """The decoder in use with its versions; raises EnvironmentLacksError if it is not installed."""
        return decoder_name(self._cache.decoder)

    @property
    def description_source(self) -> str | None:
        """Whose words describe the view, `upstream` or `prep`; None if there are none."""
        view = self._trees[0].robot.view_text if self._trees else None
        return view.source if view is not None else None

    @property
    def frames_decoded(self) -> int:
        """Frames that PyAV has decoded for this reader in this process."""
        return self._cache.decoded

    @property
    def mode(self) -> str:
        """What a model is to predict: `wam` or `forward_dynamics`."""
        return self.form.mode

    @property
    def viewpoint(self) -> str:
        """The view, by upstream's name."""
        return self.view

    @property
    def action_space(self) -> str:
        """`joint_pos` or `ee_pose` (LIBERO's one space is told by the latter)."""
        return str(self._given["action_space"] or self.form.action_space)

    @property
    def use_state(self) -> bool:
        """Whether the measured state stands before the action."""
        state = self._given["state"]
        return self.form.state if state is None else bool(state)

    def __len__(self) -> int:
        return len(self.index)

    def identity(self, index: int) -> Identity:
        """What names a window on every machine; raises IndexError outside 0 to len - 1."""
        return self.index.resolve(index).identity

    @property
    def fingerprint(self) -> str:
        """What names these very windows: the dataset, and a hash of the index's spans."""
        spans = hashlib.sha256(b"".join(column.tobytes() for column in self.index.spans.values()))
        return f"{self.dataset_id} {spans.hexdigest()[:16]}"

    def blocks(self) -> Iterator[tuple[int, int]]:
        """For each span its first flat index and its length: what a shuffle keeps together."""
        return self.index.blocks()

    def instructions(self, index: int) -> list[str]:
        """The instructions that a window offers, of which a sample takes one; raises as indexing does."""
        window = self.index.resolve(index)
        with _Named(self, index, window):
            return self._candidates(window, self._rows(window))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1.

        Raises IndexError outside (negative indices too), TypeError for what is no whole number;
        PrepError, which names the window, for one that cannot be read.
        """
        window = self.index.resolve(index)
        with _Named(self, index, window):
            return self._sample(window)[0]

    def model_input(self, index: int) -> dict[str, Any]:
        """The window as a model takes it: thirteen keys; raises as indexing does.

        `video` float32 [3, C + 1, H, W] from -1 to 1 on its canvas; `action` float32 [C, D] and `state`
        [D], or [0] where there is none; `task`; `idle_frames`; `canvas_hw` and `content_hw`, pixels,
        height first; `aspect_key`; `episode_index`; `start`, counted from the episode's first frame;
        `draw_id`, the instruction's place among the candidates from 0; `sample_id`;
        `additional_view_description`.
        """
        window = self.index.resolve(index)
        with _Named(self, index, window):
            sample, draw = self._sample(window)
            video, action = sample["video"], sample["action"]
            canvas = closest(video.shape[-2], video.shape[-1], self.tier)
            extra = len(action) - self.chunk_length
            return {
                "video": self._on_canvas(video, canvas),
                "action": action[extra:],
                "state": action[0] if extra else np.empty(0, np.float32),
                "task": sample["ai_caption"],
                "idle_frames": sample["idle_frames"],
                **canvas._asdict(),
                "episode_index": window.episode_index,
                "start": window.frame,
                "draw_id": draw,
                "sample_id": self.sample_id(index),
                "additional_view_description": sample.get("additional_view_description", ""),
            }

    def _on_canvas(self, video: NDArray[np.uint8], canvas: Canvas) -> NDArray[np.float32]:
        filled: NDArray[np.float32] = self._inputs.take((*video.shape[:2], *canvas.canvas_hw))
        fill_canvas(video, canvas, filled)
        return filled

    def sample_id(self, index: int) -> str:
        """A window's identity in words: ROOT:EPISODE:FRAME, or EPISODE:FRAME with one unnamed root."""
        dataset, episode, frame = self.identity(index)
        return f"{self.found.roots[dataset]}:{episode}:{frame}".lstrip(":")

    def _sample(self, window: Window) -> tuple[dict[str, Any], int]:
        tree = self._trees[window.dataset_index]
        robot, rows = tree.robot, self._rows(window)
        parts = self._candidates(window, rows)
        draw = chosen(parts, self.instruction, self.seed, window.identity)
        action, extras = robot.action(rows)
        view = robot.view_text
        sample = {
            "ai_caption": parts[draw],
            "video": self._video(window, rows),
            "action": robot.scaled(action),
            "conditioning_fps": np.int64(robot.fps),
            "mode": self.form.mode,
            "domain_id": np.int64(robot.domain_id),
            "viewpoint": robot.view,
            "idle_frames": np.int64(robot.idle_frames(action)),
            **extras,
        }
        if view is not None:
            sample["additional_view_description"] = view.text
        return sample, draw

    def _rows(self, window: Window) -> Columns:
        rows = self._trees[window.dataset_index].rows
        return rows.take(window.row, self.chunk_length + 1, window.episode_index)

    def _candidates(self, window: Window, rows: Columns) -> list[str]:
        tree = self._trees[window.dataset_index]
        return tree.robot.instructions(tree.task(int(rows["task_index"][0])))

    def _video(self, window: Window, rows: Columns) -> NDArray[np.uint8]:
        """The pictures [3, C + 1, H, W]; those that the last window showed are not decoded again."""
        tree = self._trees[window.dataset_index]
        robot = tree.robot
        seconds = robot.seconds(rows["timestamp"])

        def frames(camera: int, places: list[int]) -> Iterator[Any]:
            shot = tree.routes.shot(window.episode_index, robot.cameras[camera])
            times = [shot.start + seconds[place] for place in places]
            return self._cache.planes(shot.path, times, robot.tolerance)

        wanted = range(window.row, window.row + self.chunk_length + 1)
        return self._pictures.video(robot, window.dataset_index, wanted, frames)


class _Tree:
    """One root as a reader sees it; its tables are read when they are first asked for."""

    def __init__(self, root: Root, robot_of: Any) -> None:
        self.root = root
        self.robot: Robot = robot_of(root)
        self.routes = EpisodeRoutes(root, self.robot.cameras)
        columns = (*_PLACE_COLUMNS, *self.robot.columns.values())
        self.rows = FrameRows(root, self.routes, columns, sorted_rows=self.robot.sorted_rows)
        self._tasks: dict[int, str | None] | None = None

    def task(self, number: int) -> str:
        """The text of a task as the robot's loader has it: by number, or by its row's position."""
        if self._tasks is None:
            tasks = self.root.tasks()
            if not tasks.is_index and not self.robot.tasks_by_number:
                raise PrepError(
                    f"{self.root.path}: the task texts are a plain column, where lerobot reads a number.",
                    remedy="Write the task table with the texts as its index.",
                )
            numbers = tasks.numbers if self.robot.tasks_by_number else range(len(tasks.texts))
            self._tasks = {
                each: text for each, text in zip(numbers, tasks.texts, strict=True) if each is not None
            }
        text = self._tasks.get(number)
        if text is None:
            raise PrepError(
                f"{self.root.path}: there is no task {number}.", remedy="`prep validate` says more."
            )
        return text


@dataclass(frozen=True, slots=True)
class _Named:
    """What is raised inside names the window."""

    reader: LeRobotReader
    index: int
    window: Window

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, PrepError):
            return
        where = f"window {self.index} ({self.reader.sample_id(self.index)}) of {self.reader.dataset_id}"
        named = EnvironmentLacksError if isinstance(error, EnvironmentLacksError) else PrepError
        raise named(f"{where}: {error.message}", remedy=error.remedy) from error


def _default_index(manifest: Manifest) -> str | None:
    """The index of the split `train` that the dataset's own recipe made, if there is just one."""
    start = f"{manifest.document['recipe']['name']}-train-"
    names = [path.name for path, _ in index_parameters(manifest.root) if path.name.startswith(start)]
    return names[0] if len(names) == 1 else None


def _form(found: Found, recipe: dict[str, Any]) -> _Form:
    for consumer in recipe.get("consumers", ()):
        if consumer in _FORMS:
            return _FORMS[consumer]
    raise UsageError(
        f"{found.path}: the recipe {recipe['name']} names no consumer whose samples are known.",
        remedy=f'Put consumers = ["NAME"] into the recipe, NAME being one of {", ".join(_FORMS)}, '
        "and run the same prepare command with --update.",
    )
