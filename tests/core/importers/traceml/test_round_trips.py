"""TraceML's frames to a spool and back: the files come back byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel import exactjson
from cirron_otel.core.importers.traceml import batch_parts, stream
from cirron_otel.core.importers.traceml.framing import FrameDecoder, frame_of
from cirron_otel.core.importers.traceml.stream import TraceMLStream
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.conftest import leave_out
from tests.kit.spools.comparing import assert_same, batches

from .recordings import (
    CASES,
    SHORT,
    envelope,
    files_of,
    frames_folder,
    imported,
    packed,
    payloads,
    step_row,
    stream_file,
    streamed,
    written,
)


@pytest.mark.parametrize("case", CASES)
def test_a_recording_comes_back_byte_for_byte(case: str, tmp_path: Path) -> None:
    spool, report = imported(frames_folder(case), tmp_path)
    files, back = written(spool, tmp_path)
    assert report.exit_code == back.exit_code == 0
    assert files == files_of(frames_folder(case))


FORMS = [
    (case, suffix, ("segmented", "session")[(number + offset) % 2])
    for number, case in enumerate(CASES)
    for offset, suffix in enumerate((".jsonl", ".binpb"))
]
"""Rows with every pair of a case and a suffix, a case and a layout, a suffix and a layout."""


@pytest.mark.parametrize(("case", "suffix", "layout"), FORMS)
def test_a_recording_comes_back_through_otlp(
    case: str, suffix: str, layout: str, tmp_path: Path
) -> None:
    file = tmp_path / f"traces{suffix}"
    convert(ConvertRequest(f"traceml:{frames_folder(case)}", str(file), layout=layout))
    files, report = written(file, tmp_path)
    assert report.exit_code == 0
    assert files == files_of(frames_folder(case))
    convert(ConvertRequest(str(file), f"{tmp_path}/back/"))
    spool, _ = imported(frames_folder(case), tmp_path)
    assert_same(batches(tmp_path / "back"), batches(spool))


@pytest.mark.parametrize("case", CASES)
def test_converting_again_adds_nothing(case: str, tmp_path: Path) -> None:
    spool, first = imported(frames_folder(case), tmp_path)
    before = files_of(spool)
    _, second = imported(frames_folder(case), tmp_path)
    assert (second.written, second.unchanged) == (0, first.written)
    assert files_of(spool) == before


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/database"
        return
    try:
        from tests.kit.backends.postgres import missing, postgres
    except ImportError as error:
        leave_out(f"psycopg cannot be imported ({error})")
    if reason := missing():
        leave_out(reason)
    with postgres() as server:
        yield server.new_database()


def test_a_database_gives_the_same_frames(database: str, tmp_path: Path) -> None:
    from cirron_otel.core.targets.sql.storage import Storage
    from tests.core.targets.sql.helpers import files

    spool, _ = imported(frames_folder(SHORT), tmp_path)
    with Storage.open(database) as storage:
        storage.write(files((spool / "spool").glob("*.json")))
    report = convert(ConvertRequest(database, f"traceml:{tmp_path}/frames"))
    assert report.exit_code == 0
    assert files_of(tmp_path / "frames") == files_of(frames_folder(SHORT))


@pytest.mark.parametrize("size", [1, 3, 7, 1000, 10**6])
def test_the_sizes_of_reads_change_nothing(size: int) -> None:
    data = next(frames_folder(SHORT).iterdir()).read_bytes()[:20_000]
    whole = FrameDecoder()
    expected = list(whole.feed(data))
    parts = FrameDecoder()
    found = [p for at in range(0, len(data), size) for p in parts.feed(data[at : at + size])]
    assert found == expected
    assert parts.rest == whole.rest


def test_a_stream_continues_in_another_process() -> None:
    """After each batch, the state goes to a new stream, with the frames since that batch."""
    data = (frames_folder("v050/ddp2_residual_straggler") / "rank0_pid18291.frames").read_bytes()
    expected, _ = streamed(payloads(data))
    found = []
    current, since = TraceMLStream(), []
    for payload in payloads(data):
        current = TraceMLStream.resume(current.state())
        for earlier in since:
            assert not current.feed(earlier)
        complete = current.feed(payload)
        found += complete
        since = [] if complete else [*since, payload]
    assert len(found) > 2
    assert [*found, *current.finish()] == expected


def test_a_batch_is_at_most_two_seconds_long() -> None:
    data = (frames_folder("v050/ddp2_residual_straggler") / "rank0_pid18291.frames").read_bytes()
    found, _ = streamed(payloads(data))
    for batch in found:
        times = [
            message["meta"]["timestamp"]
            for entry in json.loads(batch.data)["traceml"]["frames"]
            for message in entry[0]
            if "meta" in message
        ]
        assert max(times) - min(times) < 2 + 1.5  # frames are at most a second apart


@pytest.mark.parametrize("limit", [500, 20_000])
def test_small_limits_change_no_file(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are divided into parts, and the records of a batch into many batches."""
    monkeypatch.setattr(batch_parts, "MAX_FRAMES_TEXT", limit)
    monkeypatch.setattr(batch_parts, "_PART", 400)
    monkeypatch.setattr(batch_parts, "MAX_RECORDS", 5)
    monkeypatch.setattr(stream, "BATCH_FRAMES", 3)
    spool, report = imported(frames_folder(SHORT), tmp_path)
    assert report.written > 20
    assert written(spool, tmp_path)[0] == files_of(frames_folder(SHORT))
    ids = [span["id"] for batch in batches(spool).values() for span in batch["spans"]]
    assert len(ids) == len(set(ids)) == 102


