"""Snapshots when something is in the way: slow and broken disks, kills, forks, dead threads."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import cirron_otel as ci
from cirron_otel.sdk.flush import assembly
from cirron_otel.sdk.snapshots import recorder as sdk
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.opened import opened
from tests.kit.sessions.processes import environment, until
from tests.kit.sessions.whole import recovered, whole

from .training import (
    batches,
    by_epoch,
    epochs,
    model,
    path_of,
    see_it_is_right,
    snapshots,
)

WRITER = "cirron-otel-snapshots"


@pytest.fixture
def watched() -> Iterator[Any]:
    """A watched model."""
    net = ci.watch(model())
    yield net
    ci.watch(None)


def current_id() -> str:
    """The id of the scope that is open."""
    from opentelemetry import trace

    return str(trace.get_current_span().id)  # type: ignore[attr-defined]


def blocked_epoch(directory: Path) -> Path:
    """An epoch whose weights the disk takes, and is not done with until `release`."""
    for _ in ci.epochs(range(1)):
        folder = directory / "snapshots" / current_id()
        folder.mkdir(parents=True)
        pipe = folder / "weights.safetensors.tmp"
        os.mkfifo(pipe)
    return pipe


def release(pipe: Path) -> None:
    """The disk goes on. A pipe is no file: the writer sees that it failed, and takes it away."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: not pipe.exists())
    os.close(reader)


def writer() -> threading.Thread:
    (found,) = [each for each in threading.enumerate() if each.name == WRITER]
    return found


def one_epoch() -> None:
    for _ in ci.epochs(range(1)):
        pass


def test_too_many_that_wait_go_without_files_and_training_goes_on(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "MOST_WAITING", 4)
    with opened(tmp_path, snapshots="full") as profiler:
        pipe = blocked_epoch(tmp_path)
        for _ in range(6):
            one_epoch()
        assert profiler.health()["drops"]["snapshot_files"] == 3
        assert profiler.health()["queue"]["snapshots"] >= 4
        release(pipe)
        assert ci.flush()
        one_epoch()
    see_it_is_right(tmp_path)
    modes = [{each["mode"] for each in records.values()} for records in by_epoch(tmp_path)]
    assert modes == [{"stats"}, *[{"full"}] * 3, *[{"stats"}] * 3, {"full"}]
    assert profiler.health()["drops"]["snapshot_files"] == 4
    assert profiler.health()["recorded"]["snapshots"] == 4 * len(epochs(tmp_path))


