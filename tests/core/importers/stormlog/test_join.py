"""`convert --join`: a recording of Stormlog on the scopes of a run of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.placement.joined_scopes import ScopeTimes
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.convert import ConvertRequest, convert

from .conftest import SIMULATED
from .returning import (
    batches_in,
    files_of,
    lines,
    records_in,
)
from .test_mapping import (
    HEX,
    SESSION,
    T,
    boundary,
    event,
)

RUN = "aa" * 16
PID, THREAD = 19411, 7


def scope(number: int, parent: str | None, name: str, times: tuple[int, int], **more: Any) -> Any:
    """A span of our run."""
    return {
        "id": RUN if parent is None else f"{number:016x}{RUN[16:]}",
        "name": name, "parent_id": parent, "index": None, "start_ns": T + times[0],
        "end_ns": T + times[1], "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": THREAD, "pid": PID, "rank": 0, "attrs": {}, "mark_ids": [], **more,
    }  # fmt: skip


EPOCH, STEP, OTHER = (f"{number:016x}{RUN[16:]}" for number in (1, 2, 3))


@pytest.fixture
def run_spool(tmp_path: Path) -> Path:
    """A run with an epoch from 10 to 90, a step from 20 to 40, and another thread's scope."""
    spans = [
        scope(2, EPOCH, "step", (20, 40)),
        scope(1, RUN, "epoch", (10, 90)),
        scope(3, RUN, "load", (60, 70), thread_id=8),
        scope(0, None, "cirron.session", (0, 100)),
    ]
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "bb" * 16, "created_ns": T + 100,
        "spans": spans, "marks": [], "snapshots": [], "otel": {"session": RUN},
    }  # fmt: skip
    folder = tmp_path / "run" / "spool"
    folder.mkdir(parents=True)
    (folder / f"{T + 100:020d}-{'bb' * 16}.json").write_bytes(batch_bytes(batch))
    return tmp_path / "run"


def test_the_innermost_scope_of_a_process_and_thread(run_spool: Path, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    times = ScopeTimes(run_spool, tmp_path / "temporary")
    cases = {
        (PID, THREAD, 5): RUN, (PID, THREAD, 10): EPOCH, (PID, THREAD, 30): STEP,
        (PID, THREAD, 40): STEP, (PID, THREAD, 41): EPOCH, (PID, THREAD, 95): RUN,
        (PID, 8, 65): OTHER, (PID, 9, 65): RUN, (PID, None, 30): STEP, (PID, None, 65): RUN,
        (PID, THREAD, 101): None, (1, THREAD, 30): None,
    }  # fmt: skip
    for (pid, thread, number), expected in cases.items():
        found = times.at(pid, thread, T + number)
        assert (None if found is None else found.id) == expected, (pid, thread, number)
    times.close()


def test_events_are_on_the_scopes_of_the_run(run_spool: Path, tmp_path: Path) -> None:
    path = tmp_path / "segment-000001.jsonl"
    path.write_bytes(
        lines(
            boundary(22, "enter", "forward"),
            event(25),
            boundary(30, "exit", "forward"),
            event(50),
            event(65),
            event(66, metadata={"origin_thread_id": 8}),
            event(150),
        )
    )
    code = run_command(
        ["convert", f"stormlog:{path}", str(tmp_path / "out"), "--join", str(run_spool)]
    )
    assert code == 0
    out = tmp_path / "out"
    marks = records_in(out, "marks")
    assert [mark["span_id"] for mark in marks] == [STEP, STEP, STEP, EPOCH, RUN, OTHER, RUN]
    (phase,) = records_in(out, "spans")
    assert (phase["name"], phase["parent_id"]) == ("forward", STEP)
    (batch,) = batches_in(out)
    assert batch["otel"]["session"] == RUN
    assert batch["stormlog"]["session"]["session_id"] == SESSION
    convert(ConvertRequest(str(out), f"stormlog:{tmp_path}/back.jsonl"))
    assert (tmp_path / "back.jsonl").read_bytes() == path.read_bytes()


def test_a_process_of_another_time_is_mapped_as_without_join(
    run_spool: Path, tmp_path: Path
) -> None:
    """Its process has the same number."""
    path = tmp_path / "segment-000001.jsonl"
    path.write_bytes(lines(event(101), event(150)))
    convert(ConvertRequest(f"stormlog:{path}", str(tmp_path / "out"), join=str(run_spool)))
    out = tmp_path / "out"
    assert [mark["span_id"] for mark in records_in(out, "marks")] == [HEX, HEX]
    assert [span["id"] for span in records_in(out, "spans")] == [HEX]


def test_the_run_with_its_recording_is_valid(run_spool: Path, tmp_path: Path) -> None:
    path = tmp_path / "segment-000001.jsonl"
    path.write_bytes(lines(event(-5), event(25), boundary(95, "enter", "late"), event(150)))
    before = run_command(["spool", "verify", str(run_spool)])
    command = ["convert", f"stormlog:{path}", str(run_spool), "--join", str(run_spool)]
    assert run_command(command) == 0
    assert run_command(["spool", "verify", str(run_spool)]) == before
    marks = records_in(run_spool, "marks")
    (late,) = (span for span in records_in(run_spool, "spans") if span["name"] == "late")
    assert late["parent_id"] == RUN
    assert [mark["span_id"] for mark in marks] == [RUN, STEP, RUN, RUN]


def test_another_process_is_mapped_as_without_join(run_spool: Path, tmp_path: Path) -> None:
    path = SIMULATED / "sink"
    convert(ConvertRequest(f"stormlog:{path}", str(tmp_path / "joined"), join=str(run_spool)))
    convert(ConvertRequest(f"stormlog:{path}", str(tmp_path / "alone")))
    assert files_of(tmp_path / "joined") == files_of(tmp_path / "alone")


def test_join_needs_a_spool_and_a_source_that_can_join(
    run_spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert_to = ["convert", f"stormlog:{SIMULATED}", str(tmp_path / "out")]
    assert run_command([*convert_to, "--join", str(tmp_path / "absent")]) == 3
    assert run_command(["convert", str(run_spool), str(tmp_path / "x.jsonl"), "--join", "y"]) == 2
    assert "--join needs a source of the kind stormlog" in capsys.readouterr().err
    (tmp_path / "empty" / "spool").mkdir(parents=True)
    with pytest.raises(InputError, match="no scope"):
        convert(ConvertRequest(*convert_to[1:], join=str(tmp_path / "empty")))
    assert not (tmp_path / "out").exists()
