"""Each rule of the conversations layout finds its fault, and lets the near miss pass."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep import schemas
from prep.findings import Finding
from prep.layouts.conversation_shape import shape_findings
from prep.layouts.conversations import Answer
from prep.layouts.conversations_checks import Tree, media_files, scan
from prep.layouts.conversations_turns import CONVERSATION, RULES, Wanted, plain_question, read_turns
from prep.layouts.disk import check_disk
from tests.trees import PROMPT, conversation, edit_json, make_tree

META, FIRST = "meta.json", "text/conversation_0001.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
SCALE = Wanted(Answer("integer", 1, 5))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "val")


def found_in(root: Path, wanted: Wanted | None = None, *, enveloped: bool = False) -> list[Finding]:
    findings: list[Finding] = []
    scanned = scan(Tree(root, wanted or Wanted(), enveloped), findings.append)
    list(check_disk(root, [scanned.media, scanned.conversations], findings.append, strays=scanned.complete))
    return findings


def codes_in(root: Path, wanted: Wanted | None = None) -> list[str]:
    return [finding.code for finding in found_in(root, wanted)]


def write_turns(root: Path, *turns: tuple[str, Any], name: str = FIRST) -> None:
    document = {"conversations": [{"role": role, "content": content} for role, content in turns]}
    (root / name).write_text(json.dumps(document), encoding="ascii")


def asked(text: str, *blocks: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
    return "user", [*(blocks or ({"type": "video", "video": "video_0"},)), {"type": "text", "text": text}]


def test_a_valid_tree_has_no_finding(tree: Path) -> None:
    assert found_in(tree, SCALE) == []


def replace_file(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes(data) and None


def edit(name: str, *steps: str | int, value: Any) -> Callable[[Path], None]:
    return lambda root: edit_json(root / name, *steps, value=value)


BROKEN: list[tuple[str, str, str, Callable[[Path], None]]] = [
    ("TXT003", META, "line 2, column 7", replace_file(META, b'[\n  "id": 1]')),
    ("TXT003", FIRST, "line 1, column 8", replace_file(FIRST, b'{"a": 1')),
    ("TXT004", META, "line 2, column 1", replace_file(META, b'{"id": "a"}\n{"id": "b"}\n')),
    ("TXT004", META, "", replace_file(META, b'{"id": "a", "media": "b", "conversation": "c"}')),
    ("TXT004", FIRST, "line 2, column 1", replace_file(FIRST, b'{"role": "user"}\n{"role": "assistant"}\n')),
    ("TXT001", FIRST, "line 2, column 6", replace_file(FIRST, b'{\n"conv\xe9": 1}')),
    ("TXT002", META, "line 1", replace_file(META, b"\xef\xbb\xbf[]")),
    ("TXT002", FIRST, "line 1", replace_file(FIRST, b"\xef\xbb\xbf{}")),
    ("FIL018", META, "", replace_file(META, gzip.compress(b"[]"))),
    ("FIL018", FIRST, "", replace_file(FIRST, b"\x28\xb5\x2f\xfd" + bytes(20))),
    ("FIL001", META, "", replace_file(META, LFS)),
    ("FIL001", FIRST, "", replace_file(FIRST, LFS)),
    ("FIL001", "media/video_0002.mp4", "", replace_file("media/video_0002.mp4", LFS)),
    ("FIL002", META, "", replace_file(META, b"")),
    ("FIL002", FIRST, "", replace_file(FIRST, b"")),
    ("FIL002", "media/video_0001.mp4", "", replace_file("media/video_0001.mp4", b"")),
    ("FIL013", FIRST, "", replace_file(FIRST, b"<html><body>404</body></html>")),
    ("TAB008", META, "", replace_file(META, b"[]")),
    ("TXT005", META, "/1/media", edit(META, 1, "media", value=7)),
    ("TXT005", META, "/1", edit(META, 1, value="a")),
    ("TXT005", FIRST, "/", replace_file(FIRST, b'{"messages": []}')),
    ("TXT005", FIRST, "/conversations", edit(FIRST, "conversations", value=[])),
    ("TXT005", FIRST, "/conversations/0/role", edit(FIRST, "conversations", 0, "role", value="human")),
    ("TXT005", FIRST, "/conversations/1/content", edit(FIRST, "conversations", 1, "content", value=None)),
    (
        "TXT005",
        FIRST,
        "/conversations/1/content/0/text",
        edit(FIRST, "conversations", 1, "content", 0, "text", value=4),
    ),
    (
        "TXT005",
        FIRST,
        "/conversations/0/content/0/type",
        edit(FIRST, "conversations", 0, "content", 0, "type", value="audio"),
    ),
    ("TXT007", META, "/0/weight", edit(META, 0, "weight", value=2)),
    ("TXT007", FIRST, "/conversations/1/weight", edit(FIRST, "conversations", 1, "weight", value=0)),
    ("REC001", META, "/2/id", edit(META, 2, "id", value="conversation_0001")),
    ("FIL017", "media/video_0001.mp4", "", edit(META, 2, "media", value="media/video_0001.mp4")),
    ("FIL005", "media/none.mp4", "", edit(META, 2, "media", value="media/none.mp4")),
    ("FIL005", "text/none.json", "", edit(META, 2, "conversation", value="text/none.json")),
    ("FIL011", META, "/0/media", edit(META, 0, "media", value="../val/../x.mp4")),
    ("FIL011", META, "/0/conversation", edit(META, 0, "conversation", value="text/../../x.json")),
    ("FIL014", "text", "", edit(META, 0, "conversation", value="text")),
    ("FIL014", "media", "", edit(META, 0, "media", value="media")),
    ("FIL006", "media/video_0099.mp4", "", replace_file("media/video_0099.mp4", b"x" * 600)),
    ("FIL007", "media/video_0004.mp4.part", "", replace_file("media/video_0004.mp4.part", b"x")),
    ("FIL007", ".build_progress.json", "", replace_file(".build_progress.json", b"{}")),
]


@pytest.mark.parametrize(("code", "path", "place", "break_it"), BROKEN)
def test_fault_is_found_at_its_place(
    tree: Path, code: str, path: str, place: str, break_it: Callable[[Path], None]
) -> None:
    break_it(tree)
    places = {(finding.code, finding.path, finding.place) for finding in found_in(tree)}
    assert any((code, path) == entry[:2] and entry[2].startswith(place) for entry in places), places


def test_a_text_that_json_reads_and_orjson_does_not_is_fine(tree: Path) -> None:
    (tree / META).write_bytes((tree / META).read_bytes()[:-1] + b"\n]\n\n")
    document = json.loads((tree / FIRST).read_bytes())
    document["conversations"][0]["weight"] = float("nan")
    (tree / FIRST).write_text(json.dumps(document), encoding="ascii")
    assert codes_in(tree) == ["TXT007"]


def test_a_long_meta_file_is_read_in_pieces_and_its_end_is_judged(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val", 2)
    entries = [
        {"id": f"row }},\n {n}", "media": "media/video_0001.mp4", "conversation": FIRST}
        for n in range(20_000)
    ]
    text = json.dumps(entries, indent=2)
    (tree / META).write_text(text, encoding="ascii")
    findings: list[Finding] = []
    assert scan(Tree(tree), findings.append).records == 20_000
    assert [finding.code for finding in findings] == ["FIL017"]
    (tree / META).write_text(text[:-3] + "},]", encoding="ascii")
    scanned = scan(Tree(tree), findings.append)
    assert not scanned.complete
    assert "TXT003" in [finding.code for finding in findings]


def test_absolute_path_below_the_root_is_a_warning(tree: Path) -> None:
    edit_json(tree / META, 0, "media", value=str(tree / "media/video_0001.mp4"))
    findings = found_in(tree)
    assert [(finding.code, finding.severity, finding.place) for finding in findings] == [
        ("FIL012", "warning", "/0/media")
    ]


def test_absolute_path_elsewhere_leaves_the_directory(tree: Path) -> None:
    edit_json(tree / META, 0, "media", value="/etc/hostname")
    assert {"FIL011", "FIL012"} <= set(codes_in(tree))


def test_a_path_with_a_harmless_dot_is_the_same_path(tree: Path) -> None:
    edit_json(tree / META, 0, "media", value="./media//video_0001.mp4")
    assert found_in(tree) == []


def test_links(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.mp4"
    (tree / "media/video_0001.mp4").rename(outside)
    (tree / "media/video_0001.mp4").symlink_to(outside)
    (tree / "media/video_0002.mp4").unlink()
    (tree / "media/video_0002.mp4").symlink_to("gone.mp4")
    (tree / "media/video_0003.mp4").rename(tree / "media/real.mp4")
    (tree / "media/video_0003.mp4").symlink_to("real.mp4")
    findings = [(finding.code, finding.path) for finding in found_in(tree)]
    assert findings == [
        ("FIL011", "media/video_0001.mp4"),
        ("FIL010", "media/video_0002.mp4"),
        ("FIL006", "media/real.mp4"),
    ]


def test_names_that_differ_only_in_case(tree: Path) -> None:
    (tree / "media/VIDEO_0001.mp4").write_bytes(b"x" * 600)
    assert codes_in(tree) == ["FIL015", "FIL006"]


def test_papers_and_the_hub_clients_notes_are_no_strays(tree: Path) -> None:
    for name in ("README.md", "LICENSE", ".gitattributes", ".cache/huggingface/download/media/a.metadata"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x", encoding="ascii")
    assert found_in(tree) == []
    (tree / ".cache/huggingface/download/b.incomplete").write_text("x", encoding="ascii")
    assert codes_in(tree) == ["FIL007"]


def test_media_that_nobody_may_read(tree: Path) -> None:
    (tree / "media/video_0001.mp4").chmod(0)
    assert codes_in(tree) == ["FIL014"]
    (tree / "media/video_0001.mp4").chmod(0o400 if os.geteuid() else 0o440)
    assert codes_in(tree) == []


def test_a_pipe_under_a_files_name_does_not_hang(tree: Path) -> None:
    (tree / FIRST).unlink()
    os.mkfifo(tree / FIRST)
    assert codes_in(tree) == ["FIL002"]


def test_letters_beyond_ascii(tree: Path) -> None:
    document = conversation("Où est le chat, dans cette vidéo ?", "3")
    (tree / FIRST).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    assert codes_in(tree) == ["TXT008"]
    (tree / FIRST).write_text(json.dumps(document), encoding="utf-8")
    assert codes_in(tree) == []


VIDEO = {"type": "video", "video": "video_0"}
TOLD = ("assistant", [{"type": "text", "text": "4"}])
TURNS: list[tuple[str | None, list[tuple[str, Any]]]] = [
    ("REC006", [TOLD, asked(PROMPT)]),
    ("REC006", [asked(PROMPT), TOLD, TOLD]),
    ("REC006", [asked(PROMPT), ("system", "Be brief."), TOLD]),
    (None, [("system", "Be brief."), asked(PROMPT), TOLD]),
    (None, [asked(PROMPT), TOLD, ("user", "And now?"), TOLD]),
    ("REC007", [asked(PROMPT)]),
    ("REC005", [asked(PROMPT), ("assistant", "  \n")]),
    (None, [("user", [VIDEO]), TOLD]),
    ("REC002", [("user", PROMPT), TOLD]),
    ("REC002", [asked(PROMPT, VIDEO, {"type": "video", "video": "video_1"}), TOLD]),
    ("REC002", [asked(PROMPT, VIDEO, VIDEO), TOLD]),
    ("REC002", [asked(PROMPT, {"type": "image", "image": "image_0"}), TOLD]),
    ("REC002", [("user", PROMPT), ("assistant", [VIDEO, {"type": "text", "text": "4"}])]),
    (None, [asked(PROMPT, {"type": "video", "video": "any_name"}), TOLD]),
    ("REC003", [asked("<video>\nWhat is this?"), TOLD]),
    ("REC003", [("system", "<image> first"), asked(PROMPT), TOLD]),
    ("REC003", [asked("<|vision_start|><|video_pad|><|vision_end|> What?"), TOLD]),
    (None, [asked("Is 1 < 2 in the <video clip>, or <videos>?"), TOLD]),
    ("REC008", [asked(PROMPT), ("assistant", "3.7")]),
    ("REC008", [asked(PROMPT), ("assistant", "6")]),
    (None, [asked(PROMPT), ("assistant", "5")]),
    ("REC009", [asked(PROMPT), ("assistant", "nan")]),
    ("REC009", [asked("None"), TOLD]),
    ("REC009", [asked(f"{PROMPT}\nCaption: nan\n"), TOLD]),
    (None, [asked(f"{PROMPT}\nCaption: nan bread is baked\n"), TOLD]),
    (None, [asked("Who is Nan, and is her score null or None of these?"), TOLD]),
]


@pytest.mark.parametrize(("code", "turns"), TURNS)
def test_rules_on_turns(tree: Path, code: str | None, turns: list[tuple[str, Any]]) -> None:
    write_turns(tree, *turns)
    findings = [finding for finding in found_in(tree, SCALE) if finding.code != "TXT006"]
    assert [finding.code for finding in findings] == ([code] if code else [])
    assert all(finding.path == FIRST for finding in findings)


def test_a_placeholder_in_an_answer_is_a_warning(tree: Path) -> None:
    write_turns(tree, asked(PROMPT), ("assistant", [{"type": "text", "text": "<image> shows 4"}]))
    assert [(finding.code, finding.severity) for finding in found_in(tree)] == [("REC004", "warning")]


def test_without_a_scale_any_answer_will_do(tree: Path) -> None:
    write_turns(tree, asked(PROMPT), ("assistant", [{"type": "text", "text": "It falls."}]))
    assert found_in(tree) == []


def test_fields_of_several_shapes_are_counted(tree: Path) -> None:
    edit_json(tree / META, 1, "media", value=["media/video_0002.mp4"])
    messages = [finding.message for finding in found_in(tree) if finding.code == "TXT006"]
    assert messages == ["the field 'media' is list in 1 (first /1/media), text in 2 (first /0/media)"]


def test_content_that_is_now_a_text_and_now_a_list(tree: Path) -> None:
    write_turns(tree, asked(PROMPT), ("assistant", "4"))
    assert codes_in(tree) == ["TXT006"]
    for row in (2, 3):
        write_turns(tree, asked(PROMPT), ("assistant", "4"), name=f"text/conversation_000{row}.json")
    assert codes_in(tree) == []


CAPTION: dict[str, tuple[Callable[[int], str], list[str]]] = {
    "one caption on a third": (lambda row: f"Caption: {'default' if row % 3 == 0 else row}", ["REC010"]),
    "one prompt for all": (lambda row: PROMPT, []),
    "prompts from a list": (lambda row: f"{PROMPT} {row % 3}", []),
    "every caption its own": (lambda row: f"Caption: {row}", []),
}


@pytest.mark.parametrize("name", CAPTION)
def test_one_text_on_many_records(tmp_path: Path, name: str) -> None:
    question, expected = CAPTION[name]
    tree = make_tree(tmp_path / "val", 24, question=question)
    findings = found_in(tree)
    assert [finding.code for finding in findings] == expected
    assert all("8 of 24" in finding.message and "default" in finding.message for finding in findings)


def test_media_files_are_those_that_can_be_decoded(tree: Path) -> None:
    (tree / "media/video_0002.mp4").write_bytes(b"")
    edit_json(tree / META, 2, "media", value="media/video_0001.mp4")
    assert list(media_files(Tree(tree))) == ["media/video_0001.mp4"]


texts = st.sampled_from(
    ["4", "nan", "<image>", "", " ", PROMPT, f"{PROMPT} <video>", f"{PROMPT}\nCaption: nan", "9"]
)
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.sampled_from(
        [VIDEO, {"type": "image", "image": "image_0"}, {"type": "video", "video": ""}, {"type": "text"}]
    ),
    st.sampled_from([7, None, {"type": "text", "text": 4}, {**VIDEO, "fps": 2}]),
)
turn = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", 1]),
        "content": st.lists(blocks, max_size=3) | texts,
    },
    optional={"weight": st.just(1)},
)
near = st.builds(conversation, texts, texts) | st.fixed_dictionaries(
    {"conversations": st.lists(turn, max_size=3)}
)


@given(near | blocks, st.sampled_from([SCALE, Wanted()]))
def test_what_passes_at_a_glance_passes_the_schema_and_every_rule(document: Any, wanted: Wanted) -> None:
    question = plain_question(document, "a.mp4", wanted)
    if question is None:
        return
    assert schemas.is_valid(CONVERSATION, document)
    facts = read_turns(document["conversations"], "a.json", "a.mp4", wanted)
    assert facts.questions == [(0, question)]
    assert [finding for rule in RULES for finding in rule(facts)] == []


@given(near | blocks)
def test_every_document_that_breaks_the_schema_is_explained(document: Any) -> None:
    findings = shape_findings(document, "a.json")
    assert bool(findings) is not schemas.is_valid(CONVERSATION, document)
    assert not any("(schema" in finding.message for finding in findings)


def test_the_glance_lets_the_usual_conversation_pass() -> None:
    assert plain_question(conversation(PROMPT, "4"), "a.mp4", SCALE) == PROMPT


ENVELOPE_FACTS: list[tuple[str, str | None, list[str]]] = [
    # What `tao-daft validate cosmos-reason-v1.0` 7.0.0 said of its own examples (its_anomaly): passed
    # as they are, zero-byte media included; failed for each fault below but the unnamed file.
    ("as it is", None, []),
    ("missing media", "media", ["FIL005"]),
    ("missing conversation", "conversation", ["FIL005"]),
    ("cut conversation", "cut conversation", ["TXT003"]),
    ("cut meta", "cut meta", ["TXT003"]),
    ("duplicate id", "duplicate", ["REC001"]),
    ("bare meta", "bare", ["TXT005"]),
    ("unnamed and broken", "unnamed", ["TXT003"]),
]


@pytest.mark.parametrize(("name", "fault", "expected"), ENVELOPE_FACTS)
def test_envelope_agrees_with_its_own_validator(
    real_data: Path, tmp_path: Path, name: str, fault: str | None, expected: list[str]
) -> None:
    from prep.validation import validate

    tree = tmp_path / "its_anomaly"
    for path in (real_data / "daft/cosmos-reason-v1.0/its_anomaly").rglob("*"):
        if path.is_file():
            copy = tree / path.relative_to(real_data / "daft/cosmos-reason-v1.0/its_anomaly")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    _break_envelope(tree, fault)
    report = validate(tree, level="quick", envelope="cosmos-reason-v1.0", ignore=["FIL002"])
    assert [group.code for group in report.ordered() if group.severity == "error"] == expected


def _break_envelope(tree: Path, fault: str | None) -> None:
    text = tree / "text/sample_002.json"
    if fault == "media":
        (tree / "media/video_001.mp4").unlink()
    elif fault == "conversation":
        text.unlink()
    elif fault == "cut conversation":
        text.write_bytes(text.read_bytes()[:300])
    elif fault == "cut meta":
        (tree / META).write_bytes((tree / META).read_bytes()[:300])
    elif fault == "duplicate":
        edit_json(tree / META, "samples", 1, "id", value="sample_001")
    elif fault == "bare":
        samples = json.loads((tree / META).read_bytes())["samples"]
        (tree / META).write_text(json.dumps(samples), encoding="ascii")
    elif fault == "unnamed":
        (tree / "text/sample_009.json").write_bytes(text.read_bytes()[:300])


@pytest.mark.parametrize(("folder", "empty"), [("", 5), ("its_anomaly", 3), ("its_collision", 2)])
def test_envelope_of_the_real_examples(real_data: Path, folder: str, empty: int) -> None:
    from prep.validation import validate

    root = real_data / "daft/cosmos-reason-v1.0" / folder
    report = validate(root, level="quick", envelope="cosmos-reason-v1.0")
    # Its own validator passes all three; the media there are placeholders of 0 bytes, which we name.
    assert {group.code: group.count for group in report.ordered() if group.severity == "error"} == {
        "FIL002": empty
    }


def test_an_envelope_that_was_not_asked_for_is_named(real_data: Path) -> None:
    findings: list[Finding] = []
    scan(Tree(real_data / "daft/cosmos-reason-v1.0/its_anomaly"), findings.append)
    assert [(finding.code, "--envelope cosmos-reason-v1.0" in finding.remedy) for finding in findings] == [
        ("TXT004", True)
    ]


def test_tao_daft_itself_when_it_is_installed(real_data: Path) -> None:
    pytest.importorskip("nvidia_tao_daft", reason="the reference extra is not installed")
    command = [sys.executable, "-m", "nvidia_tao_daft.cli.cli", "validate", "cosmos-reason-v1.0", "--path"]
    done = subprocess.run(
        [*command, str(real_data / "daft/cosmos-reason-v1.0")], capture_output=True, check=False
    )
    assert done.returncode == 0