def test_more_bytes_than_may_wait_are_not_copied(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(each.numel() * 4 for each in watched.parameters())
    monkeypatch.setattr(sdk, "MOST_BYTES", size)
    watched(torch.ones(1, 6)).sum().backward()
    with opened(tmp_path, snapshots="full") as profiler:
        one_epoch()
    see_it_is_right(tmp_path)
    modes = {name: record["mode"] for name, record in by_epoch(tmp_path)[0].items()}
    assert {mode for name, mode in modes.items() if name.endswith(".grad")} == {"stats"}
    assert {mode for name, mode in modes.items() if not name.endswith(".grad")} == {"full"}
    assert profiler.health()["drops"]["snapshot_files"] == 1
    assert profiler.health()["swallowed_errors"] == {"snapshot file": 1}


def test_a_disk_that_does_not_answer_holds_shutdown_up_for_its_timeout_only(
    watched: Any, tmp_path: Path
) -> None:
    with opened(tmp_path, snapshots="full") as profiler:
        pipe = blocked_epoch(tmp_path)
        begun = time.monotonic()
        assert not profiler.flush(0.2)
        assert not profiler.shutdown(1.0)
        assert time.monotonic() - begun < 300  # the disk would take for ever
        release(pipe)
    assert len(epochs(tmp_path)) == 1
    assert snapshots(tmp_path) == []
    assert profiler.health()["drops"]["snapshots_without_record"] == 4


def test_a_file_that_cannot_be_written_leaves_the_statistics(watched: Any, tmp_path: Path) -> None:
    with opened(tmp_path, snapshots="full") as profiler:
        for _ in ci.epochs(range(1)):
            (tmp_path / "snapshots" / current_id() / "weights.safetensors" / "full").mkdir(
                parents=True
            )
    see_it_is_right(tmp_path)
    assert [record["mode"] for record in snapshots(tmp_path)] == ["stats"] * 4
    assert profiler.health()["drops"]["snapshot_files"] == 1
    assert profiler.health()["swallowed_errors"] == {"snapshot file": 1}


def test_a_writer_that_is_thrown_out_goes_on(watched: Any, tmp_path: Path) -> None:
    with opened(tmp_path, snapshots="full") as profiler:
        pipe = blocked_epoch(tmp_path)
        ident = writer().ident
        assert ident is not None
        thrown = ctypes.pythonapi.PyThreadState_SetAsyncExc
        assert thrown(ctypes.c_ulong(ident), ctypes.py_object(SystemExit)) == 1
        release(pipe)
        one_epoch()
        assert ci.flush()
        assert "snapshot thread" in profiler.health()["swallowed_errors"]
    see_it_is_right(tmp_path)
    assert [len(records) for records in by_epoch(tmp_path)] == [4, 4]
    assert {record["mode"] for record in by_epoch(tmp_path)[1].values()} == {"full"}


@pytest.mark.parametrize("failing", ["named_parameters", "grad"])
def test_a_model_that_raises_raises_nothing_in_the_training(failing: str, tmp_path: Path) -> None:
    class Model(torch.nn.Linear):
        def named_parameters(self, *_args: Any, **_options: Any) -> Any:
            raise RuntimeError("not now")

    class Odd(torch.nn.Parameter):
        @property
        def grad(self) -> Any:
            raise RuntimeError("not now")

    net: Any = Model(2, 2)
    if failing == "grad":
        net = torch.nn.Linear(2, 2)
        net.weight = Odd(torch.ones(2, 2))
    ci.watch(net)
    with opened(tmp_path) as profiler:
        one_epoch()
    assert profiler.health()["swallowed_errors"] == {"snapshot": 1}
    assert len(epochs(tmp_path)) == 1


FORKING = """
import os, sys, torch
import cirron_otel as ci
torch.set_num_threads(1)
model = ci.watch(torch.nn.Linear(100, 100))
ci.profile(output_dir=sys.argv[1], snapshots="full", frameworks=[], flush_interval=30.0)
for _ in ci.epochs(range(3)):
    pass
child = os.fork()
for _ in ci.epochs(range(2)):
    pass
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ci.shutdown()
if not child:
    os._exit(0)
"""


def test_forked_child_and_parent_snapshot_only_their_epochs(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    scripts.text(FORKING, tmp_path, directory)
    see_it_is_right(directory)
    whole(directory)
    by_pid: dict[int, int] = {}
    for span, records in zip(epochs(directory), by_epoch(directory), strict=True):
        assert set(records) == {"weight", "bias"}
        assert {record["mode"] for record in records.values()} == {"full"}
        by_pid[span["pid"]] = by_pid.get(span["pid"], 0) + 1
    assert sorted(by_pid.values()) == [2, 5]


KILLED = """
import itertools, sys, torch
import cirron_otel as ci
torch.set_num_threads(1)
model = ci.watch(torch.nn.Linear(3000, 1000))
ci.profile(output_dir=sys.argv[1], snapshots="full", frameworks=[], flush_interval=0.01)
for _ in ci.epochs(itertools.count()):
    pass
"""


def test_killed_while_it_writes_it_leaves_no_torn_file(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=environment())
    try:
        until(lambda: len(list(tmp_path.rglob("*.safetensors"))) > 2)
        until(lambda: any(tmp_path.rglob("*.safetensors.tmp")))
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    for path in tmp_path.rglob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert file.get_tensor("weight").shape == (1000, 3000)
    named = [record for record in snapshots(tmp_path) if record["blob_uri"] is not None]
    assert named
    assert all(path_of(record).exists() for record in named)
    for path in tmp_path.rglob("*.safetensors.tmp"):
        path.unlink()  # of a process that is dead: eviction and `spool prune` take it with the rest
    recovered(tmp_path)
    whole(tmp_path)
    assert len(batches(tmp_path)) > 0


@pytest.mark.parametrize(
    ("owner", "part"),
    [(sdk.Snapshots, "move_ready"), (sdk.TakenSnapshot, "rows"), (assembly, "batch_text")],
)
@pytest.mark.usefixtures("watched")
def test_a_flush_thread_that_dies_at_it_loses_and_doubles_nothing(
    owner: Any, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, part)
    deaths = [SystemExit]

    def dying(*arguments: Any) -> Any:
        done = real(*arguments)
        if deaths:
            raise deaths.pop()
        return done

    with opened(tmp_path, flush_interval=0.01) as profiler:
        one_epoch()
        monkeypatch.setattr(owner, part, dying)
        one_epoch()
        until(lambda: not deaths)
        one_epoch()
        assert ci.flush()
    see_it_is_right(tmp_path)
    whole(tmp_path)
    assert [len(records) for records in by_epoch(tmp_path)] == [4, 4, 4]
    ids = [record["id"] for record in snapshots(tmp_path)]
    assert len(set(ids)) == len(ids) == 12
    assert profiler.health()["flush_restart_count"] == 1
