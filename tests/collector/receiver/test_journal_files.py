"""The files of the intake journal: whatever becomes of them, what is read is what was written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cirron_otel.collector.receiver.journal.files import (
    HEADER_BYTES,
    MAX_HEAD_BYTES,
    Damage,
    Position,
    decode_head,
    encode_head,
    remove_before,
    segment_numbers,
    segment_path,
    trim,
)
from cirron_otel.collector.receiver.journal.position import (
    ConsumerPosition,
    reached_segment,
    read_position,
    write_position,
)
from cirron_otel.collector.receiver.journal.reader import JournalReader
from cirron_otel.core.spool.direct import BLOCK
from cirron_otel.errors import InputError, TargetError, UsageError

from .journalled import (
    head,
    put,
    read,
    segment,
)

SEGMENTS = st.lists(st.lists(st.binary(max_size=300), max_size=5), min_size=1, max_size=3)


def unique(segments: list[list[bytes]]) -> list[list[bytes]]:
    """Bodies that can be told apart."""
    return [
        [b"%d/%d:" % (number, index) + body for index, body in enumerate(bodies)]
        for number, bodies in enumerate(segments)
    ]


@contextmanager
def journal(segments: list[list[bytes]]) -> Iterator[tuple[Path, list[list[int]]]]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name), put(Path(name), segments)


def joined(segments: list[list[bytes]]) -> list[bytes]:
    return [body for bodies in segments for body in bodies]


@given(SEGMENTS, st.data())
@settings(deadline=None)
def test_truncated_segment_yields_all_complete_frames(
    segments: list[list[bytes]], data: st.DataObject
) -> None:
    segments = unique(segments)
    with journal(segments) as (directory, ends):
        index = data.draw(st.integers(0, len(segments) - 1))
        path = segment_path(directory, index + 1)
        size = data.draw(st.integers(0, path.stat().st_size - 1))
        os.truncate(path, size)
        left = sum(end <= size for end in ends[index])
        expected = joined([*segments[:index], segments[index][:left], *segments[index + 1 :]])
        bodies, damages = read(directory)
        assert bodies == expected
        is_last = index == len(segments) - 1
        if is_last or size in (HEADER_BYTES, *ends[index]):
            assert damages == []
        else:
            assert [(damage.path, damage.backup is not None) for damage in damages] == [
                (path, True)
            ]
            assert damages[0].backup is not None
            assert damages[0].backup.read_bytes() == path.read_bytes()
        if is_last:
            # What the writer does at its start: only what is no frame goes.
            boundary = max([end for end in ends[index] if end <= size], default=HEADER_BYTES)
            assert trim(directory, index + 1) == size - (boundary if size >= HEADER_BYTES else 0)
            assert path.exists() == (size >= HEADER_BYTES)
            assert read(directory) == (expected, [])


@given(SEGMENTS, st.data())
@settings(deadline=None)
def test_flipped_bit_is_detected_and_costs_at_most_its_frame(
    segments: list[list[bytes]], data: st.DataObject
) -> None:
    segments = unique(segments)
    with journal(segments) as (directory, ends):
        index = data.draw(st.integers(0, len(segments) - 1))
        path = segment_path(directory, index + 1)
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        left = list(segments[index])
        if at >= HEADER_BYTES:
            del left[sum(end <= at for end in ends[index])]
        expected = joined([*segments[:index], left, *segments[index + 1 :]])
        bodies, damages = read(directory)
        assert bodies == expected
        assert [damage.path for damage in damages] == [path]
        assert damages[0].backup is not None
        assert damages[0].backup.read_bytes() == bytes(content)
        # It is kept from now on, also when the journal is done with it.
        trim(directory, index + 1)
        assert path.read_bytes() == bytes(content)
        remove_before(directory, Position(len(segments) + 1, 0))
        assert damages[0].backup.read_bytes() == bytes(content)
        assert segment_numbers(directory) == [len(segments)]


@given(SEGMENTS, st.data())
@settings(deadline=None)
def test_rubbish_is_never_read_as_a_frame(segments: list[list[bytes]], data: st.DataObject) -> None:
    segments = unique(segments)
    with journal(segments) as (directory, _):
        for number in range(1, len(segments) + 1):
            path = segment_path(directory, number)
            content = bytearray(path.read_bytes())
            for _ in range(data.draw(st.integers(0, 3))):
                at = data.draw(st.integers(0, len(content)))
                content[at : at + data.draw(st.integers(0, 40))] = data.draw(
                    st.binary(max_size=40) | st.just(bytes(content[HEADER_BYTES:]))
                )
            path.write_bytes(content)
        bodies, _ = read(directory)
        # A frame that was copied to another place in its segment is one that was written.
        assert set(bodies) <= set(joined(segments))
        numbers = segment_numbers(directory)
        trim(directory, numbers[-1])
        assert read(directory)[0] == bodies


@given(st.binary(max_size=200), st.booleans())
@example(bytes(100), True)
@settings(deadline=None)
def test_any_bytes_can_be_a_segment(content: bytes, has_header: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        put(directory, [[], [b"after"]])
        with segment_path(directory, 1).open("ab" if has_header else "wb") as file:
            file.write(content)
        bodies, damages = read(directory)
        assert bodies == [b"after"]
        # Zeros are what fills up the last block.
        assert len(damages) == (1 if content.strip(b"\0") or not has_header else 0)


@given(st.lists(st.binary(max_size=40_000), max_size=20), st.integers(1, 100_000), st.data())
@settings(deadline=None, max_examples=30)
def test_a_reader_goes_on_from_any_frame(
    bodies: list[bytes], max_bytes: int, data: st.DataObject
) -> None:
    bodies = joined(unique([bodies]))
    with journal([bodies[: len(bodies) // 2], [], bodies[len(bodies) // 2 :]]) as (directory, _):
        reader = JournalReader(directory)
        found = []
        while batch := reader.poll(max_bytes):
            assert sum(len(frame.body) for frame in batch[:-1]) < max_bytes
            assert reader.position == batch[-1].end
            found += batch
        reader.close()
        assert [frame.body for frame in found] == bodies
        for index in data.draw(st.lists(st.integers(0, max(0, len(found) - 1)), max_size=3)):
            if found:
                assert read(directory, found[index].end)[0] == bodies[index + 1 :]
                assert read(directory, found[index].start)[0] == bodies[index:]


def test_a_reader_follows_and_takes_no_more_than_is_acknowledged(tmp_path: Path) -> None:
    [ends, _] = put(tmp_path, [[b"a", b"b", b"refused"], [b"c", b"d"]])
    later = segment_path(tmp_path, 2)
    hidden = later.rename(tmp_path / "hidden")
    damages: list[Damage] = []
    reader = JournalReader(tmp_path, None, damages.append)
    assert reader.poll(until=Position(1, 0)) == []
    assert [frame.body for frame in reader.poll(until=Position(1, ends[0]))] == [b"a"]
    assert [frame.body for frame in reader.poll(until=Position(1, ends[1]))] == [b"b"]
    assert reader.poll(until=Position(1, ends[1])) == []
    # What the writer does with what it could not sync.
    os.truncate(segment_path(tmp_path, 1), ends[1])
    assert reader.poll(until=Position(1, ends[1])) == []
    hidden.rename(later)
    assert reader.poll(until=Position(2, 0)) == []
    assert [frame.body for frame in reader.poll(until=Position(2, ends[0]))] == [b"c"]
    assert [frame.body for frame in reader.poll()] == [b"d"]
    assert reader.poll() == []
    assert damages == []
    reader.close()
    assert reader.poll() == []


@pytest.mark.parametrize("at", [0, HEADER_BYTES + 2], ids=["header", "frame"])
def test_frames_after_damage_are_read_once_they_are_complete(at: int, tmp_path: Path) -> None:
    """Half a frame is waited for there, too, and a body that looks like one is none."""
    data, ends = segment(1, [b"a", b"b", segment(1, [b"x", b"y"])[0], b"c" * 50_000])
    damaged = bytearray(data)
    damaged[at] ^= 1
    damages: list[Damage] = []
    reader = JournalReader(tmp_path, None, damages.append)
    path = segment_path(tmp_path, 1)
    path.write_bytes(damaged[: ends[0]])
    found = [frame.body for frame in reader.poll()]
    path.write_bytes(damaged[: ends[1]])
    assert reader.poll(until=Position(1, ends[0])) == []
    for size in (ends[1], ends[2] - 1, ends[2], ends[3] - 1, ends[3]):
        path.write_bytes(damaged[:size])
        found += [frame.body for frame in reader.poll()]
    others = [b"b", segment(1, [b"x", b"y"])[0], b"c" * 50_000]
    assert found == ([b"a", *others] if at == 0 else others)
    assert [damage.number for damage in damages] == [1]
    reader.close()


def test_padding_that_was_read_ahead_is_read_again(tmp_path: Path) -> None:
    """The block that was filled up with zeros is written again with what comes next."""
    data, ends = segment(1, [b"a", b"b", b"c"])
    path = segment_path(tmp_path, 1)
    path.write_bytes(data[: ends[0]].ljust(BLOCK, b"\0"))
    reader = JournalReader(tmp_path, None, pytest.fail)
    assert [frame.body for frame in reader.poll(max_bytes=1)] == [b"a"]
    path.write_bytes(data[: ends[1]].ljust(BLOCK, b"\0"))
    assert [frame.body for frame in reader.poll(max_bytes=1)] == [b"b"]
    path.write_bytes(data.ljust(BLOCK, b"\0"))
    assert [frame.body for frame in reader.poll(until=Position(1, ends[2]))] == [b"c"]
    reader.close()


def test_acknowledged_bytes_that_are_zero_are_damage(tmp_path: Path) -> None:
    data, ends = segment(1, [b"a", b"b"])
    segment_path(tmp_path, 1).write_bytes(data[: ends[0]].ljust(BLOCK, b"\0"))
    damages: list[Damage] = []
    reader = JournalReader(tmp_path, None, damages.append)
    assert [frame.body for frame in reader.poll(until=Position(1, ends[1]))] == [b"a"]
    assert [damage.offset for damage in damages] == [ends[0]]
    reader.close()


def test_frame_is_returned_once_it_is_complete(tmp_path: Path) -> None:
    data, _ = segment(1, [b"x" * 50_000])
    path = segment_path(tmp_path, 1)
    reader = JournalReader(tmp_path, None, pytest.fail)
    for size in (0, 10, HEADER_BYTES, HEADER_BYTES + 5, HEADER_BYTES + 100, len(data) - 1):
        path.write_bytes(data[:size])
        assert reader.poll() == []
    path.write_bytes(data)
    assert [frame.body for frame in reader.poll()] == [b"x" * 50_000]
    reader.close()


def test_segment_path_that_is_not_a_file_is_reported_and_skipped(tmp_path: Path) -> None:
    put(tmp_path, [[b"a"], [], [], [b"b"]])
    for number in (2, 3):
        segment_path(tmp_path, number).unlink()
    segment_path(tmp_path, 2).mkdir()
    segment_path(tmp_path, 3).symlink_to(segment_path(tmp_path, 4))
    (tmp_path / "intake-1.log").touch()
    bodies, damages = read(tmp_path)
    assert bodies == [b"a", b"b"]
    assert [damage.path for damage in damages] == [segment_path(tmp_path, n) for n in (2, 3)]
    assert read(tmp_path / "nowhere") == ([], [])


def test_segment_of_another_version_is_backed_up(tmp_path: Path) -> None:
    import struct
    import zlib

    put(tmp_path, [[b"a"], [b"b"]])
    start = struct.pack("<8sI", b"CIRRONIJ", 2)
    crc = zlib.crc32((1).to_bytes(8, "little"), zlib.crc32(start))
    with segment_path(tmp_path, 1).open("r+b") as file:
        file.write(start + struct.pack("<I", crc))
    bodies, [damage] = read(tmp_path)
    assert bodies == [b"b"]
    assert "version 2, expected 1" in damage.reason
    assert damage.backup is not None


def test_segment_renamed_to_another_number_is_reported_as_damaged(tmp_path: Path) -> None:
    put(tmp_path, [[b"a"], [b"b"]])
    segment_path(tmp_path, 1).rename(segment_path(tmp_path, 7))
    bodies, [damage] = read(tmp_path)
    assert (bodies, damage.path) == ([b"b"], segment_path(tmp_path, 7))


def test_only_segments_prior_to_the_position_are_removed(tmp_path: Path) -> None:
    ends = put(tmp_path, [[b"a"], [b"b", b"c"], [b"d"], [b"e"]])
    assert remove_before(tmp_path, Position(1, ends[0][0] - 1)) == 0
    assert remove_before(tmp_path, Position(2, ends[1][0])) == 1
    assert remove_before(tmp_path, Position(2, ends[1][1])) == 1
    assert segment_numbers(tmp_path) == [3, 4]
    assert remove_before(tmp_path, Position(9, 0)) == 1
    assert segment_numbers(tmp_path) == [4]
    assert remove_before(tmp_path / "nowhere", Position(9, 0)) == 0


def test_zeros_at_the_end_are_cut_off(tmp_path: Path) -> None:
    """A power cut may leave a file longer than what was written into it."""
    [[end]] = put(tmp_path, [[b"a"]])
    path = segment_path(tmp_path, 1)
    os.truncate(path, end + 70_000)
    assert trim(tmp_path, 1) == 70_000
    assert path.stat().st_size == end
    assert trim(tmp_path, 1) == 0
    path.write_bytes(bytes(1000))
    assert trim(tmp_path, 1) == 1000
    assert not path.exists()


@given(st.dictionaries(st.text(max_size=5), st.text(st.characters(), max_size=20), max_size=4))
@settings(deadline=None)
def test_headers_with_any_characters_are_preserved(headers: dict[str, str]) -> None:
    """Servers hand on bytes that are no text as lone surrogates."""
    for extra in ({}, {"x": "\udcff"}):
        before = head(**{**headers, **extra})
        assert decode_head(encode_head(before)) == before


def test_a_head_has_a_limit_and_a_form() -> None:
    with pytest.raises(UsageError, match=f"{MAX_HEAD_BYTES} can be stored"):
        encode_head(head(x="x" * MAX_HEAD_BYTES))
    for text in (b"", b"[]", b"{}", b"\xff", encode_head(head()).replace(b"traces", b"new")):
        assert decode_head(text) is None
    # What another version said of a body, or will.
    more = encode_head(head()).replace(b"{", b'{"sha256":"00",', 1)
    assert decode_head(more) == head()


def test_a_place_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_position(tmp_path, pytest.fail) == ConsumerPosition(None, None)
    for place in (
        ConsumerPosition(Position(3, 77), None),
        ConsumerPosition(
            None, {"batch": "a\ud800", "big": 10**30, "list": [1.0, None, {"x": "é"}]}
        ),
    ):
        write_position(tmp_path, place)
        assert read_position(tmp_path, pytest.fail) == place
    assert os.listdir(tmp_path) == ["consumer.json"]  # noqa: PTH208
    assert (tmp_path / "consumer.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"position": [1], "intent": null}',
        b'{"position": [1, -1], "intent": null}',
        b'{"position": [1.0, 2], "intent": null}',
        b'{"position": null, "intent": []}',
        b'{"position": null, "intent": null, "more": 1}',
        b'{"intent": {}, "position": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_place_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "consumer.json").write_bytes(content)
    told: list[str] = []
    assert reached_segment(tmp_path) == 0
    assert read_position(tmp_path, told.append) == ConsumerPosition()
    assert len(told) == 1
    assert (tmp_path / "consumer.json.damaged").read_bytes() == content
    assert read_position(tmp_path, pytest.fail) == ConsumerPosition()


def test_failed_position_write_leaves_the_previous_position(tmp_path: Path) -> None:
    write_position(tmp_path, ConsumerPosition(Position(1, 2)))
    (tmp_path / "consumer.json.tmp").mkdir()
    with pytest.raises(TargetError, match="cannot be written"):
        write_position(tmp_path, ConsumerPosition(Position(1, 3)))
    assert read_position(tmp_path, pytest.fail) == ConsumerPosition(Position(1, 2))
    (tmp_path / "consumer.json").unlink()
    (tmp_path / "consumer.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_position(tmp_path, pytest.fail)
