"""What the loader does with a record: captions, frames, sizes and drops, as upstream's code does."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from prep.layouts.sft_consumption import Consumption
from prep.layouts.sft_sources import source_of
from prep.layouts.sft_windows import (
    DRAWN,
    Frames,
    Loader,
    UnusableCaptionError,
    aspect_bucket,
    caption_fault,
    caption_key,
    caption_text,
    choose_frames,
    kept_windows,
    record_drop,
    scaling,
)
from tests.sft_trees import record

# Each was given to upstream's `_select_caption` at the locked commit.
CHOSEN = [
    ({"caption": " a b... "}, "caption", "a b."),
    ({"caption": ""}, "caption", "."),
    ({"caption_json": None, "caption": "x"}, "caption_json", "None"),
    ({"caption_json": " s "}, "caption_json", "s"),
    (
        {"caption_json": {"b": "é", "a": [1, 2.5, None, True]}, "caption": "x"},
        "caption_json",
        '{"b": "é", "a": [1, 2.5, null, true]}',
    ),
    ({"caption_json": ["x", 1]}, "caption_json", "['x', 1]"),
    ({"caption": {"a": 1}}, "caption", '{"a": 1}'),
    ({"qwen3_32b_rewrite-dense": "r", "caption": "c"}, "qwen3_32b_rewrite-dense", "r."),
    ({"qwen3_32b_dense": "d."}, "qwen3_32b_dense", "d."),
]


@pytest.mark.parametrize(("window", "key", "text"), CHOSEN, ids=[str(item[0]) for item in CHOSEN])
def test_the_caption_is_upstreams(window: dict[str, Any], key: str, text: str) -> None:
    assert caption_key(window) == key
    assert caption_text(key, window[key]) == text


def test_captions_at_which_upstream_stops_or_skips() -> None:
    assert caption_key({"other": "x"}) is None
    with pytest.raises(UnusableCaptionError, match="never drawn"):
        caption_key({"qwen3_32b_temporal": "t"})
    for value in (None, 5):
        with pytest.raises(UnusableCaptionError):
            caption_text("caption", value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("caption_json", None, "'None' is trained on"),
        ("caption_json", {}, "empty object"),
        ("caption_json", 3, "its Python form"),
        ("caption", None, "the loader stops"),
        ("caption", " . ", "'.' is trained on"),
        ("caption", ["x"], "the loader stops"),
    ],
)
def test_a_faulty_caption_is_told(key: str, value: Any, says: str) -> None:
    assert says in caption_fault(key, value)


def test_a_sound_caption_has_no_fault() -> None:
    assert not caption_fault("caption_json", {"a": 1})
    assert not caption_fault("caption", "A take.")


def test_the_draw_follows_the_weights_and_its_random_state() -> None:
    window = {key: key for key in DRAWN}
    drawn = Counter(caption_key(window, random.Random(seed)) for seed in range(2000))
    share = Counter(dict.fromkeys(("short", "descriptive", "dense", "temporal"), 0))
    for key, count in drawn.items():
        share[str(key).rpartition("_")[2]] += count
    assert share["temporal"] == 0
    assert abs(share["dense"] / 2000 - 0.7) < 0.05
    assert abs(share["short"] / 2000 - 0.1) < 0.05
    # Upstream's own `random.choices` over the same keys in the same order.
    random.seed(7)
    keys = list(DRAWN)
    expected = random.choices(keys, weights=list(DRAWN.values()), k=1)[0]
    assert caption_key(window, random.Random(7)) == expected
    assert keys[:4] == ["qwen3_235b_short", "qwen3_32b_short", "qwen3p5_397b_short", "qwen3_235b_descriptive"]


WINDOW = {"start_frame": 0, "end_frame": 900, "temporal_interval": 1}


@pytest.mark.parametrize(
    ("changes", "total", "loader", "expected"),
    [
        # Upstream's `process_one_sample` on the real files of 132, 151, 901, 150 and 209 frames.
        ({"end_frame": 131}, 132, {}, Frames(0, 131, 1, 129)),
        ({"end_frame": 150}, 151, {}, Frames(0, 150, 1, 149)),
        ({}, 901, {}, Frames(0, 900, 1, 901)),
        ({"end_frame": 131}, 132, {"num_video_frames": 93}, Frames(19, 111, 1, 93)),
        ({}, 901, {"num_video_frames": 93}, Frames(36, 864, 9, 93)),
        ({"end_frame": 208}, 209, {"num_video_frames": 93}, Frames(12, 196, 2, 93)),
        # Clamped at the file's last frame; the window's own interval.
        ({"end_frame": 10**6, "start_frame": 2, "temporal_interval": 3}, 209, {}, Frames(2, 208, 3, 69)),
        ({"end_frame": 10**6}, 26, {}, Frames(0, 25, 1, 25)),
        ({"start_frame": -5, "temporal_interval": 3, "end_frame": 9}, 20, {}, Frames(1, 9, 3, 1)),
    ],
)
def test_the_frames_are_upstreams(
    changes: dict[str, int], total: int, loader: dict[str, Any], expected: Frames
) -> None:
    assert choose_frames(WINDOW | changes, total, Loader(**loader), 30.0) == expected
    assert len(expected.indices) == expected.count


def test_a_window_that_the_loader_skips_has_no_frames() -> None:
    assert choose_frames(WINDOW, 0, Loader(), 25.0) is None
    assert choose_frames(WINDOW, 92, Loader(num_video_frames=93), 25.0) is None
    assert choose_frames(WINDOW | {"start_frame": 40}, 30, Loader(), 25.0) is None
    assert choose_frames(WINDOW | {"temporal_interval": 0}, 30, Loader(), 25.0) is None


def test_modes_of_interval_and_selection() -> None:
    window = WINDOW | {"end_frame": 199}
    modes = {"force_one": 1, "max_30fps": 2, "entire_chunk": 3}
    for mode, interval in modes.items():
        frames = choose_frames(window, 200, Loader(num_video_frames=61, temporal_interval_mode=mode), 60.0)  # type: ignore[arg-type]
        assert frames is not None
        assert frames.interval == interval
    first = choose_frames(window, 200, Loader(num_video_frames=61, frame_selection_mode="first"), 30.0)
    assert first is not None
    assert first.start == 0
    drawn = Loader(num_video_frames=61, frame_selection_mode="random", temporal_interval_mode="force_one")
    starts = {choose_frames(window, 200, drawn, 30.0, random.Random(seed)).start for seed in range(50)}  # type: ignore[union-attr]
    assert len(starts) > 10
    assert max(starts) <= 139


def test_buckets_and_sizes() -> None:
    edges = {
        0.64: "9,16",
        0.65: "3,4",
        0.87: "3,4",
        0.88: "1,1",
        1.15: "1,1",
        1.16: "4,3",
        1.54: "4,3",
        1.55: "16,9",
    }
    assert {ratio: aspect_bucket(round(ratio * 1000), 1000) for ratio in edges} == edges
    sizes = scaling(1920, 1080, "256")
    assert (sizes.width, sizes.height, sizes.left, sizes.top) == (341, 192, 10, 0)
    assert (sizes.target_width, sizes.target_height) == (320, 192)
    assert scaling(256, 256, "256").width == 256


def test_drops_of_records_and_windows() -> None:
    assert record_drop(record("a"), Loader()) == ""
    assert record_drop(record("a", duration=61.0), Loader()) == ""
    assert record_drop(record("a", duration=61.01), Loader()) == "duration_too_long"
    assert record_drop(record("a"), Loader(min_short_edge=49)) == "short_edge_too_small"
    assert record_drop(record("a", t2w_windows=[]), Loader()) == "no_windows"
    spans = [(0, 59), (0, 60), (3, 63)]
    windows = [{"start_frame": start, "end_frame": end} for start, end in spans]
    assert [place for place, _ in kept_windows({"t2w_windows": windows}, Loader())] == [1, 2]


def test_consumption_counts_each_drop_by_reason() -> None:
    counts = Consumption(Loader(), tokens=len)
    counts.loader = Loader(max_caption_tokens=11)
    short = {"start_frame": 0, "end_frame": 20, "temporal_interval": 1, "caption": "x"}
    good = record("a")["t2w_windows"][0]
    counts.take(record("a", t2w_windows=[good, short]))
    counts.take(record("b", duration=70.0))
    counts.take(record("c", t2w_windows=[{**good, "caption": "x" * 20}]))
    counts.take(record("d", t2w_windows=[{key: value for key, value in good.items() if key != "caption"}]))
    document = counts.as_dict()
    assert document["records"] == 4
    assert document["records_kept"] == 2
    assert document["records_dropped"] == {"duration_too_long": 1, "no_valid_window": 1}
    assert document["windows_dropped"] == {"duration_too_long": 1, "no_caption": 1, "window_too_short": 1}
    assert document["captions"] == {"caption": 2}
    assert document["captions_over_limit"] == 1
    assert document["frames"] == 2 * 61
    assert document["hours"] == round(16 / 3600, 3)


def test_the_quick_count_is_the_thorough_one() -> None:
    quick, thorough = Consumption(Loader()), Consumption(Loader())
    for changes in ({}, {"nb_frames": 70}, {"framerate": 25.0}, {"nb_frames": 40}):
        quick.take_usual(record("a", **changes), "caption")
        thorough.take(record("a", **changes))
    assert quick.as_dict() == thorough.as_dict()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("episode_000015_clip000", "episode_000015"),
        ("movie-Scene-012", "movie"),
        ("drive.part3", "drive"),
        ("clip0001", "clip0001"),
        ("video_0001", "video_0001"),
        ("5f2a", "5f2a"),
    ],
)
def test_the_source_of_a_clip_by_its_name(name: str, source: str) -> None:
    assert source_of(name) == source
