"""Ends that interrupt the end itself: signals, forks, full disks, and sessions that follow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.recovery import recover
from cirron_otel.core.spool.remainder import Left, RemainderFile, left_line, remainder_path
from cirron_otel.sdk.flush import leaving
from cirron_otel.sdk.flush.flush_builder import FlushBuilder
from cirron_otel.sdk.flush.proof import fault_of
from cirron_otel.sdk.session.handle import active, end_session
from tests.kit.sessions.opened import opened
from tests.kit.sessions.whole import whole

HEAD = """
import os, signal, sys, threading, time
import cirron_otel as ci
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.sdk.flight_recorder.recorder import FlightRecorder
from cirron_otel.sdk.flush import leaving
from cirron_otel.sdk.session.handle import active, end_session

leaving.SAVE_S = leaving.LEAVE_S = 60.0  # these limits are not the subject

def open_session(**options):
    directory = sys.argv[1]
    ci.profile(
        output_dir=directory, frameworks=[], flush_interval=600, overhead_marks=0, **options
    )

def record(count):
    for number in range(count):
        with ci.scope("step", index=number):
            ci.mark("number", number)

def hold():
    # The disk does not respond, until the process ends.
    SpoolWriter.write = lambda *_, **__: time.sleep(600)
"""


def run(directory: Path, program: str, expected: int = 0, **env: str) -> str:
    """Run a program in `directory`, and return what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program, directory],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == expected, done.stderr
    return done.stderr


def numbers(directory: Path) -> list[int]:
    """Recover the spool, check that it is whole, and return the numbers that were marked."""
    recover(target_spool(directory))
    return whole(directory).numbers()


def test_ctrl_c_during_the_exit_saves_the_rest_at_once(tmp_path: Path) -> None:
    err = run(
        tmp_path,
        """
open_session()
record(5_000)
hold()
timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
timer.daemon = True
timer.start()
""",
    )
    assert "KeyboardInterrupt" in err
    assert "saved beside the spool: " in err
    assert numbers(tmp_path) == list(range(5_000))


def test_ctrl_c_ahead_of_the_last_flush_saves_every_record(tmp_path: Path) -> None:
    err = run(
        tmp_path,
        """
open_session()
record(3_000)
FlightRecorder.finish = lambda *_: time.sleep(60)
timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
timer.daemon = True
timer.start()
""",
    )
    assert "KeyboardInterrupt" in err
    assert numbers(tmp_path) == list(range(3_000))


def test_the_session_and_its_losses_are_recorded_even_without_any_time(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
leaving.SAVE_S = -60.0
open_session(exit_timeout=0.0)
with ci.scope("epoch", index=0) as epoch:
    ci.flush()
    record(30_000)
    end_session(active.profiler, 0.0)
""",
    )
    recover(target_spool(tmp_path))
    found = whole_with_losses(tmp_path)
    (session,) = [span for span in found if span["name"] == "cirron.session"]
    lost = session["attrs"]["drops.scopes_left_at_exit"]
    assert [span["attrs"]["incomplete"] for span in found if span["name"] == "epoch"] == [True]
    assert len(found) + lost == 30_002


def whole_with_losses(directory: Path) -> list[dict[str, Any]]:
    """Return all spans; each one is there once, and has its parent."""
    files = (directory / "spool").glob("*.json")
    spans = [span for path in files for span in json.loads(path.read_bytes())["spans"]]
    ids = [span["id"] for span in spans]
    assert len(ids) == len(set(ids))
    assert {span["parent_id"] for span in spans} - {None} <= set(ids)
    return spans


def test_a_disk_that_reports_that_it_is_full_at_the_close_loses_the_rest_and_counts_it(
    tmp_path: Path,
) -> None:
    err = run(
        tmp_path,
        """
from cirron_otel.core.spool import remainder
open_session(exit_timeout=0.1)
record(10)
ci.flush()
record(3_000)
hold()
class Os:
    def __getattr__(self, name):
        return getattr(os, name)
    def close(self, descriptor):
        os.close(descriptor)
        raise OSError(28, "No space left on device")
remainder.os = Os()
""",
    )
    assert "; lost: 3,001 spans, 3,000 marks\n" in err
    assert "saved beside" not in err


def test_a_deferred_signal_calls_the_handler_of_an_event_loop_once(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import asyncio
from cirron_otel.sdk.flush.deferred_signals import deferred_signals

async def main():
    calls = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, calls.append, 1)
    with deferred_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert calls == []
    await asyncio.sleep(0.2)
    assert calls == [1], calls

asyncio.run(main())
""",
    )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_the_rest_is_saved_comes_after_that(tmp_path: Path, name: str) -> None:
    run(
        tmp_path,
        f"""
from cirron_otel.sdk.flush import pipeline
real = pipeline.leave
def leave(*arguments):
    os.kill(os.getpid(), signal.{name})
    real(*arguments)
pipeline.leave = leave
open_session(exit_timeout=0.0)
record(5_000)
hold()
""",
        -15 if name == "SIGTERM" else 0,
    )
    assert numbers(tmp_path) == list(range(5_000))


