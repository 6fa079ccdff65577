"""The sampler in real processes: when it runs, forks, kills, and failures of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.config.options import Config
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.sdk.sampling import sampler as sampler_module
from cirron_otel.sdk.sampling.sample import SampleReader
from tests.conftest import need_torch
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import ROOT, environment, until
from tests.kit.sessions.spool_trees import read_spool

TRAIN = Path(__file__).parent / "programs" / "train.py"
DEFAULT = {"CIRRON_SAMPLE_INTERVAL": ""}
"""The variable is empty, so the option has its default."""


def start(*words: object, command: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, sys.executable, str(TRAIN), *map(str, words)],
        cwd=ROOT, env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", **env),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(*words: object, **options: Any) -> dict[str, Any]:
    out, err = (process := start(*words, **options)).communicate(timeout=300)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def memory_marks(directory: Path) -> list[dict[str, Any]]:
    return [mark for mark in read_spool(directory).marks if mark["name"] == "memory"]


@pytest.mark.torch
class TestTraining:
    @pytest.fixture(autouse=True)
    def torch(self) -> None:
        need_torch()

    def test_by_default_a_process_with_torch_is_sampled_more_often_at_first(
        self, tmp_path: Path, scripts: ForkedScripts
    ) -> None:
        result = scripts.result(TRAIN, tmp_path, 2.5, **DEFAULT)
        assert result["sampling"]["interval"] == 1.0
        # The interval begins with 0.2 s, and begins so again with the first scope.
        assert 1 < result["sampling"]["samples"] <= 5 * result["seconds"] + 2
        assert read_spool(tmp_path).session.record["attrs"]["sample_interval"] == 1.0
        assert result["errors"] == {}
        assert "cirron-otel-sampler" not in result["threads"]
        assert not result["is_cuda_initialised"]
        assert result["modules"] == []
        spool = read_spool(tmp_path)
        spans = {span["id"]: span for span in spool.spans}
        marks = memory_marks(tmp_path)
        # More may be taken between the count and the end of the session.
        assert len(marks) >= result["sampling"]["samples"]
        for mark in marks:
            attrs = mark["attrs"]
            assert (attrs["device_id"], attrs["backend"]) == (-1, "cpu")
            assert mark["value"] == attrs["process_rss_bytes"] > 50_000_000
            assert mark["value_type"] == "int"
            assert mark["id"] in spans[mark["span_id"]]["mark_ids"]
        assert list(verify_spool(SpoolReader(tmp_path))) == []

    def test_none_switches_it_off(self, tmp_path: Path, scripts: ForkedScripts) -> None:
        result = scripts.result(TRAIN, tmp_path, 1.5, CIRRON_SAMPLE_INTERVAL="none")
        assert result["sampling"]["samples"] == 0
        assert result["sampling"]["interval"] is None
        assert memory_marks(tmp_path) == []
        assert "sample_interval" not in read_spool(tmp_path).session.record["attrs"]

    def test_a_forked_child_starts_clean(self, tmp_path: Path, scripts: ForkedScripts) -> None:
        result = scripts.result(TRAIN, tmp_path, 0.5, "fork", CIRRON_SAMPLE_INTERVAL="0.02")
        spool = read_spool(tmp_path)
        assert spool.lost == []
        marks = [mark for mark in spool.marks if mark["name"] == "memory"]
        assert len({mark["id"] for mark in marks}) == len(marks)
        spans = {span["id"]: span for span in spool.spans}
        pids = {spans[mark["span_id"]]["pid"] for mark in marks}
        assert result["child"] in pids
        assert len(pids) == 2
        assert list(verify_spool(SpoolReader(tmp_path))) == []

    def test_the_samples_of_a_killed_process_are_on_its_scopes(self, tmp_path: Path) -> None:
        process = start(tmp_path, 60, CIRRON_SAMPLE_INTERVAL="0.02")
        until(lambda: len(list((tmp_path / "spool").glob("*.json"))) >= 5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        command = [sys.executable, "-m", "cirron_otel", "spool", "recover", str(tmp_path)]
        subprocess.run(command, check=True, env=environment(), capture_output=True)
        spool = read_spool(tmp_path)
        marks = [mark for mark in spool.marks if mark["name"] == "memory"]
        spans = {span["id"]: span for span in spool.spans}
        assert marks
        for mark in marks:
            assert mark["id"] in spans[mark["span_id"]]["mark_ids"]
        assert spool.session.record["attrs"]["incomplete"] is True
        assert spool.session.record["attrs"]["sample_interval"] == 0.02

    @pytest.mark.parametrize(("text", "most"), [("0.05", 0.05), (None, 1.0), ("none", None)])
    def test_under_run(self, tmp_path: Path, text: str | None, most: float | None) -> None:
        words = () if text is None else ("--sample-interval", text)
        cirron = (sys.executable, "-m", "cirron_otel", "run", "-q", "--output", str(tmp_path))
        result = run("-", 1.0, command=(*cirron, *words, "--"), **DEFAULT)
        assert result["sampling"]["interval"] == most
        assert bool(memory_marks(tmp_path)) is (most is not None)


@pytest.mark.parametrize("is_under_run", [False, True])
def test_without_torch_samples_are_taken_under_run_only(tmp_path: Path, is_under_run: bool) -> None:
    program = """
