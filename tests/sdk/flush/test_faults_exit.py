"""Leaving: what was recorded is in the spool, and the process ends as it would without us."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.servers.backend import WAYS, Backend, Environment
from tests.kit.sessions.processes import start
from tests.kit.sessions.whole import Whole, whole

PIPE = subprocess.PIPE


def leave(
    directory: Path, way: str, number: int = 0, env: dict[str, str] | None = None
) -> tuple[int, list[str], str]:
    """Run the program, and send it a signal when it is ready: exit code, lines, and stderr."""
    directory.mkdir(exist_ok=True)
    process = start("leaving", directory, way, env=env, stdout=PIPE, stderr=PIPE)
    try:
        if number:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
        if way.endswith("goes on") or way.startswith("ignored"):
            (directory / "go on").touch()
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
    return process.returncode, out.splitlines(), err


def check(directory: Path) -> Whole:
    """The session is over, its last scope and the open one are there."""
    found = whole(directory)
    assert len(found.sessions) == 1
    assert found.names() == {"last": 1, "open": 1}
    assert found.numbers() == [0, 1]
    (left_open,) = [span for span in found.spans.values() if span["name"] == "open"]
    assert left_open["attrs"] == {"incomplete": True}
    left = {path.name.partition("-")[0] for path in (directory / "state").iterdir()}
    assert left <= {"cursor"}
    return found


@pytest.mark.parametrize(("way", "code"), [("end", 0), ("sys.exit", 5), ("raise", 1)])
def test_without_a_shutdown(tmp_path: Path, way: str, code: int) -> None:
    returncode, _, err = leave(tmp_path, way)
    assert returncode == code, err
    assert ("RuntimeError: a failure of the application" in err) == (way == "raise")
    check(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_unhandled_signal_ends_the_process_after_a_flush(
    tmp_path: Path, number: signal.Signals
) -> None:
    returncode, out, err = leave(tmp_path, "default", number)
    assert returncode == -number
    assert out == []
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    check(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", ["exits", "goes on", "leaves hard"])
def test_the_applications_handler_runs_as_well(
    tmp_path: Path, way: str, number: signal.Signals
) -> None:
    returncode, out, err = leave(tmp_path, way, number)
    assert out == [f"handled {number.name}"]
    assert returncode == {"exits": 7, "goes on": 0, "leaves hard": 8}[way], err
    if way == "leaves hard":  # nothing is closed then, but all that was over is sealed
        assert whole_but_open(tmp_path) == {"last"}
    else:
        check(tmp_path)


def whole_but_open(directory: Path) -> set[str]:
    batches = [json.loads(p.read_bytes()) for p in sorted((directory / "spool").glob("*.json"))]
    assert [mark["value"] for b in batches for mark in b["marks"] if mark["name"] == "number"] == [
        0,
        1,
    ]
    return {span["name"] for batch in batches for span in batch["spans"]}


def test_handler_set_after_the_sdks_replaces_it(tmp_path: Path) -> None:
    """It replaces ours, as it would any other; the exit flushes all the same."""
    returncode, out, err = leave(tmp_path, "late goes on", signal.SIGTERM)
    assert (returncode, out) == (0, ["handled SIGTERM"]), err
    check(tmp_path)


CHAINED = """
import signal, sys
import cirron_otel as ci

def chain(number, frame):
    before(number, frame)

signal.signal(signal.SIGTERM, lambda *_: print("the first one"))
ci.profile(frameworks=[], output_dir=sys.argv[1])
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, chain)
ci.shutdown()
signal.raise_signal(signal.SIGTERM)
print("goes on")
"""


def test_a_handler_that_chains_to_ours_when_the_session_is_over(tmp_path: Path) -> None:
    """Ours cannot be taken out from below it, and passes on to the one before."""
    done = subprocess.run(
        [sys.executable, "-c", CHAINED, tmp_path], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "the first one\ngoes on\n"), done.stderr


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    returncode, out, err = leave(tmp_path, "ignored", signal.SIGTERM)
    assert (returncode, out) == (0, []), err
    check(tmp_path)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("how", ["end", "default"])
def test_the_last_batch_reaches_the_backend(tmp_path: Path, how: str, way: Environment) -> None:
    with Backend.running() as backend:
        env = way(backend) | {"CIRRON_EXIT_TIMEOUT": "120"}
        code, _, err = leave(tmp_path, how, signal.SIGTERM * (how == "default"), env)
        assert code == (0 if how == "end" else -signal.SIGTERM), err
    assert sorted(backend.span_ids) == sorted(check(tmp_path).spans)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("how", ["end", "default"])
def test_dead_backend_does_not_prevent_exit(tmp_path: Path, how: str, way: Environment) -> None:
    env = way(Backend.down()) | {"CIRRON_EXIT_TIMEOUT": "3"}
    code, _, err = leave(tmp_path, how, signal.SIGTERM * (how == "default"), env)
    assert code == (0 if how == "end" else -signal.SIGTERM), err
    check(tmp_path)


def test_a_signal_while_the_session_is_being_closed(tmp_path: Path) -> None:
    """It waits until what is on its way is in the spool."""
    returncode, _, err = leave(tmp_path, "default, in its shutdown", signal.SIGTERM)
    assert returncode == -signal.SIGTERM, err
    check(tmp_path)


def test_signals_at_any_moment(tmp_path: Path) -> None:
    """Whatever the main thread is at: nothing hangs, and the session is whole."""
    moments = random.Random(11)
    processes = {}
    for number in range(12):
        directory = tmp_path / str(number)
        processes[directory] = start(
            "leaving", directory, "default, busy", stdout=PIPE, stderr=PIPE
        )  # fmt: skip
        if number % 3 == 2:
            for process in processes.values():
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                time.sleep(moments.uniform(0.0, 0.1))
                process.send_signal(signal.SIGTERM)
            for place, process in processes.items():
                try:
                    _, err = process.communicate(timeout=180)
                finally:
                    process.kill()
                assert process.returncode == -signal.SIGTERM, err
                found = whole(place)
                assert len(found.sessions) == found.names()["last"] == 1
                assert list((place / "state").iterdir()) == []
            processes.clear()
