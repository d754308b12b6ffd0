"""The structure check: silent on whole files, and sure to find every cut."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.container import check_structure, container_of
from tests.clips import make_clip, make_sound


def codes(path: Path) -> list[str]:
    return [finding.code for finding in check_structure(path)]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One whole file a container."""
    folder = tmp_path_factory.mktemp("clips")
    fragmented = {"movflags": "frag_keyframe+empty_moov"}
    return {
        "mp4": make_clip(folder / "plain.mp4", audio=True),
        "faststart": make_clip(folder / "fast.mp4", options={"movflags": "faststart"}),
        "fragmented": make_clip(folder / "fragments.mp4", options=fragmented),
        "mov": make_clip(folder / "clip.mov"),
        "matroska": make_clip(folder / "clip.mkv"),
        "webm": make_clip(folder / "clip.webm", codec="libvpx", frames=5),
        "avi": make_clip(folder / "clip.avi", codec="mpeg4"),
        "mpegts": make_clip(folder / "clip.ts"),
    }


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def test_every_real_clip_is_whole(real_data: Path) -> None:
    clips = [*real_data.glob("video/*/*.*"), *real_data.glob("videophy2/**/*.mp4")]
    assert len(clips) == 35
    assert {clip.name: codes(clip) for clip in clips if codes(clip)} == {}


def test_made_clips_are_whole_and_known_by_content(clips: dict[str, Path]) -> None:
    assert {name: codes(path) for name, path in clips.items() if codes(path)} == {}
    aliases = {"faststart": "mp4", "fragmented": "mp4"}
    for name, path in clips.items():
        assert container_of(path) == aliases.get(name, name)


@pytest.mark.parametrize("name", ["mp4", "faststart", "mov", "matroska", "avi"])
@settings(max_examples=150, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_every_cut_is_found(clips: dict[str, Path], scratch: Path, name: str, share: float) -> None:
    data = clips[name].read_bytes()
    cut = scratch / f"cut{clips[name].suffix}"
    cut.write_bytes(data[: int(share * len(data))])
    assert any(finding.severity == "error" for finding in check_structure(cut))


def test_every_byte_near_a_box_border_is_found(clips: dict[str, Path], scratch: Path) -> None:
    data = clips["faststart"].read_bytes()
    borders = [data.index(kind) - 4 for kind in (b"ftyp", b"moov", b"mdat")] + [len(data)]
    cut = scratch / "border.mp4"
    for length in {border + step for border in borders for step in range(-17, 18)} & set(range(len(data))):
        cut.write_bytes(data[:length])
        assert codes(cut)[0] in {"FIL002", "FIL013", "FIL016", "VID002", "VID010"}, length


def test_a_fragmented_file_cut_before_its_media(clips: dict[str, Path], scratch: Path) -> None:
    data = clips["fragmented"].read_bytes()
    cut = scratch / "fragment.mp4"
    cut.write_bytes(data[: data.index(b"mdat") - 4])
    assert codes(cut) == ["FIL016"]


def test_a_cut_names_both_numbers(clips: dict[str, Path], scratch: Path) -> None:
    data = clips["faststart"].read_bytes()
    cut = scratch / "numbers.mp4"
    cut.write_bytes(data[:-10])
    [finding] = check_structure(cut)
    assert (finding.code, finding.path) == ("FIL016", "numbers.mp4")
    assert "numbers.mp4" not in finding.message, "the path stands before the message"
    assert str(len(data)) in finding.message
    assert str(len(data) - 10) in finding.message


def test_missing_boxes(clips: dict[str, Path], scratch: Path) -> None:
    data = clips["mp4"].read_bytes()
    index = data.rindex(b"moov") - 4
    path = scratch / "unfinalised.mp4"
    path.write_bytes(data[:index])
    assert codes(path) == ["VID002"]
    path.write_bytes(data[:32] + data[index:])
    assert codes(path) == ["FIL016"]


@pytest.mark.parametrize("size_field", ["largesize", "to_the_end"])
def test_other_ways_to_state_a_size(clips: dict[str, Path], scratch: Path, size_field: str) -> None:
    """Sizes of 64 bits and "to the end of the file", for the last box of a faststart file."""
    data = clips["faststart"].read_bytes()
    start = data.index(b"mdat") - 4
    body = data[start + 8 :]
    large = struct.pack(">I4sQ", 1, b"mdat", len(body) + 16)
    header = large if size_field == "largesize" else struct.pack(">I4s", 0, b"mdat")
    path = scratch / f"{size_field}.mp4"
    path.write_bytes(data[:start] + header + body)
    assert codes(path) == []
    if size_field == "largesize":
        path.write_bytes(data[:start] + header + body[:-1])
        assert codes(path) == ["FIL016"]


@pytest.mark.parametrize("name", ["mp4", "matroska", "avi"])
def test_bytes_behind_the_container(clips: dict[str, Path], scratch: Path, name: str) -> None:
    path = scratch / f"trailing{clips[name].suffix}"
    path.write_bytes(clips[name].read_bytes() + bytes(5000))
    assert codes(path) == []
    path.write_bytes(clips[name].read_bytes() + b"<!DOCTYPE html><html></html>")
    [finding] = check_structure(path)
    assert (finding.code, finding.severity) == ("VID013", "warning")
    assert "28 other bytes" in finding.message


def test_an_avi_in_several_riff_chunks(clips: dict[str, Path], scratch: Path) -> None:
    more = b"RIFF" + struct.pack("<I", 104) + b"AVIX" + bytes(100)
    path = scratch / "long.avi"
    path.write_bytes(clips["avi"].read_bytes() + more)
    assert codes(path) == []
    path.write_bytes(path.read_bytes()[:-50])
    assert codes(path) == ["FIL016"]


def test_a_segment_of_unknown_size_is_no_cut(clips: dict[str, Path], scratch: Path) -> None:
    data = clips["matroska"].read_bytes()
    size = data.index(b"\x18\x53\x80\x67") + 4
    assert data[size] == 0x01
    path = scratch / "live.mkv"
    path.write_bytes(data[:size] + b"\x01" + b"\xff" * 7 + data[size + 8 : -100])
    assert codes(path) == []


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a1" * 32 + b"\nsize 1234\n"


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b"", "FIL002", "0 bytes"),
        (LFS, "FIL001", "a1" * 32),
        (b"<!DOCTYPE html><html><body>404</body></html>", "FIL013", "HTML"),
        (b'{"error": "not found"}', "FIL013", "JSON"),
        (b"#EXTM3U\nhttp://example.org/a.ts\n", "FIL013", "text"),
        (b"PK\x03\x04" + bytes(60), "FIL013", "zip"),
        (gzip.compress(b"clip", mtime=0), "FIL013", "gzip"),
        (b"\x89PNG\r\n\x1a\n" + bytes(60), "FIL013", "PNG"),
        (b"\xff\xd8\xff\xe0" + bytes(60), "FIL013", "JPEG"),
        (b"RIFF\x40\0\0\0WEBPVP8 " + bytes(60), "FIL013", "WebP"),
        (b"RIFF\x40\0\0\0WAVEfmt " + bytes(60), "VID001", "WAV"),
        (b"ID3\x04" + bytes(60), "VID001", "MP3"),
        (bytes(4096), "FIL013", "zero bytes"),
        (b"\x91\x02\x00\xfe" * 64, "VID010", "91 02 00 fe"),
    ],
    ids=lambda value: "content" if isinstance(value, bytes) else None,
)
def test_what_is_no_video(scratch: Path, content: bytes, code: str, word: str) -> None:
    path = scratch / "clip.mp4"
    path.write_bytes(content)
    [finding] = check_structure(path)
    assert finding.code == code
    assert word in finding.message
    assert container_of(path) is None


