"""nvidia-tao-daft's own validator and reader beside ours: one verdict, one conversation.

Its validator judges schema and references, and so do the codes in CODES; what else ours finds is no
matter here. Where the two part on purpose, the variant says why.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import prep
from prep.findings import Report
from prep.layouts.reasoning_qa import Mode
from prep.manifest import Manifest
from prep.upstream.adapters.reasoning import DaftReasoning, OurReasoning, open_side
from prep.validation_reasoning import check_annotation_file
from tests.commands import prep as prep_command
from tests.reasoning import annotation, clips, item, run

pytest.importorskip(
    "nvidia_tao_daft", reason="nvidia-tao-daft is not installed: pip install 'nvidia-tao-daft>=7'"
)

from nvidia_tao_daft.datasets.tao_vl_reason_v1_0 import (
    TaoVlReasonV1_0CosmosRLConversationDataset as DaftReader,
)
from nvidia_tao_daft.validators import TaoVlReasonV1_0Validator as DaftValidator

SCHEMA = ("TXT001", "TXT002", "TXT003", "TXT004", "TXT005", "REA001", "REA002", "REC001")
REFERENCES = ("FIL001", "FIL002", "FIL005", "FIL010", "FIL011", "FIL014")
CODES = frozenset((*SCHEMA, *REFERENCES))
"""The errors of ours that speak of schema, texts and references."""

Edit = Callable[[dict[str, Any], Path], object]
FILE = "questions.json"


@dataclass(frozen=True)
class Variant:
    """An edit of a good document, or of what stands beside it, and what ours finds then.

    An edit that gives bytes gives the file's. `daft` is tao-daft's verdict; where that is not ours,
    `why` says for what reason.
    """

    edit: Edit
    codes: frozenset[str] = frozenset()
    daft: Literal["passes", "fails"] = "fails"
    why: str = ""


def broken(code: str, edit: Edit) -> Variant:
    return Variant(edit, frozenset({code}))


def sound(edit: Edit) -> Variant:
    return Variant(edit, daft="passes")


def looser(code: str, why: str, edit: Edit) -> Variant:
    """What tao-daft lets pass and ours refuses."""
    return Variant(edit, frozenset({code}), "passes", why)


def first(**changes: Any) -> Edit:
    """The first item, with keys set, or taken out by `...`."""

    def edit(document: dict[str, Any], _: Path) -> None:
        document["items"][0].update(changes)
        document["items"][0] = {key: value for key, value in document["items"][0].items() if value is not ...}

    return edit


def around(**changes: Any) -> Edit:
    """What stands around the items, likewise."""

    def edit(document: dict[str, Any], _: Path) -> None:
        document.update(changes)
        for key in [key for key, value in changes.items() if value is ...]:
            del document[key]

    return edit


def metadata(**changes: Any) -> Edit:
    def edit(document: dict[str, Any], folder: Path) -> None:
        around(**changes)(document["metadata"], folder)

    return edit


def disk(change: Callable[[Path], object]) -> Edit:
    """The first item's video, changed."""
    return lambda document, folder: change(folder / "videos/a.mp4")


def text(change: Callable[[bytes], bytes]) -> Edit:
    return lambda document, _: change(json.dumps(document).encode())


def moved(root: str | None) -> Edit:
    """The videos stand elsewhere, and the file says so."""

    def edit(document: dict[str, Any], folder: Path) -> None:
        (folder / "videos").rename(folder / "elsewhere")
        document["media_root"] = root or str(folder / "elsewhere")
        for each in document["items"]:
            each["video_id"] = each["video_id"].removeprefix("videos/")

    return edit


def replaced(video: Path, make: Callable[[Path], object]) -> None:
    video.unlink()
    make(video)


def outside(document: dict[str, Any], folder: Path) -> None:
    (folder / "videos/a.mp4").rename(folder.parent / "a.mp4")
    document["items"][0]["video_id"] = "../a.mp4"


def an_image(document: dict[str, Any], folder: Path) -> None:
    (folder / "a.jpg").write_bytes(b"\xff\xd8\xff\xd9")
    document["items"][0] = {"image_id": "a.jpg", "question": "What?", "answer": "That."}


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
EXISTS = "it asks only whether the path exists"
NAMED = "it skips files whose format it does not know; training takes them (contracts, section 6)"

