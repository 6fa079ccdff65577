"""Stormlog to a spool and back, by file: the files come back byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel import exactjson
from cirron_otel.core.importers.stormlog import prepared
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.comparing import assert_same, batches

from .conftest import EVENTS, SIMULATED
from .returning import (
    PLACES,
    files_of,
    imported,
    recorded,
    written,
)


@pytest.mark.parametrize("place", PLACES)
def test_a_recording_comes_back_byte_for_byte(place: str, tmp_path: Path) -> None:
    path = recorded(place)
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 0
    assert written(spool, path, tmp_path) == files_of(path)


@pytest.mark.parametrize("layout", ["segmented", "session"])
@pytest.mark.parametrize("suffix", [".jsonl", ".binpb"])
@pytest.mark.parametrize("place", PLACES)
def test_a_recording_comes_back_through_otlp(
    place: str, suffix: str, layout: str, tmp_path: Path
) -> None:
    path, file = recorded(place), tmp_path / f"traces{suffix}"
    convert(ConvertRequest(f"stormlog:{path}", str(file), layout=layout))
    assert written(file, path, tmp_path) == files_of(path)
    convert(ConvertRequest(str(file), f"{tmp_path}/back/"))
    spool, _ = imported(path, tmp_path)
    assert_same(batches(tmp_path / "back"), batches(spool))


@pytest.mark.parametrize("place", PLACES)
def test_converting_again_adds_nothing(place: str, tmp_path: Path) -> None:
    path = recorded(place)
    spool, first = imported(path, tmp_path)
    before = {file: file.stat().st_mtime_ns for file in (spool / "spool").iterdir()}
    _, second = imported(path, tmp_path)
    assert second.unchanged == first.written == len(before)
    assert second.written == 0
    assert {file: file.stat().st_mtime_ns for file in (spool / "spool").iterdir()} == before


def test_a_small_batch_limit_changes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record is in a batch of its own with few others, and documents are in parts."""
    monkeypatch.setattr(prepared, "BATCH_MARKS", 3)
    monkeypatch.setattr(prepared, "DOCUMENT_PART", 100)
    spool, _ = imported(SIMULATED, tmp_path)
    assert len(batches(spool)) > 20
    assert written(spool, SIMULATED, tmp_path) == files_of(SIMULATED)


def sink(folder: Path, segment: bytes) -> Path:
    """A sink with one segment, and no manifest."""
    path = folder / "sink"
    path.mkdir()
    (path / "segment-000001.jsonl").write_bytes(segment)
    return path


@pytest.mark.parametrize(
    "tail",
    [b"", b'{"allocator_active', b'{"context": "\xc3', b"\n\n", EVENTS[0][:-1]],
    ids=["none", "torn", "torn in a character", "blank lines", "no line feed"],
)
def test_the_end_of_a_segment_comes_back(tail: bytes, tmp_path: Path) -> None:
    path = sink(tmp_path, b"".join(EVENTS[:5]) + tail)
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 0
    assert written(spool, path, tmp_path) == files_of(path)


@pytest.mark.parametrize(
    "line",
    [b"{ not json\n", b"[1]\n", b"\xff\xfe\n", b'{"schema_version": 99}\n', b"null\n"],
)
def test_a_damaged_line_is_reported_and_comes_back(line: bytes, tmp_path: Path) -> None:
    path = sink(tmp_path, EVENTS[0] + line + EVENTS[1])
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 1
    assert report.skipped_count == 1
    assert written(spool, path, tmp_path) == files_of(path)


