"""Damaged and foreign SQLite files: one clear line, or a reported skip, and bounded memory."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cirron_otel.core.importers.traceml import history
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.main import run
from tests.kit.spools.comparing import batches

from .recordings import (
    CASES,
    SHORT,
    imported,
    run_folder,
)


@pytest.fixture(name="history")
def history_(tmp_path: Path) -> Path:
    """A copy of a history."""
    path = tmp_path / "history"
    shutil.copy(run_folder(SHORT, tmp_path) / "aggregator" / "telemetry", path)
    return path


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.mark.parametrize("seed", range(40))
def test_damaged_pages(
    seed: int, history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_ = random.Random(seed)
    data = bytearray(history.read_bytes())
    for _ in range(random_.choice((1, 20, 400))):
        data[random_.randrange(16, len(data))] = random_.randrange(256)
    if seed % 4 == 0:
        del data[random_.randrange(100, len(data)) :]
    history.write_bytes(data)
    code = run(["convert", f"traceml:{history}", str(tmp_path / "out")])
    shown = capsys.readouterr().err
    assert code in (0, 1, 3)
    assert "Traceback" not in shown
    assert "internal error" not in shown
    assert (code == 0) or shown.count("cirron-otel: ")


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    changed(path, "CREATE TABLE a (b)", "INSERT INTO a VALUES (1)")
    with pytest.raises(InputError, match="has none of TraceML's tables: expected a history"):
        imported(path, tmp_path)


def test_views_and_virtual_tables_are_not_read(tmp_path: Path) -> None:
    """A view could take for ever."""
    path = tmp_path / "other"
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n"
    )
    changed(
        path, f"CREATE VIEW step_time_samples AS {endless}",
        "CREATE VIRTUAL TABLE process_samples USING fts5(a)",
    )  # fmt: skip
    with pytest.raises(InputError, match="has none of TraceML's tables"):
        imported(path, tmp_path)


def test_harmless_generated_column_is_imported(history: Path, tmp_path: Path) -> None:
    """Columns may be computed, but only by functions that SQLite marks as harmless."""
    changed(history, "ALTER TABLE step_time_samples ADD COLUMN more AS (seq * 2)")
    spool, report = imported(history, tmp_path)
    steps = [span for batch in batches(spool).values() for span in batch["spans"]
             if span["name"] == "step"]  # fmt: skip
    assert steps[0]["traceml"] == {"more": 94}
    assert report.skipped_count


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE step_time_samples SET events_json = x'ff00'",
        "UPDATE step_time_samples SET events_json = '{'",
        "UPDATE step_time_samples SET events_json = 5, sample_ts_s = 'x', step = x'00'",
        "UPDATE step_time_samples SET rank = 'x', global_rank = NULL, recv_ts_ns = 'y'",
        "UPDATE step_time_samples SET step = 9223372036854775807, sample_ts_s = 9e999",
        "UPDATE process_samples SET hostname = CAST(x'fffe' AS TEXT), ram_used_bytes = -1",
        "UPDATE system_samples SET gpu_count = 4, gpu_available = 'maybe'",
        "ALTER TABLE step_memory_samples DROP COLUMN device",
        "DROP TABLE step_memory_samples",
        "CREATE TABLE more (rank, secret); ",
        "INSERT INTO system_gpu_samples (recv_ts_ns, gpu_idx) VALUES (1, 0)",
    ],
)
def test_values_of_other_types(statement: str, history: Path, tmp_path: Path) -> None:
    changed(history, statement)
    spool, _ = imported(history, tmp_path)
    marks = [mark for batch in batches(spool).values() for mark in batch["marks"]]
    assert len(marks) > 90


def test_value_exceeding_the_limit_is_reported(history: Path, tmp_path: Path) -> None:
    changed(history, "UPDATE step_time_samples SET events_json = hex(zeroblob(9000000))"
                     " WHERE id = 5")  # fmt: skip
    spool, report = imported(history, tmp_path)
    assert report.exit_code == 1
    assert [finding.code for finding in report.skipped] == ["damaged"]
    assert "step_time_samples" in report.skipped[0].message
    assert len(batches(spool)) >= 2


def test_devices_come_back_in_their_order(history: Path, tmp_path: Path) -> None:
    values = "SELECT recv_ts_ns, global_rank, sample_ts_s, seq, {0}, 30.5, 1e9, 8e9, 60, 200, 350"
    columns = (
        "recv_ts_ns, global_rank, sample_ts_s, seq, gpu_idx, util, mem_used_bytes,"
        " mem_total_bytes, temperature_c, power_usage_w, power_limit_w"
    )
    changed(
        history, "UPDATE system_samples SET gpu_count = 2, gpu_available = 1 WHERE id = 1",
        *(f"INSERT INTO system_gpu_samples ({columns}) {values.format(number)}"
          " FROM system_samples WHERE id = 1" for number in (1, 0)),
    )  # fmt: skip
    spool, report = imported(history, tmp_path)
    assert report.exit_code == 0
    marks = [mark for batch in batches(spool).values() for mark in batch["marks"]]
    found = [(m["attrs"]["hw.id"], m["value"]) for m in marks if m["name"] == "hw.gpu.utilization"]
    assert sorted(found) == [("cuda:0", 0.305), ("cuda:1", 0.305)]


@pytest.mark.parametrize("case", CASES)
def test_device_query_searches_by_sample_time(case: str, tmp_path: Path) -> None:
    """A search by rank would take minutes for the history of a day."""
    path = run_folder(case, tmp_path) / "aggregator" / "telemetry"
    with closing(sqlite3.connect(path)) as database:
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {history.DEVICES_QUERY}")]
    (search,) = (line for line in plan if line.startswith("SEARCH g"))
    assert "(sample_ts_s=?)" in search


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        imported(tmp_path / "pipe", tmp_path)


PROGRAM = """
import resource, sys
from cirron_otel.tools.convert.convert import ConvertRequest, convert
for source, target in (sys.argv[1:3], sys.argv[3:5]):
    convert(ConvertRequest(source, target))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_a_recording(tmp_path: Path) -> None:
    """A stream of many frames, and its way back."""
    from .recordings import frames_folder

    source = frames_folder("v050/ddp2_residual_straggler") / "rank0_pid18291.frames"
    peaks = []
    for times in (2, 20):
        folder = tmp_path / str(times)
        folder.mkdir()
        (folder / "many.frames").write_bytes(source.read_bytes() * times)
        arguments = (f"traceml:{folder}/many.frames", folder / "a", folder / "a",
                     f"traceml:{folder}/back")  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        peaks.append(int(done.stdout) * 1024)
        back = next((folder / "back").iterdir())
        assert back.read_bytes() == (folder / "many.frames").read_bytes()
    assert peaks[1] < peaks[0] + 24 * 2**20