def test_an_image_of_the_mp4_family(scratch: Path) -> None:
    path = scratch / "photo.mp4"
    path.write_bytes(struct.pack(">I4s4sI", 16, b"ftyp", b"heic", 0) + struct.pack(">I4sI", 12, b"meta", 0))
    assert codes(path) == ["FIL013"]


@pytest.mark.parametrize(
    ("name", "ending", "expected"),
    [
        ("mp4", ".avi", ["VID012"]),
        ("mp4", ".MOV", []),
        ("mov", ".mp4", []),
        ("avi", ".mp4", ["VID012"]),
        ("webm", ".mkv", []),
        ("matroska", ".mp4", ["VID012"]),
        ("mpegts", ".mp4", ["VID012"]),
        ("mp4", ".part", []),
    ],
)
def test_the_names_ending(
    clips: dict[str, Path], scratch: Path, name: str, ending: str, expected: list[str]
) -> None:
    path = scratch / f"named{ending}"
    path.write_bytes(clips[name].read_bytes())
    assert codes(path) == expected


def test_what_the_system_refuses(scratch: Path) -> None:
    dangling = scratch / "dangling.mp4"
    dangling.symlink_to(scratch / "nowhere.mp4")
    loop = scratch / "loop.mp4"
    loop.symlink_to(loop)
    folder = scratch / "folder.mp4"
    folder.mkdir()
    assert codes(scratch / "absent.mp4") == ["FIL005"]
    assert codes(dangling) == ["FIL010"]
    assert codes(loop) == ["FIL014"]
    assert codes(folder) == ["FIL014"]


def test_sound_in_an_mp4_has_a_sound_structure(scratch: Path) -> None:
    """Only opening the file tells that no picture is in it: see test_media."""
    assert codes(make_sound(scratch / "sound.mp4")) == []
