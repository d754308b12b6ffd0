"""Names, bytes and answers of the conversations layout."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.errors import UsageError
from prep.layouts.conversations import Answer, Layout, RejectedAnswerError, meta_json
from prep.recipe import load_recipe

SCALE = Answer("integer", minimum=1, maximum=5)


def layout(**record: str) -> Layout:
    document = load_recipe("videophy2").document
    return Layout.of({**document, "record": {**document["record"], **record}})


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (1, ("conversation_0001", "media/video_0001.mp4", "text/conversation_0001.json")),
        (12345, ("conversation_12345", "media/video_12345.mp4", "text/conversation_12345.json")),
    ],
)
def test_rows_have_four_digits_or_more(row: int, names: tuple[str, str, str]) -> None:
    entry = layout().entry(row)
    assert tuple(entry.values()) == names
    assert list(entry) == ["id", "media", "conversation"]
    assert layout().is_media(names[1])
    assert layout().is_conversation(names[2])


@pytest.mark.parametrize(
    "path",
    [
        "media/video_001.mp4",
        "media/video_0001.mp4.part",
        "media/video_0001xmp4",
        "x/media/video_0001.mp4",
        "meta.json",
    ],
)
def test_other_names_are_no_media(path: str) -> None:
    assert not layout().is_media(path)


@pytest.mark.parametrize(
    "record",
    [
        {"media": "media/clip.mp4"},
        {"media": "media/{{row}}.mp4"},
        {"media": "media/{number}.mp4"},
        {"media": "media/{}.mp4"},
        {"media": "media/{row!r}.mp4"},
        {"media": "media/{row:x}.mp4"},
        {"media": "media/{row"},
        {"media": "../{row}.mp4"},
        {"media": "/tmp/{row}.mp4"},
        {"media": ".prep/{row}.mp4"},
        {"media": "media/../../{row}.mp4"},
        {"conversation": "media/video_{row:04d}.mp4"},
        {"media": "all/{row}", "conversation": "all/{row:04d}"},
        {"id": "the same"},
    ],
)
def test_a_pattern_that_names_no_row_or_leaves_the_dataset_is_wrong_usage(record: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        layout(**record)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "record",
    [
        {"media": "media/{row}.mp4"},
        {"media": "{row:06d}/clip v1.0 (a+b).mp4"},
        {"media": "clips/{row:04d}_{row}.mp4"},
        {"media": "all/{row}.mp4", "conversation": "all/{row}.json"},
    ],
)
def test_a_pattern_with_the_row_is_fine(record: dict[str, str]) -> None:
    made = layout(**record)
    assert made.is_media(made.media(7))
    assert made.is_media(made.media(1234567))
    assert not made.is_media(made.conversation(7))


@given(st.lists(st.dictionaries(st.text(), st.text(), min_size=1), max_size=4))
def test_meta_is_what_json_dump_writes(entries: list[dict[str, str]]) -> None:
    expected = io.StringIO()
    json.dump(entries, expected, indent=2)
    assert b"".join(meta_json(entries)) == expected.getvalue().encode("ascii")


@given(st.text(), st.text())
def test_a_conversation_is_what_json_dump_writes(question: str, answer: str) -> None:
    expected: dict[str, Any] = {
        "conversations": [
            {
                "role": "user",
                "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": question}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        ]
    }
    assert layout().conversation_json(question, answer) == json.dumps(expected).encode("ascii")


@given(
    st.integers(min_value=1, max_value=5),
    st.sampled_from(["{}", "{}.0", " {} ", "+{}", "0{}", "{}e0", "{}."]),
)
def test_every_spelling_of_a_score_gives_its_digit(number: int, spelling: str) -> None:
    answer = SCALE.text(spelling.format(number))
    assert answer == str(number)
    assert SCALE.allows(answer)


@given(st.text())
def test_any_cell_gives_an_answer_of_the_scale_or_a_reason(cell: str) -> None:
    try:
        outcome = SCALE.text(cell)
    except RejectedAnswerError as rejected:
        outcome = rejected.reason
    assert outcome in ("1", "2", "3", "4", "5", "no_answer", "not_an_integer", "outside_scale")


@pytest.mark.parametrize("cell", ["1e999", "1e99999999999", "9" * 10000, "-0.5", "٣", "sNaN", "Infinity"])
def test_a_number_beyond_reason_is_a_reason_too(cell: str) -> None:
    with pytest.raises(RejectedAnswerError) as caught:
        SCALE.text(cell)
    assert len(str(caught.value)) < 100


def test_words_are_found_as_they_are_written_and_as_numbers() -> None:
    joint = Answer("words", words={"0": "no", "1": "yes"})
    assert [joint.text(cell) for cell in ("0", "1", "1.0", "True", "false", "-0", "01")] == [
        "no", "yes", "yes", "yes", "no", "no", "yes",
    ]  # fmt: skip
    named = Answer("words", words={"true": "it holds", "false": "it fails", "maybe": "unclear"})
    assert [named.text(cell) for cell in ("true", "false", "maybe")] == ["it holds", "it fails", "unclear"]
    for rule, cell in ((joint, "2"), (joint, "yes"), (named, "1"), (named, "9" * 10000)):
        with pytest.raises(RejectedAnswerError) as caught:
            rule.text(cell)
        assert caught.value.reason == "unknown_word"
    assert joint.allows("yes")
    assert not joint.allows("1")


def test_text_is_taken_as_it_is() -> None:
    rule = Answer("text")
    assert rule.text(" It falls. ") == " It falls. "
    assert rule.allows("anything")
    assert not rule.allows("  ")
    for cell in ("", "  ", "NaN"):
        with pytest.raises(RejectedAnswerError):
            rule.text(cell)