def test_a_large_frame_comes_back_through_otlp(tmp_path: Path) -> None:
    rows = [step_row(n, 1000.0 + n, step_time={"cpu": {"duration_ms": n / 7}}) for n in range(9000)]
    path = stream_file(tmp_path / "in", [packed(envelope("StepTimeTable", *rows))])
    assert path.stat().st_size > 800_000
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 0
    assert report.spans == 9001
    convert(ConvertRequest(str(spool), str(tmp_path / "traces.binpb")))
    assert written(tmp_path / "traces.binpb", tmp_path)[0] == files_of(path.parent)


def test_a_selected_rank_is_written_alone(tmp_path: Path) -> None:
    from cirron_otel.tools.convert.select import Selection

    spool, _ = imported(frames_folder(SHORT), tmp_path)
    chosen = ConvertRequest(str(spool), str(tmp_path / "one"), select=Selection.parse(["rank=1"]))
    convert(chosen)
    files, report = written(tmp_path / "one", tmp_path)
    assert report.exit_code == 0
    name = "rank1_pid19150.frames"
    assert files == {name: files_of(frames_folder(SHORT))[name]}


def test_a_missing_batch_is_reported(tmp_path: Path) -> None:
    case = "v050/ddp2_residual_straggler"
    spool, _ = imported(frames_folder(case), tmp_path)
    removed = sorted((spool / "spool").iterdir())[2]
    frames = len(exactjson.loads(removed.read_bytes())["traceml"]["frames"])
    removed.unlink()
    files, report = written(spool, tmp_path)
    assert report.exit_code == 1
    assert report.incomplete
    assert f"{frames} frames are not in the source" in report.incomplete[0]
    whole = files_of(frames_folder(case))
    missing = sum(map(len, whole.values())) - sum(map(len, files.values()))
    assert missing > 1000


def test_a_missing_last_batch_is_reported(tmp_path: Path) -> None:
    """No number of a frame shows that the frames after it are missing."""
    spool, _ = imported(frames_folder("v050/ddp2_residual_straggler"), tmp_path)
    ends = [
        path for path in (spool / "spool").iterdir()
        if exactjson.loads(path.read_bytes())["traceml"].get("end")
    ]  # fmt: skip
    assert len(ends) == 2
    ends[0].unlink()
    _, report = written(spool, tmp_path)
    assert report.exit_code == 1
    [line] = report.incomplete
    assert "the end of the connection is not in the source" in line


def test_two_connections_of_one_process_have_separate_files(tmp_path: Path) -> None:
    first = stream_file(tmp_path / "in" / "a", [packed(envelope("x", {"ts": 1000.0}))])
    second = stream_file(tmp_path / "in" / "b", [packed(envelope("x", {"ts": 1001.0}))])
    spool, _ = imported(tmp_path / "in", tmp_path)
    files, _ = written(spool, tmp_path)
    assert files == {
        "rank0_pid7.frames": first.read_bytes(), "rank0_pid7_2.frames": second.read_bytes()
    }  # fmt: skip


@pytest.mark.parametrize(
    "members",
    [
        {"stream": 5, "frames": []},
        {"stream": "a", "frames": {}},
        {"stream": "a", "frames": [5]},
        {"stream": "a", "frames": ["*"]},
        {"stream": "a", "frames": [[]]},
        {"stream": "a", "first": -1, "frames": []},
        {"documents": [{"name": "a", "part": 0, "parts": 1}]},
    ],
)
def test_an_object_of_another_form_is_reported(members: object, tmp_path: Path) -> None:
    spool, _ = imported(frames_folder(SHORT), tmp_path)
    file = min((spool / "spool").iterdir())
    batch = exactjson.loads(file.read_bytes())
    file.write_bytes(exactjson.dumps(batch | {"traceml": members}))
    _, report = written(spool, tmp_path)
    assert report.exit_code == 1
    assert report.skipped_count == 1


def test_a_document_outside_the_target_is_refused(tmp_path: Path) -> None:
    from cirron_otel.errors import InputError

    spool, _ = imported(frames_folder(SHORT), tmp_path)
    file = min((spool / "spool").iterdir())
    batch = exactjson.loads(file.read_bytes())
    document = {"name": "../outside", "part": 0, "parts": 1, "text": "x"}
    file.write_bytes(exactjson.dumps(batch | {"traceml": {"documents": [document]}}))
    with pytest.raises(InputError, match="below the recording"):
        written(spool, tmp_path)
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "frames").exists()


def test_a_directory_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cirron_otel.tools.cli.main import run

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    source = f"traceml:{frames_folder(SHORT)}"
    assert run(["convert", source, f"traceml:{tmp_path}/full"]) == 4
    assert "is not empty" in capsys.readouterr().err
    assert run(["convert", source, "traceml:-"]) == 2


def test_frames_have_a_length_in_front() -> None:
    assert frame_of(b"abc") == b"\x00\x00\x00\x03abc"