import sys, time
import cirron_otel as ci
if not sys.argv[1:]:
    ci.profile()
with ci.scope("work"):
    time.sleep(0.5)
    while sys.argv[1:] and not ci.health()["sampling"]["samples"]:
        time.sleep(0.01)
ci.flush()
print(ci.health()["sampling"]["samples"] > 0, "torch" in sys.modules)
"""
    cirron = (sys.executable, "-m", "cirron_otel", "run", "-q", "--") if is_under_run else ()
    done = subprocess.run(
        [*cirron, sys.executable, "-c", program, *("x" * is_under_run)],
        cwd=tmp_path, env=environment(**DEFAULT), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(is_under_run), "False"], done.stderr


@pytest.mark.parametrize("text", ["0", "soon", "nan", "-1", ""])
def test_a_wrong_interval_is_one_line(tmp_path: Path, text: str) -> None:
    command = [sys.executable, "-m", "cirron_otel", "run", "--sample-interval", text, "--", "true"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--sample-interval" in done.stderr
    assert "expected" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


class Faults:
    """What the sampler's thread does instead of taking a sample."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        take = SampleReader.take
        faults = self

        def faulty(reader: SampleReader) -> Any:
            faults.calls += 1
            faults.gate.wait(60)
            if faults.error is not None:
                raise faults.error
            return take(reader)

        monkeypatch.setattr(SampleReader, "take", faulty)

    def profile(self, directory: Path) -> None:
        ci.profile(
            output_dir=directory, exporters="none", join="none", handle_signals=False,
            frameworks=[], sample_interval=0.01, flush_interval=0.01,
        )  # fmt: skip


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def test_an_error_in_a_sample_is_counted_and_the_next_one_is_taken(
    tmp_path: Path, faults: Faults
) -> None:
    faults.error = ValueError("unforeseen")
    faults.profile(tmp_path)
    until(lambda: faults.calls > 3)
    faults.error = None
    until(lambda: ci.health()["sampling"]["samples"] > 3)
    assert ci.health()["swallowed_errors"]["sampler"] >= 3
    ci.shutdown()
    assert memory_marks(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_replaced_and_given_up_after_three_times(
    tmp_path: Path, faults: Faults
) -> None:
    faults.error = SystemExit()
    faults.profile(tmp_path)
    until(lambda: ci.health()["sampling"]["interval"] is None or faults.calls > 10)
    until(lambda: ci.health()["sampling"]["restarts"] == 2)
    until(lambda: not ci.health()["sampling"]["is_alive"])
    time.sleep(0.1)
    assert faults.calls == 3
    with ci.scope("work"):
        pass
    assert ci.flush()
    ci.shutdown()
    assert read_spool(tmp_path).session.one("work")


_Thread = threading.Thread


class _Slow(_Thread):
    """A thread whose start takes so long that another thread wants to start it, too."""

    meanwhile: Any = None

    def start(self) -> None:
        other = _Thread(target=type(self).meanwhile)
        other.start()
        other.join()
        super().start()


class _Ended(_Thread):
    """A thread that ends, because its session is over, just before it is asked about it."""

    at_end: Any = None

    def is_alive(self) -> bool:
        type(self).at_end()
        return False


class _Reader(SampleReader):
    """Makes no marks, which the next session would find."""

    def take(self) -> list[Any]:
        super().take()
        return []


def _sampler() -> sampler_module.Sampler:
    return sampler_module.Sampler(Config(sample_interval=60.0), {}, "CIRRON_RUN", _Reader)


def test_two_threads_start_one_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = _sampler()
    started: list[bool] = []
    monkeypatch.setattr(_Slow, "meanwhile", lambda: started.append(
        sampler.ensure_running(is_torch_hooked=False)
    ))  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", _Slow)
        assert sampler.ensure_running(is_torch_hooked=False)
    assert started == [False]
    until(lambda: sampler.samples == 1)
    sampler.stop()
    assert sampler.restarts == 0


def test_a_thread_that_ended_with_its_session_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler = _sampler()
    monkeypatch.setattr(_Ended, "at_end", sampler.abandon)
    sampler._thread = _Ended()
    assert not sampler.ensure_running(is_torch_hooked=False)
    assert sampler.restarts == 0


def test_the_end_does_not_wait_for_a_reading_that_blocks(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "STOP_S", 0.05)
    faults.gate.clear()
    faults.profile(tmp_path)
    with ci.scope("work"):
        until(lambda: faults.calls == 1)
    assert ci.flush()
    assert ci.shutdown()
    faults.gate.set()
    until(lambda: "cirron-otel-sampler" not in [each.name for each in threading.enumerate()])
    spool = read_spool(tmp_path)
    assert spool.session.one("work")
    assert [mark for mark in spool.marks if mark["name"] == "memory"] == []
    assert spool.outside == spool.lost == []


def test_sample_reader_that_fails_to_open_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncaught: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)

    def fail() -> SampleReader:
        raise OSError("no such system")

    monkeypatch.setattr(sampler_module.Sampler.__init__, "__defaults__", (fail,))
    ci.profile(
        output_dir=tmp_path, exporters="none", frameworks=[], sample_interval=0.01,
        flush_interval=0.01, handle_signals=False,
    )  # fmt: skip
    until(lambda: ci.health()["sampling"]["interval"] is None)
    errors = ci.health()["swallowed_errors"]
    ci.shutdown()
    assert errors["sampler"] >= 3
    assert uncaught == []


def test_a_fork_during_a_sample(tmp_path: Path, faults: Faults) -> None:
    """The child has no thread of the sampler, and its own session has its own samples."""
    faults.gate.clear()
    faults.profile(tmp_path)
    until(lambda: faults.calls == 1)
    child = os.fork()
    faults.gate.set()
    if not child:
        code = 1
        try:
            names = [each.name for each in threading.enumerate()]
            with ci.scope("child"):
                until(lambda: ci.health()["sampling"]["samples"] > 2)
            ci.shutdown()
            code = int("cirron-otel-sampler" in names)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    ci.shutdown()
    spool = read_spool(tmp_path)
    assert spool.lost == []
    (child_session,) = (each for each in spool.sessions if each.record["pid"] == child)
    assert "memory" in [mark["name"] for mark in child_session.one("child").marks]