def test_a_child_forked_while_the_parent_still_seals_records_nothing_of_it(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
open_session()
record(5_000)
real, started = SpoolWriter.write, threading.Event()
def write(*arguments, **options):
    started.set()
    time.sleep(1.0)
    return real(*arguments, **options)
SpoolWriter.write = write
assert not ci.shutdown(0.0)
started.wait()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    open_session()
    with ci.scope("child"):
        pass
    ci.shutdown()
""",
    )
    found = whole(tmp_path)
    assert found.numbers() == list(range(5_000))
    assert found.names() == {"step": 5_000, "child": 1}


def test_a_process_that_continues_records_its_next_session(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from cirron_otel.sdk.session.waiting import wait_for_session
os.environ["CIRRON_OUTPUT_DIR"] = sys.argv[1]
open_session(exit_timeout=0.0)
record(3_000)
end_session(active.profiler, 0.0)
assert wait_for_session(hooks=False)
with ci.scope("later"):
    pass
active.profiler.shutdown(60)
""",
    )
    recover(target_spool(tmp_path))
    found = whole(tmp_path)
    assert found.numbers() == list(range(3_000))
    assert found.names() == {"step": 3_000, "later": 1}


def test_a_full_disk_loses_the_rest_and_counts_it(tmp_path: Path) -> None:
    err = run(
        tmp_path,
        """
from cirron_otel.core.spool import remainder
open_session(exit_timeout=0.1)
with ci.scope("epoch", index=0):
    record(10)
    ci.flush()
    record(3_000)
    hold()
    def full(*_):
        raise OSError(28, "No space left on device")
    remainder.write_all = full
    end_session(active.profiler, 0.1)
""",
    )
    assert "; lost: 3,002 spans, 3,000 marks\n" in err
    (result,) = recover(target_spool(tmp_path))
    assert result.incomplete + result.closed == 2  # the journal has the epoch and the session
    assert whole(tmp_path).numbers() == list(range(10))


def test_without_a_spool_the_rest_is_counted(tmp_path: Path) -> None:
    err = run(
        tmp_path,
        """
open_session(output="log", exit_timeout=0.0)
record(50_000)
""",
    )
    assert "; lost: " in err
    assert "saved" not in err
    assert not (tmp_path / "state").exists()


def test_steps_in_the_remainder_have_the_numbers_that_they_would_have_in_the_spool(
    tmp_path: Path,
) -> None:
    """There are more than fit into one batch, so they are built in several parts."""
    run(
        tmp_path,
        """
open_session(exit_timeout=0.0, segment_records=3_000)
for number in range(5):
    with ci.scope("epoch", index=number):
        record(4_000)
""",
    )
    recover(target_spool(tmp_path))
    spans = whole(tmp_path).spans.values()
    steps = sorted((s for s in spans if s["name"] == "step"), key=lambda s: s["start_ns"])
    assert [s["attrs"]["global_step"] for s in steps] == list(range(20_000))
    assert [s["attrs"]["epoch"] for s in steps] == [
        number for number in range(5) for _ in range(4_000)
    ]


def test_a_span_of_the_remainder_lists_marks_that_are_later_than_its_end(tmp_path: Path) -> None:
    err = run(
        tmp_path,
        """
from cirron_otel.sdk.flush import remainder
remainder.MAX_SPANS = 2
open_session(exit_timeout=0.0)
for index in range(50):
    with ci.scope("step", index=index) as step:
        ci.mark("number", 2 * index)
        step.end()
        ci.mark("number", 2 * index + 1)
""",
    )
    assert "saved beside the spool: " in err
    recover(target_spool(tmp_path))
    found = whole(tmp_path)
    assert found.numbers() == list(range(100))
    steps = [span for span in found.spans.values() if span["name"] == "step"]
    assert [len(step["mark_ids"]) for step in steps] == [2] * 50


