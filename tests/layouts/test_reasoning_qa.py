"""The reasoning layout: which item is shown in which form, where media are looked for, names of files."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.errors import UsageError
from prep.layouts.reasoning_qa import MODES, Sampling, conversation, media_root, stored_names, target

SAMPLINGS = st.builds(
    Sampling,
    mode=st.sampled_from(MODES),
    stride=st.integers(1, 7),
    offset=st.integers(0, 12),
    limit=st.none() | st.integers(1, 40),
)


def literal(sampling: Sampling, items: int) -> list[tuple[int, str]]:
    """The exposed samples as a list: slice, expand, cut."""
    chosen = list(range(items))[sampling.offset :: sampling.stride]
    forms = ("answer", "think") if sampling.mode == "hybrid" else (sampling.mode,)
    return list(chain.from_iterable([(raw, form) for form in forms] for raw in chosen))[: sampling.limit]


@given(SAMPLINGS, st.integers(0, 40))
def test_the_arithmetic_is_slice_expand_and_cut(sampling: Sampling, items: int) -> None:
    samples = literal(sampling, items)
    assert sampling.exposed(items) == len(samples)
    assert [sampling.resolve(index) for index in range(len(samples))] == samples
    assert list(sampling.touched(items)) == list(dict.fromkeys(raw for raw, _ in samples))
    assert list(sampling.thinks(items)) == [raw for raw, form in samples if form == "think"]


@given(SAMPLINGS)
def test_a_billion_items_cost_nothing(sampling: Sampling) -> None:
    exposed = sampling.exposed(10**9)
    raw, _ = sampling.resolve(exposed - 1)
    assert raw in sampling.touched(10**9)
    assert raw < 10**9


def test_the_guide_s_own_example() -> None:
    # "stride 2, offset 1, and limit 3 expose the answer and think targets for raw item 1, then the
    # answer target for raw item 3"
    sampling = Sampling("hybrid", stride=2, offset=1, limit=3)
    assert [sampling.resolve(index) for index in range(sampling.exposed(10))] == [
        (1, "answer"),
        (1, "think"),
        (3, "answer"),
    ]


@given(SAMPLINGS)
def test_a_sampling_comes_back_from_the_manifest(sampling: Sampling) -> None:
    assert Sampling.of(sampling.as_dict()) == sampling


@pytest.mark.parametrize(
    ("sampling", "variable"),
    [
        (Sampling(stride=0), "COSMOS_VIDEO_VAL_SAMPLE_STRIDE"),
        (Sampling(offset=-1), "COSMOS_VIDEO_VAL_SAMPLE_OFFSET"),
        (Sampling(limit=0), "COSMOS_VIDEO_VAL_LIMIT"),
        (Sampling("both"), "COSMOS_VIDEO_VAL_RESPONSE_MODE"),  # type: ignore[arg-type]
    ],
)
def test_a_value_out_of_range_is_named_by_its_variable(sampling: Sampling, variable: str) -> None:
    with pytest.raises(UsageError, match=variable):
        sampling.check("val")


@pytest.mark.parametrize("reasoning", [{}, {"reasoning": ""}])
def test_without_reasoning_the_think_target_is_the_answer(reasoning: dict[str, str]) -> None:
    assert target({"answer": "Yes.", **reasoning}, "think") == "Yes."


def test_messages() -> None:
    item = {"video_id": "a.mp4", "question": "Why?", "answer": "So.", "reasoning": "Look."}
    sampling = Sampling(system_prompt="Be brief.", vision={"fps": 2})
    assert conversation(item, "/m/a.mp4", "think", sampling) == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "video", "video": "/m/a.mp4", "fps": 2}, {"type": "text", "text": "Why?"}],
        },
        {"role": "assistant", "content": "<think>\nLook.\n</think>\n\nSo."},
    ]
    assert [turn["role"] for turn in conversation(item, "a.mp4", "answer", Sampling())] == [
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("embedded", "given", "path", "differs"),
    [
        (None, None, "/data/text", False),
        ("", None, "/data/text", False),
        ("videos", None, "/data/text/videos", True),
        ("/store", None, "/store", True),
        (".", None, "/data/text", False),
        ("videos", "/other", "/other", False),
    ],
)
def test_the_media_root(embedded: str | None, given: str | None, path: str, differs: bool) -> None:
    root = media_root(Path("/data/text/a.json"), embedded, Path(given) if given else None)
    assert root.path == Path(path)
    assert root.beside == Path("/data/text")
    assert root.differs == differs


def test_names_in_one_folder() -> None:
    assert stored_names(["a.json", "b.json"]) == ["a.json", "b.json"]
    assert stored_names(["a.json", "A.json", "manifest.json", "c.json"]) == [
        "001-a.json",
        "002-A.json",
        "003-manifest.json",
        "c.json",
    ]
    assert stored_names(["002-a.json", "a.json", "a.json"]) == ["001-002-a.json", "002-a.json", "003-a.json"]