def odd(**changes: object) -> bytes:
    """A record of the first event with changes, in Stormlog's form."""
    return json.dumps(json.loads(EVENTS[0]) | changes, sort_keys=True).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        odd(context="é \u2028 \x7f \ud800"),
        odd(metadata={"x": 1e16, "y": -0.0, "z": 1.5e-9}),
        odd(metadata={"n": float("nan")}),
        odd(metadata={"big": 2**70}),
        odd(metadata={"a": {}, "b": [], "c": [[], {}], "d": None}),
        odd(allocator_allocated_bytes=2**63),
        odd(context=None, job_id=None),
        EVENTS[0].replace(b", ", b",").replace(b": ", b":"),
        EVENTS[0].replace(b'"pid": ', b'"pid":  '),
        EVENTS[0][:-1] + b"\r\n",
        json.dumps(dict(reversed(json.loads(EVENTS[0]).items()))).encode() + b"\n",
        odd(event_type="Ünicode / type"),
    ],
)
def test_an_odd_line_comes_back(line: bytes, tmp_path: Path) -> None:
    path = sink(tmp_path, line + EVENTS[1] + line)
    spool, _ = imported(path, tmp_path)
    assert written(spool, path, tmp_path) == files_of(path)
    convert(ConvertRequest(str(spool), str(tmp_path / "traces.binpb")))
    (tmp_path / "again").mkdir()
    assert written(tmp_path / "traces.binpb", path, tmp_path / "again") == files_of(path)


def test_an_equal_event_of_the_same_recording_is_another_one(tmp_path: Path) -> None:
    path = sink(tmp_path, EVENTS[0] * 3)
    spool, report = imported(path, tmp_path)
    assert (report.marks, report.duplicates) == (3, 0)
    assert written(spool, path, tmp_path) == files_of(path)


def test_an_array_of_others_comes_back_as_equal_json(tmp_path: Path) -> None:
    records = [json.loads(line) for line in EVENTS[:4]]
    path = tmp_path / "others.json"
    first, *rest = (json.dumps(each) for each in records)
    path.write_text(f'{{"x": 1, "events": [{first}{" ,".join(["", *rest])}], "y": [2]}}')
    spool, _ = imported(path, tmp_path)
    (found,) = written(spool, path, tmp_path).values()
    assert exactjson.equal(exactjson.loads(found), exactjson.loads(path.read_bytes()))


@pytest.mark.parametrize("form", ["track.json", "sink/segment-000001.jsonl"])
def test_the_report_has_the_size_of_the_recording(form: str, tmp_path: Path) -> None:
    path = recorded(f"v039/cli_track/{form}")
    _, report = imported(path, tmp_path)
    assert report.bytes_read == path.stat().st_size


def test_forms_are_chosen_by_the_suffix(tmp_path: Path) -> None:
    """A recording of one form is also written in the others, from the same events."""
    spool, _ = imported(recorded("v039/cli_track/sink"), tmp_path)
    convert(ConvertRequest(str(spool), f"stormlog:{tmp_path}/track.json"))
    convert(ConvertRequest(str(spool), f"stormlog:{tmp_path}/track.jsonl"))
    array = recorded("v039/cli_track/track.json").read_bytes()
    assert (tmp_path / "track.json").read_bytes() == array
    segment = recorded("v039/cli_track/sink/segment-000001.jsonl").read_bytes()
    assert (tmp_path / "track.jsonl").read_bytes() == segment
    convert(ConvertRequest(f"stormlog:{tmp_path}/track.json", f"stormlog:{tmp_path}/as_sink"))
    assert (tmp_path / "as_sink" / "segment-000001.jsonl").read_bytes() == segment
    manifest = json.loads((tmp_path / "as_sink" / "manifest.json").read_bytes())
    assert manifest["segments"][0]["event_count"] == 21
    assert manifest["sessions"][0]["status"] == "completed"


def test_one_session_of_several_is_selected_by_its_uuid(tmp_path: Path) -> None:
    from cirron_otel.tools.convert.select import Selection

    path = recorded("v043/distributed")
    session = json.loads((path / "sink_rank0" / "manifest.json").read_bytes())["sessions"][0]
    for value in (session["session_id"], session["session_id"][:13]):
        selection = Selection.parse([f"session={value}"])
        target = tmp_path / value
        convert(ConvertRequest(f"stormlog:{path}", f"stormlog:{target}", select=selection))
        assert files_of(target / "sink_rank0") == files_of(path / "sink_rank0")
        assert not (target / "sink_rank1").exists()