def test_the_remainder_is_sealed_by_the_next_session(tmp_path: Path) -> None:
    program = """
open_session(exit_timeout=0.1)
record(5_000)
hold()
"""
    err = run(tmp_path, program)
    assert "saved beside the spool: " in err
    with opened(tmp_path):
        pass
    assert whole(tmp_path).numbers() == list(range(5_000))
    assert not list((tmp_path / "state").glob("remainder-*"))


def _batch(tmp_path: Path) -> bytes:
    with opened(tmp_path / "other"):
        assert ci.flush()  # the flush at the start of a session is over: one batch has all records
        with ci.scope("step", index=0):
            pass
    return next((tmp_path / "other" / "spool").glob("*.json")).read_bytes()


def test_a_torn_remainder_is_set_aside_and_its_complete_batches_are_sealed(tmp_path: Path) -> None:
    batch = _batch(tmp_path)
    prefix = json.loads(batch)["batch_id"][:12]
    paths = target_spool(tmp_path / "new")
    file = RemainderFile(paths, prefix)
    for line in (batch, left_line(Left(1, 2, 3)), batch[: len(batch) // 2]):
        file.add(line)
    file.close()
    (result,) = recover(paths)
    assert len(result.saved) == 1
    assert result.lost == Left(1, 2, 3)
    assert "line 3 is not a batch" in result.problem
    assert recover(paths) == []
    path = remainder_path(paths, prefix)
    assert path.with_name(path.name + ".bad").exists()
    assert whole(tmp_path / "new").names() == {"step": 1}


def test_lost_records_are_counted_on_the_recovered_session(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from cirron_otel.sdk.flush import leaving
from cirron_otel.sdk.flush.flush_builder import FlushBuilder
leaving.LEAVE_S = 0.5
open_session(exit_timeout=0.1)
record(10)
ci.flush()
record(3_000)
assembling = threading.Event()
def assemble(*_):
    assembling.set()
    time.sleep(600)  # it never reaches a checkpoint
FlushBuilder._assemble = assemble
threading.Thread(target=ci.flush, daemon=True).start()
assembling.wait()
""",
    )
    recover(target_spool(tmp_path))
    (session,) = whole(tmp_path).sessions
    assert session["attrs"]["drops.scopes_left_at_exit"] >= 3_000
    assert session["attrs"]["drops.marks_left_at_exit"] == 3_000


def test_a_batch_without_all_of_its_records_is_set_aside_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FlushBuilder._assemble

    def torn(builder: FlushBuilder, *arguments: Any) -> Any:
        result = real(builder, *arguments)
        for number, batch in enumerate(result.batches):
            text = batch.data.replace(b'"name":"torn"', b'"name":"torn')
            result.batches[number] = type(batch)(
                batch.batch_id, batch.created_ns, text, batch.span_count, batch.mark_count
            )
        return result

    monkeypatch.setattr(FlushBuilder, "_assemble", torn)
    with opened(tmp_path, flush_interval=600) as profiler:
        with ci.scope("good"):
            pass
        assert profiler.flush(60)
        with ci.scope("torn"):
            pass
        profiler.flush(60)
        health = profiler.health()
        assert health["drops"]["batches_set_aside"] == 1
        assert "is set aside: its text is not a batch" in health["last_errors"]["batch"]
    (aside,) = (tmp_path / "state").glob("*.bad")
    assert b"torn" in aside.read_bytes()
    assert whole(tmp_path).names() == {"good": 1}


def test_the_proof_compares_the_numbers_of_records() -> None:
    batch = b'{"spans":[{"a":[1,"]"]},{}],"marks":[{}],"snapshots":[]}'
    assert fault_of(batch, (2, 1, 0)) is None
    assert fault_of(batch, (3, 1, 0)) == "its text has 2 spans instead of 3"
    assert fault_of(b'{"spans":["\\ud800"],"marks":[],"snapshots":[]}', (1, 0, 0)) is None
    assert "not a batch" in (fault_of(batch[:-1], (2, 1, 0)) or "")


def test_a_second_shutdown_of_a_sealed_session_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as profiler:
        with ci.scope("step", index=0):
            pass
        assert profiler.shutdown()
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        end_session(profiler, 0.0)
        assert profiler.shutdown()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert active.profiler is None


def test_an_exit_saves_the_rest_for_less_time_than_it_waits_in_total() -> None:
    assert 0 < leaving.LEAVE_S < leaving.SAVE_S < leaving.OVER_S
