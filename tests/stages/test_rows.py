"""Rows of the source table: which fail and why, and the near miss of each that passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prep.errors import PrepError, UsageError
from prep.manifest import Manifest
from prep.preparation import failures
from prep.recipe import load_recipe
from prep.stages.options import Options, Result
from prep.stages.rows import Rule
from tests.world import COLUMNS, HOST, World, csv_bytes, tree


def texts(root: Path) -> dict[str, tuple[str, str]]:
    """Question and answer of each conversation file."""
    found = {}
    for path in sorted((root / "text").iterdir()):
        user, assistant = json.loads(path.read_bytes())["conversations"]
        found[path.name] = (user["content"][1]["text"], assistant["content"][0]["text"])
    return found


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings if finding.code != "TAB007"]


def three_rows(world: World, **second: str) -> None:
    """Commit three rows, the second with these values."""
    world.commit([world.row(1), world.row(2, **second), world.row(3)])


# Scores.


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("", "no_answer"),
        ("  ", "no_answer"),
        ("nan", "no_answer"),
        ("NaN", "no_answer"),
        ("NULL", "no_answer"),
        ("3.7", "not_an_integer"),
        ("four", "not_an_integer"),
        ("4,0", "not_an_integer"),
        ("1_0", "not_an_integer"),
        ("inf", "not_an_integer"),
        ("0", "outside_scale"),
        ("6", "outside_scale"),
        ("-3", "outside_scale"),
        ("1e999", "outside_scale"),
        ("9" * 6000, "outside_scale"),
    ],
)
def test_a_score_that_is_none_fails_its_row_alone(world: World, cell: str, reason: str) -> None:
    three_rows(world, pc=cell)
    result = world.run()
    assert (result.exit_status, result.failed, result.fetched) == (1, {reason: 1}, 2)
    assert world.fetched() == ["1.mp4", "3.mp4"]
    _, (row,) = failures(world.root)
    assert (row.row, row.reason) == (2, reason)
    assert row.detail.startswith("line 3: pc")
    assert len(row.detail) < 200
    assert world.run(min_coverage=0.6).kept == 2
    assert sorted(texts(world.root)) == ["conversation_0001.json", "conversation_0003.json"]


@pytest.mark.parametrize("cell", ["4", "4.0", " 4 ", "4.", "+4", "04", "4e0"])
def test_a_score_that_spells_a_whole_number_is_that_number(world: World, cell: str) -> None:
    three_rows(world, pc=cell)
    assert world.run().outcome == "complete"
    assert texts(world.root)["conversation_0002.json"][1] == "4"


@pytest.mark.parametrize(("cell", "answer"), [("0", "no"), ("1", "yes"), ("1.0", "yes"), ("True", "yes")])
def test_joint_becomes_yes_or_no(world: World, cell: str, answer: str) -> None:
    three_rows(world, joint=cell, pc="3.7")
    assert world.run(score_field="joint").outcome == "complete"
    assert texts(world.root)["conversation_0002.json"][1] == answer


def test_joint_that_is_neither_fails_its_row(world: World) -> None:
    three_rows(world, joint="2")
    assert world.run(score_field="joint").failed == {"unknown_word": 1}


def test_a_score_field_that_the_recipe_has_not_is_wrong_usage(world: World) -> None:
    world.rows(1)
    with pytest.raises(UsageError, match="no answer column 'PC'") as caught:
        world.run(score_field="PC")
    assert "pc, sa, joint" in caught.value.remedy
    assert world.hub.requests == []


# Addresses.


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("", "no_media"),
        ("nan", "no_media"),
        ("clips/2.mp4", "bad_url"),
        ("not a url", "bad_url"),
        ("file:///etc/hostname", "bad_url"),
        ("ftp://videos.example/2.mp4", "bad_url"),
        ("https:///2.mp4", "bad_url"),
    ],
)
def test_an_address_that_is_none_fails_its_row_alone(world: World, cell: str, reason: str) -> None:
    three_rows(world, video_url=cell)
    result = world.run()
    assert (result.exit_status, result.failed) == (1, {reason: 1})
    assert [row.row for row in failures(world.root)[1]] == [2]
    assert world.run(min_coverage=0.6).kept == 2


def test_an_address_with_spaces_around_it_is_used_without_them(world: World) -> None:
    three_rows(world, video_url=f"  {HOST}clips/2.mp4 ")
    assert world.run().outcome == "complete"
    records = Manifest.load(world.root).records()  # type: ignore[union-attr]
    assert records[1].source == f"{HOST}clips/2.mp4"


def test_one_address_in_two_rows_is_fetched_once_and_both_are_there(world: World) -> None:
    three_rows(world, video_url=f"{HOST}clips/1.mp4")
    result = world.run()
    assert (result.kept, result.fetched) == (3, 2)
    assert world.fetched() == ["1.mp4", "3.mp4"]
    first, second = (world.root / "media" / f"video_000{row}.mp4" for row in (1, 2))
    assert first.read_bytes() == second.read_bytes() == world.clip(1)
    assert world.run().outcome == "unchanged"


def test_one_address_in_two_rows_fails_both(world: World) -> None:
    three_rows(world, video_url=f"{HOST}clips/9.mp4")
    world.commit([world.row(1), *[world.row(2, video_url=f"{HOST}clips/9.mp4")] * 2])
    result = world.run()
    assert (result.failed, world.fetched()) == ({"http_404": 2}, ["1.mp4", "9.mp4"])


def test_one_content_under_two_addresses_is_two_fetches_and_two_files(world: World) -> None:
    world.rows(3)
    world.hub.add_file("clips/2.mp4", world.clip(1))
    result = world.run()
    assert (result.kept, result.fetched) == (3, 3)
    assert (world.root / "media" / "video_0002.mp4").read_bytes() == world.clip(1)
    assert world.run().outcome == "unchanged"


def test_names_that_are_odd_are_fetched_as_they_are(world: World) -> None:
    names = ["a b.mp4", "it's 100% (done); take,1.mp4", "Ünï_códe.mp4", "plus+and%20coded.mp4"]
    rows = []
    for number, name in enumerate(names, start=1):
        served = name.replace("%20", " ")
        world.hub.add_file(f"odd/{served}", world.clip(number))
        rows.append(world.row(number, video_url=f"{HOST}odd/{name}"))
    world.commit(rows)
    result = world.run()
    assert (result.kept, result.failed) == (4, {})
    for number in range(1, 5):
        assert (world.root / "media" / f"video_000{number}.mp4").read_bytes() == world.clip(number)


# Bytes, fields and lines.


def with_bad_bytes(world: World, column: str) -> bytes:
    """A table of three rows whose second has the bytes 93 and 94 of another encoding in a column."""
    rows = [world.row(number) for number in (1, 2, 3)]
    rows[1][COLUMNS.index(column)] = "@a quote@"
    return csv_bytes(rows).replace(b"@", b"\x93", 1).replace(b"@", b"\x94", 1)


def test_bad_bytes_in_a_column_that_is_read_fail_their_row(world: World) -> None:
    world.commit(with_bad_bytes(world, "upsampled_caption"))
    result = world.run(include_caption=True)
    assert (result.exit_status, result.failed) == (1, {"bad_bytes": 1})
    _, (row,) = failures(world.root)
    assert row.row == 2
    assert "column 'upsampled_caption' is not UTF-8: byte 0x93 at offset " in row.detail
    assert "(line 3, column " in row.detail


def test_bad_bytes_are_replaced_where_that_is_asked(world: World) -> None:
    world.commit(with_bad_bytes(world, "upsampled_caption"))
    result = world.run(include_caption=True, on_bad_bytes="replace")
    assert (result.outcome, result.kept, codes(result)) == ("complete", 3, ["TAB010"])
    assert texts(world.root)["conversation_0002.json"][0].endswith("\nCaption: \ufffda quote\ufffd\n")


def test_bad_bytes_in_a_column_that_is_not_read_are_a_warning(world: World) -> None:
    world.commit(with_bad_bytes(world, "upsampled_caption"))
    result = world.run()
    assert (result.outcome, result.kept, codes(result)) == ("complete", 3, ["TAB003"])
    (finding,) = [finding for finding in result.findings if finding.code == "TAB003"]
    assert (finding.severity, finding.path) == ("warning", "videophy2_test.csv")
    assert "1 row" in finding.message
    assert "upsampled_caption" in finding.message


@pytest.mark.parametrize("change", [lambda row: row[:-1], lambda row: [*row, "more"]])
def test_a_row_with_too_few_or_too_many_fields_fails_alone(
    world: World, change: Callable[[list[str]], list[str]]
) -> None:
    world.commit([world.row(1), change(world.row(2)), world.row(3)])
    result = world.run()
    assert (result.exit_status, result.failed, world.fetched()) == (
        1,
        {"wrong_columns": 1},
        ["1.mp4", "3.mp4"],
    )
    assert "and the header has 7" in failures(world.root)[1][0].detail


def test_blank_lines_are_skipped_and_not_counted_as_rows(world: World) -> None:
    lines = csv_bytes([world.row(1), world.row(2, pc="3.7"), world.row(3)]).splitlines(keepends=True)
    world.commit(b"".join([lines[0], b"\n", lines[1], b"\n", b"\n", lines[2], lines[3], b"\n"]))
    result = world.run(min_coverage=0.5)
    assert (result.rows, codes(result)) == (3, ["TAB009"])
    assert sorted(texts(world.root)) == ["conversation_0001.json", "conversation_0003.json"]
    _, (row,) = failures(world.root)
    assert (row.row, row.detail.split(":")[0]) == (2, "line 6")


def test_a_table_with_bom_and_crlf_gives_the_same_records(world: World) -> None:
    plain = csv_bytes([world.row(1), world.row(2)])
    world.commit(plain)
    world.run(include_caption=True)
    world.commit(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    other = world.run(out=world.folder / "other", include_caption=True)
    assert (other.outcome, codes(other)) == ("complete", [])
    ours, theirs = tree(world.folder / "other" / "videophy2_val"), tree(world.root)
    for name in ("text/conversation_0001.json", "text/conversation_0002.json", "meta.json"):
        assert ours[name] == theirs[name]


def test_a_cell_may_hold_lines_and_any_script(world: World) -> None:
    caption = 'First line,\nsecond “line” with "quotes" — 日本語 🎬'
    three_rows(world, upsampled_caption=caption)
    world.run(include_caption=True)
    assert texts(world.root)["conversation_0002.json"][0].endswith(f"\nCaption: {caption}\n")
    assert (world.root / "text" / "conversation_0002.json").read_bytes().isascii()


def test_a_table_that_is_cut_in_a_quote_is_refused(world: World) -> None:
    data = csv_bytes([world.row(1), world.row(2, caption="one, two")])
    world.commit(data[: data.rindex(b'"')])
    with pytest.raises(PrepError, match="still open at the end") as caught:
        world.run()
    assert caught.value.exit_status == 1


@pytest.mark.parametrize("column", ["video_url", "pc"])
def test_a_table_without_a_column_that_is_read_is_refused(world: World, column: str) -> None:
    world.commit(csv_bytes([world.row(1)], [name if name != column else f"{name}s" for name in COLUMNS]))
    with pytest.raises(PrepError, match=f"the column '{column}' is missing") as caught:
        world.run()
    assert caught.value.remedy == f"Did you mean '{column}s'?"


def test_a_column_that_is_not_read_may_be_missing(world: World) -> None:
    world.commit(csv_bytes([world.row(1)], [name if name != "sa" else "SA" for name in COLUMNS]))
    assert world.run().outcome == "complete"


# Captions, prompts and limits.


def test_captions_fall_back_to_the_plain_one_and_to_none(world: World) -> None:
    world.commit(
        [
            world.row(1),
            world.row(2, upsampled_caption=""),
            world.row(3, upsampled_caption="nan", caption="N/A"),
        ]
    )
    world.run(include_caption=True)
    plain, *_ = texts_without_captions(world)
    first, second, third = (question for question, _ in texts(world.root).values())
    assert first == plain + "\nCaption: A long take 1.\n"
    assert second == plain + "\nCaption: Take 2.\n"
    assert third == plain
    details = Manifest.load(world.root).document["details"]  # type: ignore[union-attr]
    assert details["captions"] == {"with": 2, "without": 1}


def texts_without_captions(world: World) -> list[str]:
    world.run(out=world.folder / "plain")
    return [question for question, _ in texts(world.folder / "plain" / "videophy2_val").values()]


def test_the_caption_column_can_be_chosen(world: World) -> None:
    world.commit([world.row(1), world.row(2, caption="")])
    world.run(include_caption=True, caption_field="caption")
    first, second = (question for question, _ in texts(world.root).values())
    assert first.endswith("\nCaption: Take 1.\n")
    assert "Caption:" not in second


def test_a_caption_column_without_captions_is_wrong_usage(world: World) -> None:
    with pytest.raises(UsageError, match="captions are not asked for"):
        world.run(caption_field="caption")


def test_braces_in_a_caption_are_text(world: World) -> None:
    three_rows(world, upsampled_caption="{caption} {0} %s")
    world.run(include_caption=True)
    assert texts(world.root)["conversation_0002.json"][0].endswith("\nCaption: {caption} {0} %s\n")


def test_a_prompt_may_come_from_a_file(world: World) -> None:
    world.rows(1)
    prompt = world.folder / "prompt.txt"
    prompt.write_bytes(b"\xef\xbb\xbfHow real is it?\n")
    world.run(prompt=str(prompt))
    assert texts(world.root)["conversation_0001.json"][0] == "How real is it?\n"
    with pytest.raises(PrepError, match="prompt: "):
        world.run()


def test_a_prompt_of_another_version_of_upstream_is_told(world: World) -> None:
    world.rows(1)
    script = world.folder / "upstream" / str(load_recipe("videophy2").document["prompt"]["upstream_file"])
    script.parent.mkdir(parents=True)
    script.write_text('PROMPT_TEMPLATE = ("How real " "is it?")\n')
    result = world.run(prompt="auto", upstream=world.folder / "upstream")
    assert any("is of another version" in note for note in result.notes)
    assert texts(world.root)["conversation_0001.json"][0] == "How real is it?"
    assert world.run(prompt="auto", upstream=world.folder / "upstream").outcome == "unchanged"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no prompt file"), (b"\xff", "cannot be read"), (b" \n", "is empty")]
)
def test_a_prompt_file_that_gives_no_text_is_wrong_usage(
    world: World, content: bytes | None, words: str
) -> None:
    world.rows(1)
    prompt = world.folder / "prompt.txt"
    if content is not None:
        prompt.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        world.run(prompt=str(prompt))
    assert not world.root.exists()


def test_a_limit_takes_the_first_records_of_the_source(world: World) -> None:
    world.commit([world.row(1), world.row(2, pc="3.7"), world.row(3), world.row(4)])
    result = world.run(limit=3, min_coverage=0.6)
    assert (result.rows, result.kept, world.fetched()) == (3, 2, ["1.mp4", "3.mp4"])
    assert "TAB007" not in [finding.code for finding in result.findings]
    more = world.run(min_coverage=0.6, update=True)
    assert (more.rows, more.kept, world.fetched()) == (4, 3, ["4.mp4"])


def test_each_column_is_read_once() -> None:
    rule = Rule.of(load_recipe("videophy2"), Options(include_caption=True))
    assert rule.columns == ("video_url", "pc", "upsampled_caption", "caption")
