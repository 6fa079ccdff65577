"""Histories, table logs, summaries and folders of runs."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.importers.traceml.discovery import MAX_DEPTH, find_runs
from cirron_otel.errors import InputError
from tests.kit.spools.comparing import batches

from .recordings import (
    CASES,
    LOGGED,
    SHORT,
    files_of,
    frames_folder,
    imported,
    rows_of,
    run_folder,
    written,
)

Row = tuple[Any, str, dict[str, Any]]
_ABSENT_IN_HISTORIES = ("pid", "model_id")


def normal(row: Row) -> str:
    """A row as text, with the fields that a history contains."""
    rank, table, value = row
    fields = {key: item for key, item in value.items() if key not in _ABSENT_IN_HISTORIES}
    return json.dumps([rank, table, fields], sort_keys=True)


def recorded_rows(case: str) -> Counter[str]:
    """The rows of the recorded frames."""
    files = (path.read_bytes() for path in frames_folder(case).iterdir())
    return Counter(map(normal, rows_of(files)))


def returned_rows(spool: Path, folder: Path) -> Counter[str]:
    """The rows of the frames that are written for a spool."""
    files, _ = written(spool, folder)
    streams = [data for name, data in files.items() if name.endswith(".frames")]
    return Counter(map(normal, rows_of(streams)))


def steps_of(spool: Path) -> Counter[tuple[int, int, int, int]]:
    """The number of times that each step is in a spool, by rank, number, start and end."""
    return Counter(
        (span["rank"], span["index"], span["start_ns"], span["end_ns"])
        for batch in batches(spool).values()
        for span in batch["spans"]
        if span["name"] == "step"
    )


@pytest.mark.parametrize("case", CASES)
def test_a_history_has_the_rows_of_the_wire(case: str, tmp_path: Path) -> None:
    history = run_folder(case, tmp_path) / "aggregator" / "telemetry"
    before = files_of(history.parent)
    spool, report = imported(history, tmp_path)
    assert report.exit_code == 0
    assert files_of(history.parent) == before
    assert returned_rows(spool, tmp_path) == recorded_rows(case)
    wire, _ = imported(frames_folder(case), tmp_path, "wire")
    assert steps_of(spool) == steps_of(wire)


@pytest.mark.parametrize("case", CASES)
def test_every_value_of_a_history_is_imported(case: str, tmp_path: Path) -> None:
    history = run_folder(case, tmp_path) / "aggregator" / "telemetry"
    spool, _ = imported(history, tmp_path)
    found: Counter[Any] = Counter()
    for batch in batches(spool).values():
        for frame in batch["traceml"]["frames"]:
            found.update(_values(frame))
    wanted: Counter[Any] = Counter()
    with closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as database:
        names = [name for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%samples'"
        )]  # fmt: skip
        for name in [*names, *(["runtime_environment"] if case.startswith("v050") else [])]:
            cursor = database.execute(f"SELECT * FROM {name}")
            columns = [column[0] for column in cursor.description]
            for row in cursor:
                fields = dict(zip(columns, row, strict=True))
                events = fields.pop("events_json", None)
                values = {fields["recv_ts_ns"], fields.get("sample_ts_s"), fields["id"]}
                values |= set(fields.values()) | set(_values(json.loads(events or "null")))
                wanted.update(values)
    assert wanted
    missing = {value for value in wanted if value is not None and value not in found}
    assert not missing


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item)
    else:
        yield value


@pytest.mark.parametrize("with_frames", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_folder_of_a_run_has_each_row_once(
    case: str, tmp_path: Path, *, with_frames: bool
) -> None:
    folder = run_folder(case, tmp_path, with_frames=with_frames)
    spool, report = imported(folder, tmp_path)
    assert report.exit_code == 0
    assert report.duplicates or not (with_frames or case.startswith("v031"))
    wire, _ = imported(frames_folder(case), tmp_path, "wire")
    assert steps_of(spool) == steps_of(wire)
    assert returned_rows(spool, tmp_path) == recorded_rows(case)
    files = files_of(tmp_path / "frames")
    for name in ("manifest.json", "final_summary.json"):
        assert files[name] == (folder / name).read_bytes()
    if with_frames:
        for path in frames_folder(case).iterdir():
            assert files[path.name] == path.read_bytes()


def test_table_logs_alone(tmp_path: Path) -> None:
    folder = run_folder(LOGGED, tmp_path)
    shutil.rmtree(folder / "aggregator")
    spool, report = imported(folder, tmp_path)
    assert report.exit_code == 0
    assert report.duplicates == 0
    logged = returned_rows(spool, tmp_path)
    assert not logged - recorded_rows(LOGGED)
    assert Counter(json.loads(row)[0] for row in logged.elements()) == {0: 1200, 1: 582}
    log = folder / "rank_1" / "data" / "StepTimeTable.msgpack"
    alone, _ = imported(log, tmp_path, "alone")
    assert {rank for rank, *_ in steps_of(alone)} == {1}
    assert len(steps_of(alone)) == 191
    log.write_bytes(log.read_bytes()[:-3])
    torn, report = imported(log, tmp_path, "torn")
    assert [finding.code for finding in report.skipped] == ["torn"]
    assert len(steps_of(torn)) == 190


def test_equal_rows_of_one_file_are_not_duplicates(tmp_path: Path) -> None:
    log = run_folder(LOGGED, tmp_path) / "rank_0" / "data" / "ProcessTable.msgpack"
    log.write_bytes(log.read_bytes() * 2)
    spool, report = imported(log, tmp_path)
    assert report.duplicates == 0
    marks = [mark for batch in batches(spool).values() for mark in batch["marks"]]
    assert len([mark for mark in marks if mark["name"] == "memory"]) == 600


def test_rows_only_in_a_history_are_added_to_rows_of_the_frames(tmp_path: Path) -> None:
    folder = run_folder(SHORT, tmp_path, with_frames=True)
    (folder / "frames" / "rank1_pid19150.frames").unlink()
    spool, _ = imported(folder, tmp_path)
    assert returned_rows(spool, tmp_path) == recorded_rows(SHORT)
    assert {rank for rank, *_ in steps_of(spool)} == {0, 1}


def test_several_runs_below_a_folder(tmp_path: Path) -> None:
    for case in (SHORT, "v031/single_input_bound"):
        run_folder(case, tmp_path / "logs")
    spool, report = imported(tmp_path / "logs", tmp_path)
    assert report.exit_code == 0
    assert len(steps_of(spool)) == 2 * 10 + 300


def test_a_history_that_is_being_written(tmp_path: Path) -> None:
    """The writer has an open transaction, and committed rows are still in the log."""
    history = tmp_path / "run" / "telemetry"
    history.parent.mkdir()
    shutil.copy(run_folder(SHORT, tmp_path) / "aggregator" / "telemetry", history)
    with closing(sqlite3.connect(history)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        insert = (
            "INSERT INTO step_time_samples (recv_ts_ns, rank, global_rank, sample_ts_s, seq, step,"
            " events_json) VALUES (1, 0, 0, 1795197897.5, 50, ?, '{}')"
        )
        writer.execute(insert, (11,))
        writer.commit()
        writer.execute(insert, (12,))
        spool, report = imported(history, tmp_path)
        assert report.exit_code == 0
        assert max(number for _, number, *_ in steps_of(spool)) == 11
        writer.commit()
        later, _ = imported(history, tmp_path, "later")
        assert max(number for _, number, *_ in steps_of(later)) == 12
    log = history.with_name("telemetry-wal")
    assert not log.exists() or not log.stat().st_size


def test_a_history_that_a_killed_writer_left(tmp_path: Path) -> None:
    """A database and its log, without the index of the log, in a folder that is not writable."""
    history = tmp_path / "run" / "telemetry"
    history.parent.mkdir()
    source = tmp_path / "source"
    shutil.copy(run_folder(SHORT, tmp_path) / "aggregator" / "telemetry", source)
    with closing(sqlite3.connect(source)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute(
            "INSERT INTO step_time_samples (recv_ts_ns, rank, global_rank, sample_ts_s, seq, step,"
            " events_json) VALUES (1, 0, 0, 1795197897.5, 50, 11, '{}')"
        )
        writer.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{source}{suffix}", f"{history}{suffix}")
    before = files_of(history.parent)
    spool, report = imported(history, tmp_path)
    assert report.exit_code == 0
    assert max(number for _, number, *_ in steps_of(spool)) == 11
    assert files_of(history.parent) == before


SUMMARIES = sorted(CASES)


@pytest.mark.parametrize("case", SUMMARIES)
def test_a_summary_alone_is_a_span_with_marks_by_rank(case: str, tmp_path: Path) -> None:
    path = run_folder(case, tmp_path) / "final_summary.json"
    summary = json.loads(path.read_bytes())
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 0
    (batch,) = batches(spool).values()
    (span,) = batch["spans"]
    assert span["name"] == "traceml.summary"
    assert span["attrs"]["traceml.step_time.steps_analyzed"] in (10, 300)
    assert sorted(span["mark_ids"]) == sorted(mark["id"] for mark in batch["marks"])
    found = {
        (mark["name"], mark["attrs"].get("rank", mark["attrs"].get("node_rank"))): mark["value"]
        for mark in batch["marks"]
    }
    assert {mark["kind"] for mark in batch["marks"]} == {"summary"}
    for section in ("step_time", "process", "system"):
        for group, row in summary[section]["groups"]["rows"].items():
            for name, value in row["metrics"].items():
                key = (f"traceml.{section}.{name}", int(group))
                assert found.pop(key, None) == value
    assert not found
    files, _ = written(spool, tmp_path)
    assert files == {"final_summary.json": path.read_bytes()}


@pytest.mark.parametrize("version", [1.3, 1.91, 2, "1.5", None, math.nan])
def test_a_summary_of_another_version_is_refused(version: Any, tmp_path: Path) -> None:
    path = run_folder(SHORT, tmp_path) / "final_summary.json"
    summary = json.loads(path.read_bytes())
    path.write_text(json.dumps(summary | {"schema_version": version}))
    with pytest.raises(InputError, match=r"final summary of version .* expected 1.4 to 1.9"):
        imported(path, tmp_path)


def test_damaged_summary_yields_its_readable_values(tmp_path: Path) -> None:
    path = tmp_path / "final_summary.json"
    odd = {
        "schema_version": 1.5, "generated_at": 5, "duration_s": "x", "meta": [],
        "step_time": {"groups": {"by": "global_rank", "rows": {
            "0": {"metrics": {"a": 1, "b": None, "c": [], "d": 10**30}}, "1": 5, "x": {"metrics": 5}
        }}, "global": 7},
        "system": 5,
    }  # fmt: skip
    path.write_text(json.dumps(odd))
    spool, _ = imported(path, tmp_path)
    (batch,) = batches(spool).values()
    assert {(mark["name"], mark["value"]) for mark in batch["marks"]} == {
        ("traceml.step_time.a", 1), ("traceml.step_time.d", 1e30)
    }  # fmt: skip
    assert written(spool, tmp_path)[0] == {"final_summary.json": path.read_bytes()}


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "run" / "notes.json").write_text('{"schema_version": 1}')
    (tmp_path / "run" / "link.frames").symlink_to(next(frames_folder(SHORT).iterdir()))
    with pytest.raises(InputError, match="is not a recording of TraceML's"):
        imported(tmp_path / "run", tmp_path)


def test_folders_are_searched_down_to_the_maximum_depth(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*map(str, range(MAX_DEPTH)))
    deepest.mkdir(parents=True)
    recorded = min(frames_folder(CASES[0]).iterdir())
    copy = shutil.copy(recorded, deepest)
    (run,) = find_runs(tmp_path)
    assert [file.path for file in run.files] == [Path(copy)]
    (deepest / "deeper").mkdir()
    shutil.move(copy, deepest / "deeper")
    with pytest.raises(InputError, match="is not a recording of TraceML's"):
        find_runs(tmp_path)


def test_a_file_with_less_than_a_frame_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(frames_folder(SHORT), folder)
    (folder / "more").mkdir()
    first = min(folder.glob("*.frames")).read_bytes()
    (folder / "more" / "rank2_pid9.frames").write_bytes(first[:100])
    _, report = imported(folder, tmp_path)
    assert [each.code for each in report.skipped] == ["torn"]
    assert report.exit_code == 1
    assert report.spans


def test_unreadable_entries_do_not_stop_a_folder_import(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(frames_folder(SHORT), folder)
    (folder / "closed").mkdir(mode=0)
    (folder / "closed.frames").touch(mode=0)
    folder.chmod(0o755)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from cirron_otel.core.importers.traceml.reading import TraceMLImport\n"
        "if os.geteuid() == 0:\n"
        "    os.setgid(65534)\n"
        "    os.setuid(65534)\n"
        "os.chdir(int(sys.argv[1]))\n"
        "found = []\n"
        "recording = TraceMLImport('.', on_finding=found.append)\n"
        "assert sum(batch.spans for batch in recording.batches()) == 102\n"
        "print(*[f'{each.name} {each.code}' for each in found], sep='\\n')\n"
    )
    here = os.open(folder, os.O_RDONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(here)],
            pass_fds=[here], capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(here)
        (folder / "closed").chmod(0o700)
    assert done.stderr == ""
    assert set(done.stdout.splitlines()) == {"closed unreadable", "closed.frames unreadable"}


def test_the_records_of_a_history_import_are_the_same_each_time(tmp_path: Path) -> None:
    folder = run_folder(SHORT, tmp_path)
    spool, first = imported(folder, tmp_path)
    _, second = imported(folder, tmp_path)
    assert (second.written, second.unchanged) == (0, first.written)
    assert all(exactjson.equal(batch["schema_version"], 1) for batch in batches(spool).values())