VARIANTS: dict[str, Variant] = {
    # Sound for both.
    "untouched": sound(around()),
    "a media_root of null": sound(around(media_root=None)),
    "a media_root below the file": sound(moved("elsewhere")),
    "an absolute media_root": sound(moved(None)),
    "a key of one's own in an item": sound(first(difficulty=3)),
    "no reasoning": sound(first(reasoning=...)),
    "a blank answer": sound(first(answer=" ")),
    "all optional metadata": sound(metadata(task="bcq", date="2025-01-01", description="", tags=["a"])),
    # The document.
    "no metadata": broken("TXT005", around(metadata=...)),
    "metadata that is a list": broken("TXT005", around(metadata=[])),
    "no licence": broken("TXT005", metadata(license=...)),
    "a licence that is a number": broken("TXT005", metadata(license=2)),
    "no type": broken("TXT005", metadata(type=...)),
    "another type": broken("TXT005", metadata(type="video")),
    "metadata with another key": broken("TXT005", metadata(author="me")),
    "tags that are a text": broken("TXT005", metadata(tags="a")),
    "a tag that is a number": broken("TXT005", metadata(tags=["a", 1])),
    "a date that is a number": broken("TXT005", metadata(date=2025)),
    "another key beside the items": broken("TXT005", around(samples=[])),
    "a media_root that is a list": broken("TXT005", around(media_root=["videos"])),
    "items that are an object": broken("TXT005", around(items={})),
    "no items": broken("TXT005", around(items=...)),
    "another format": broken("REA001", around(format="metropolis-v3.0")),
    "a later version of the format": broken("REA001", around(format="tao-vl-reason-v2.0")),
    "a list of items alone": broken("REA001", lambda document, _: json.dumps(document["items"]).encode()),
    "a file that is cut": broken("TXT003", text(lambda data: data[:-40])),
    "an empty file": broken("FIL002", text(lambda data: b"")),
    "a trailing comma": broken("TXT003", text(lambda data: data[:-1] + b",}")),
    "a byte order mark": broken("TXT002", text(lambda data: b"\xef\xbb\xbf" + data)),
    "Latin-1": broken("TXT001", text(lambda data: data.replace(b"Why?", b"Warum, J\xfcrgen?"))),
    # The items.
    "an item that is a text": broken("TXT005", lambda document, _: document["items"].insert(0, "Why?")),
    "no question": broken("TXT005", first(question=...)),
    "no answer": broken("TXT005", first(answer=...)),
    "a question of null": broken("TXT005", first(question=None)),
    "an answer that is a number": broken("TXT005", first(answer=4)),
    "an answer that is a list": broken("TXT005", first(answer=["So."])),
    "a reasoning of null": broken("TXT005", first(reasoning=None)),
    "an item_index that is a number": broken("TXT005", first(item_index=0)),
    "a video and an image": broken("TXT005", first(image_id="videos/a.mp4")),
    "neither video nor image": broken("TXT005", first(video_id=...)),
    "a video_id that is a number": broken("TXT005", first(video_id=1)),
    "an empty video_id": broken("TXT005", first(video_id="")),
    # The references.
    "a video that is not there": broken("FIL005", disk(Path.unlink)),
    "a video under another case": broken("FIL005", first(video_id="videos/A.mp4")),
    "a blank behind the name": broken("FIL005", first(video_id="videos/a.mp4 ")),
    "a URL": broken("FIL005", first(video_id="https://host.example/a.mp4")),
    "an image that is not there": broken("REA002", first(video_id=..., image_id="a.jpg")),
    "a media_root that is not there": broken("FIL005", around(media_root="nowhere")),
    "a link that leads nowhere": broken(
        "FIL010", disk(lambda video: replaced(video, lambda path: path.symlink_to("gone.mp4")))
    ),
    # Where the two part on purpose.
    "a video of no bytes": looser("FIL002", EXISTS, disk(lambda video: video.write_bytes(b""))),
    "a Git-LFS pointer": looser("FIL001", EXISTS, disk(lambda video: video.write_bytes(POINTER))),
    "a folder for a video": looser("FIL014", EXISTS, disk(lambda video: replaced(video, Path.mkdir))),
    "a path out of the media root": looser("FIL011", EXISTS, outside),
    "an item_index twice": looser(
        "REC001",
        "it compares no two items",
        lambda document, _: [each.update(item_index="0") for each in document["items"]],
    ),
    "an image": looser("REA002", "the recipes read video_id only (contracts, section 6)", an_image),
    "bare items": Variant(around(format=..., metadata=...), why=NAMED),
    "upstream's name of the format": Variant(around(format="cosmos-video-reasoning-v1.0"), why=NAMED),
}


def document() -> dict[str, Any]:
    return {
        "format": "tao-vl-reason-v1.0",
        "metadata": {"type": "annotation", "license": "CC-BY-4.0"},
        "items": [item(f"videos/{name}.mp4", item_index=name) for name in "ab"],
    }


def write(folder: Path, edit: Edit) -> Path:
    """A tree with one annotation file and two videos, edited."""
    clips(folder, "videos/a.mp4", "videos/b.mp4")
    made = document()
    data = edit(made, folder)
    (folder / FILE).write_bytes(data if isinstance(data, bytes) else json.dumps(made).encode())
    return folder / FILE


def daft_passes(folder: Path) -> bool:
    """The verdict of its command."""
    arguments = argparse.Namespace(path=folder, strict=False)
    try:
        return DaftValidator(arguments).run() == 0
    except UnicodeDecodeError:
        return False  # the command ends with a traceback


def daft_items(folder: Path) -> set[int]:
    """The items that its messages blame."""
    errors = DaftValidator().validate_dataset(folder).errors
    return {int(number) for error in errors for number in re.findall(r"items[.\[](\d+)", error)[:1]}


def our_findings(path: Path) -> tuple[set[str], set[int]]:
    """Our codes on schema, texts and references, and the items that they blame."""
    report = Report(path.name)
    check_annotation_file(path, report)
    chosen = [
        finding
        for group in report.ordered()
        for finding in group.findings
        if group.code in CODES and finding.severity == "error"
    ]
    places = (re.match(r"/items/(\d+)", finding.place) for finding in chosen)
    return {finding.code for finding in chosen}, {int(place[1]) for place in places if place}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_verdict_on_a_variant(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    path = write(tmp_path / "tree", variant.edit)
    codes, _ = our_findings(path)
    assert codes == variant.codes
    assert daft_passes(path.parent) is (variant.daft == "passes")
    assert (variant.daft == "passes") is (not codes) or variant.why


@pytest.mark.parametrize(
    "name", [name for name, each in VARIANTS.items() if each.daft == "fails" and not each.why]
)
def test_the_item_that_is_blamed(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tree", VARIANTS[name].edit)
    if name in ("an empty video_id", "Latin-1"):
        with pytest.raises((TypeError, UnicodeDecodeError)):
            daft_items(path.parent)  # it breaks down there
    else:
        assert our_findings(path)[1] == daft_items(path.parent)


def test_a_cut_file_beside_a_whole_one(tmp_path: Path) -> None:
    """tao-daft skips what it cannot read; ours says that training would stop at it."""
    path = write(tmp_path / "tree", around())
    (path.parent / "cut.json").write_bytes(path.read_bytes()[:-40])
    assert daft_passes(path.parent)
    assert our_findings(path) == (set(), set())
    assert our_findings(path.parent / "cut.json")[0] == {"TXT003"}


def real_files(real_data: Path) -> list[Path]:
    return sorted((real_data / "daft/tao-vl-reason-v1.0").glob("*/*.json"))


def test_the_verdict_on_the_real_files(real_data: Path) -> None:
    """All 23 pass; the videos stand here without their bytes, and one file asks about an image."""
    paths = real_files(real_data)
    assert len(paths) == 23
    for folder in {path.parent for path in paths}:
        result = DaftValidator().validate_dataset(folder)
        assert (result.errors, result.files_passed) == ([], len(list(folder.glob("*.json"))))
    found = {f"{path.parent.name}/{path.name}": our_findings(path)[0] for path in paths}
    assert found.pop("its_anomaly/grounding.json") == {"REA002"}
    assert set(map(frozenset, found.values())) == {frozenset({"FIL002"})}


@pytest.mark.parametrize("mode", ["answer", "think", "hybrid"])
def test_the_real_conversations(mode: Mode, real_data: Path, tmp_path: Path) -> None:
    """Every item of the files whose media root both take the same, in one dataset a folder."""
    paths = [path for path in real_files(real_data) if not json.loads(path.read_bytes()).get("media_root")]
    paths = [path for path in paths if path.name != "grounding.json"]  # an image: neither reads it
    assert len(paths) == 12
    (result,) = run(tmp_path, paths, mode=mode, media="reference", ignore=("FIL002", "FIL008"))
    assert_same(result.root, paths, mode)


@pytest.mark.parametrize("mode", ["answer", "think", "hybrid"])
@pytest.mark.parametrize("prompt", ["", "Look closely."])
def test_conversations(mode: Mode, prompt: str, tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4", "b.mp4")
    one = [item("a.mp4"), item("b.mp4", "Who?", reasoning=None), item("a.mp4", "When?", reasoning="")]
    paths = [
        annotation(source / "one.json", one),
        annotation(source / "two.json", [item("b.mp4", "\u00dcber was?")]),
    ]
    (result,) = run(tmp_path / "out", paths, mode=mode, media="reference", system_prompt=prompt)
    assert_same(result.root, paths, mode, system_prompt=prompt)


def assert_same(root: Path, paths: list[Path], mode: Mode, **options: Any) -> None:
    """Ours, as it is opened, against the package's reader over the files where they came from."""
    theirs = DaftReader([str(path.absolute()) for path in paths], response_mode=mode, **options)
    ours = prep.open(root)
    assert len(ours) == len(theirs)
    reference = DaftReasoning(theirs, ours.sampling)
    plain = OurReasoning(ours)
    for at in range(len(ours)):
        assert plain[at] == reference[at]
    if mode != "hybrid":  # the messages themselves, the path inside
        assert [ours[at]["messages"] for at in range(len(ours))] == [theirs[at] for at in range(len(theirs))]


def test_an_embedded_media_root_is_not_taken_by_its_reader(tmp_path: Path) -> None:
    """The one place where the two conversations part; REA006 says so of the source."""
    clips(tmp_path / "media", "a.mp4")
    path = annotation(tmp_path / "source/one.json", [item("a.mp4")], media_root="../media")
    (result,) = run(tmp_path / "out", [path], media="reference", mode="answer")
    ours, theirs = prep.open(result.root)[0]["messages"], DaftReader([str(path)])[0]
    places = [Path(each[0]["content"][0].pop("video")) for each in (ours, theirs)]
    assert ours == theirs
    assert [place.resolve() for place in places] == [tmp_path / "media/a.mp4", tmp_path / "source/a.mp4"]
    report = Report("x")
    check_annotation_file(path, report)
    assert {group.code for group in report.ordered()} == {"REA006", "REA007"}


def test_the_command_names_what_differs(tmp_path: Path) -> None:
    """In a prepared dataset the media stand in a folder of their own, where its reader does not look."""
    source = clips(tmp_path / "source", "a.mp4", "b.mp4")
    items = [item("a.mp4"), item("b.mp4", reasoning=None), item("b.mp4", "Who?")]
    (result,) = run(tmp_path / "out", [annotation(source / "one.json", items)], mode="hybrid", stride=2)
    command = ("diff", result.root, "--reference", "tao-daft", "-q", "--format", "json")
    done = prep_command(*command)
    assert done.returncode == 0, done.stdout + done.stderr  # the recipe declares it
    assert json.loads(done.stdout)["samples"] == 4
    fields = {each["field"]: each["outside"] for each in json.loads(done.stdout)["fields"]}
    assert fields == {"id": 0, "messages": 0, "video": 4, "item": 0, "form": 0}


def test_what_the_adapter_says_of_the_package(tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4")
    (result,) = run(tmp_path / "out", [annotation(source / "a.json", [item("a.mp4")])], mode="answer")
    manifest = Manifest.load(result.root)
    assert manifest is not None
    side = open_side(manifest)
    assert re.fullmatch(r"nvidia-tao-daft \d+\.\d+\.\d+", str(side.facts["loaded"]))
