"""The second process: started again whatever happens, and never in its successor's way."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.receiver.journal.files import Position, intake_directory
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.collector.service.cpu_yield import Yielding
from cirron_otel.collector.service.logs import Logging
from cirron_otel.collector.service.metrics import Registry
from cirron_otel.collector.service.options import CollectorOptions
from cirron_otel.collector.service.readiness import Readiness, Untranslated
from cirron_otel.collector.service.second_process import Translator
from cirron_otel.collector.service.service import CollectorService
from cirron_otel.collector.service.worker import Worker
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.state import lock_named, make_state
from tests.collector.receiver.journalled import head, put
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.away import until
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.serving import (
    PROGRAM,
    Serving,
    serving,
    spans_of,
)

from .configs import options
from .test_running import post, request

PROTOBUF = "application/x-protobuf"
ROOT = Path(__file__).parents[3]


def take(here: Serving, name: str = "one") -> None:
    assert post(f"{here.http}/v1/traces", request(name), PROTOBUF)[0] == 200


def is_logged(here: Serving, text: str) -> bool:
    return text in here.log.read_text()


def test_worker_reads_nothing_until_it_knows_the_journal_position(tmp_path: Path) -> None:
    """What stands behind that is being written, and may be taken back."""
    wanted: CollectorOptions = options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})
    directory = intake_directory(target_spool(wanted.spool.directory).state)
    make_state(directory)
    [[_, *_, end]] = put(directory, [[request("one"), request("two")]])
    with Logging(wanted.logs, []) as logs:
        worker = Worker(wanted, logs)
        assert not worker._work()
        assert spans_of(tmp_path / "data") == []
        worker.tell({"until": [1, end]})
        worker._listen(0.0)
        assert worker._work()
    assert [each["name"] for each in spans_of(tmp_path / "data")] == ["one", "two"]


def test_worker_does_not_yield_if_urgent_or_finishing(tmp_path: Path) -> None:
    wanted: CollectorOptions = options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})
    with Logging(wanted.logs, []) as logs:
        worker = Worker(wanted, logs)
        assert not worker._is_hurried()
        for is_urgent in (True, False):
            worker.tell({"until": [1, 20], "urgent": is_urgent})
            assert worker._is_hurried() is is_urgent
            assert worker._is_hurried() is is_urgent  # until it is told otherwise
        worker.tell({"until": [1, 20]})
        assert not worker._is_hurried()
        worker.tell({"finish": 5.0})
        assert worker._is_hurried()


def test_worker_rests_after_work_but_not_when_idle(tmp_path: Path) -> None:
    wanted: CollectorOptions = options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})
    directory = intake_directory(target_spool(wanted.spool.directory).state)
    make_state(directory)
    [[_, *_, end]] = put(directory, [[request("one"), request("two")]])
    asked: list[bool] = []

    class Resting(Yielding):
        def rest(self, is_urgent: Callable[[], bool]) -> float:
            asked.append(is_urgent())
            worker.tell({"finish": 5.0})
            return 0.0

    with Logging(wanted.logs, []) as logs:
        worker = Worker(wanted, logs)
        worker._yielding = Resting()
        worker.tell({"until": [1, end], "urgent": False})
        otherwise = threading.Timer(120, worker.tell, ({"finish": 5.0},))
        otherwise.start()
        assert worker.run()
        otherwise.cancel()
    assert asked == [False]
    assert [each["name"] for each in spans_of(tmp_path / "data")] == ["one", "two"]


def test_backlog_of_an_earlier_collector_is_translated_urgently(
    tmp_path: Path,
) -> None:
    """Without a single request: nothing else would ever say it."""
    wanted: CollectorOptions = options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})
    directory = intake_directory(target_spool(wanted.spool.directory).state)
    make_state(directory)
    put(directory, [[request("one"), request("two")]])
    said: list[dict[str, Any]] = []

    class Heard(Translator):
        def _say(self, message: dict[str, Any]) -> None:
            if self._process is not None:
                said.append(message)
            super()._say(message)

    async def test() -> None:
        journal = IntakeJournal(directory)
        waiting = Untranslated()
        waiting.begin(journal.end)
        translator = Heard(wanted, Registry(), waiting.reach)
        translator.tell(journal.end, is_urgent=True)
        await translator.start()
        async with asyncio.timeout(60):
            while waiting.is_any:
                await asyncio.sleep(0.02)
        assert await translator.finish(30.0)
        assert said[0] == {"until": list(journal.end), "urgent": True}
        await journal.close()

    asyncio.run(test())
    assert [each["name"] for each in spans_of(tmp_path / "data")] == ["one", "two"]


def test_starting_collector_counts_the_age_of_its_backlog(tmp_path: Path) -> None:
    wanted: CollectorOptions = options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})
    directory = intake_directory(target_spool(wanted.spool.directory).state)
    make_state(directory)
    put(directory, [[request("one"), request("two")]])

    async def test() -> None:
        collector = CollectorService(wanted)
        with predecessor(tmp_path / "data"):
            starting = asyncio.create_task(collector.start())
            async with asyncio.timeout(60):
                while not collector._untranslated.age_s:
                    await asyncio.sleep(0.02)
            assert not starting.done()
        await starting
        async with asyncio.timeout(60):
            while collector._untranslated.age_s:
                await asyncio.sleep(0.02)
        assert await collector.stop()

    asyncio.run(test())
    assert [each["name"] for each in spans_of(tmp_path / "data")] == ["one", "two"]


def test_translation_is_urgent_on_long_wait_little_room_or_shutdown(tmp_path: Path) -> None:
    """It waits for long, there is little room, or the collector ends."""
    now = [0.0]
    directory = tmp_path / "data"
    limits = {"request_bytes": "1MiB", "journal_bytes": "40MiB"}
    wanted: CollectorOptions = options(
        tmp_path, {"spool": {"directory": str(directory)}, "limits": limits}
    )
    make_state(target_spool(directory).state)

    async def test() -> None:
        collector = CollectorService(wanted)
        journal = IntakeJournal(intake_directory(target_spool(directory).state))
        collector._readiness = Readiness(journal, wanted.limits.journal_bytes, lambda: True)
        collector._untranslated = Untranslated(lambda: now[0])
        collector._untranslated.keep(Position(1, 9), 1)
        now[0] = 9.9
        assert not collector._is_urgent()
        now[0] = 10.1
        assert collector._is_urgent()
        collector._untranslated.reach(Position(1, 9))
        assert not collector._is_urgent()
        collector._untranslated.begin(Position(2, 9))
        now[0] = 20.2
        assert collector._is_urgent()
        collector._untranslated.reach(Position(2, 9))
        assert not collector._is_urgent()
        await journal.append(head(), bytes(24 * 1024**2))
        assert collector._is_urgent()
        collector._readiness = Readiness(journal, 2**40, lambda: True)
        assert not collector._is_urgent()
        collector._is_ending = True
        assert collector._is_urgent()
        await journal.close()

    asyncio.run(test())


@contextlib.contextmanager
def hole() -> Iterator[str]:
    """An endpoint that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def with_exporters(folder: Path, drain_s: float, *endpoints: str, last: str = "") -> list[str]:
    """The options of a collector with OTLP exporters, and a Cirron one to `last`."""
    told = [f"{{type: otlp, protocol: http/protobuf, endpoint: '{each}'}}" for each in endpoints]
    if last:
        told.append(f"{{type: cirron, api_key: k, endpoint: '{last}'}}")
    config = folder / "collector.yaml"
    config.write_text(f"drain_s: {drain_s}\nexporters: [{', '.join(told)}]\n")
    return ["--config", str(config)]


@contextlib.contextmanager
def predecessor(folder: Path) -> Iterator[None]:
    """One that still translates the journal of a spool."""
    state = target_spool(folder).state
    folder.mkdir(exist_ok=True)
    for each in (state, intake_directory(state)):
        make_state(each)
    lock = lock_named(intake_directory(state) / "consumer.lock")
    assert lock is not None
    yield
    os.close(lock)


_PIDFD_GETFD = 438  # of all architectures


@contextlib.contextmanager
def _output_of(pid: int) -> Iterator[socket.socket]:
    """The standard output of a process: uvloop hands a child sockets, which have no path."""
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, 1, 0)
    finally:
        os.close(process)
    assert copy >= 0, os.strerror(ctypes.get_errno())
    with socket.socket(fileno=copy) as output:
        yield output


class TestStartedAgain:
    def test_after_a_time_without_descriptors(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data") as here:
            pid, translator = here.process.pid, here.translator()
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            assert translator is not None
            os.kill(translator, signal.SIGKILL)
            until(lambda: is_logged(here, "the translation cannot be started: too few descriptors"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            take(here)
            until(lambda: spans_of(here.folder))
            assert here.end() == 0

    def test_invalid_messages_of_the_translator_are_skipped(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data") as here:
            translator = here.translator()
            assert translator is not None
            with _output_of(translator) as said:
                for line in (b"a library's own words", b"x" * (3 << 20), b"[1]", b"[" * 100_000):
                    said.sendall(line + b"\n")
            until(lambda: is_logged(here, "an invalid message"))
            take(here)
            until(lambda: spans_of(here.folder))
            assert here.translator() == translator
            assert here.end() == 0

    def test_requests_are_translated_at_exit_if_the_translator_just_died(
        self, tmp_path: Path
    ) -> None:
        with serving(tmp_path / "data") as here:
            translator = here.translator()
            assert translator is not None
            os.kill(translator, signal.SIGSTOP)
            take(here)
            os.kill(translator, signal.SIGKILL)
            until(lambda: is_logged(here, "the translation has died"))
            assert here.end() == 0
        assert len(spans_of(here.folder)) == 1


def test_modules_are_not_imported_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "pickle.py").write_text("open('HIJACKED', 'w')\nraise SystemExit(3)\n")
    command = [sys.executable, "-P", "-c", PROGRAM, "collector", "--spool", "data", "--json",
               "--grpc", "localhost:0", "--http", "localhost:0"]  # fmt: skip
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
        finally:
            process.terminate()
    assert process.returncode == 0
    assert not (tmp_path / "HIJACKED").exists()


class TestSuccession:
    @pytest.mark.parametrize("is_ending", [False, True])
    def test_an_orphan_makes_way(self, is_ending: bool, tmp_path: Path) -> None:
        """Though its exporter has work for ever, and it was given minutes to end."""
        with hole() as endpoint:
            options = with_exporters(tmp_path, 600, endpoint)
            with serving(tmp_path / "data", *options) as here:
                take(here)
                until(lambda: spans_of(here.folder))
                if is_ending:
                    here.process.terminate()
                    until(lambda: is_logged(here, "shutting down"))
                here.kill()
                with serving(tmp_path / "data", *options) as successor:
                    take(successor, "two")
                    until(lambda: len(spans_of(here.folder)) == 2)

    def test_address_in_use_is_reported_while_a_predecessor_still_runs(
        self, tmp_path: Path
    ) -> None:
        with predecessor(tmp_path / "data"), socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(AssertionError, match="cannot listen"):
                Serving(tmp_path / "data", "--http", address)

    def test_it_can_be_ended_while_it_waits_for_a_predecessor(self, tmp_path: Path) -> None:
        lock = intake_directory(target_spool(tmp_path / "data").state) / "lock"
        command = [sys.executable, "-c", PROGRAM, "collector", "--spool", str(tmp_path / "data"),
                   "--grpc", "localhost:0", "--http", "localhost:0"]  # fmt: skip
        with predecessor(tmp_path / "data"), subprocess.Popen(command) as process:
            until(lock.exists)
            process.terminate()
            assert process.wait(180) == 0


def test_final_attempts_for_all_targets_run_concurrently(tmp_path: Path) -> None:
    """Who takes connections and says nothing takes no time from who came back just now."""
    (address,) = free_endpoints(1)
    platform = CirronServer()
    with hole() as one, hole() as other:
        options = with_exporters(tmp_path, 6, one, other, last=f"http://{address}")
        with serving(tmp_path / "data", *options) as here:
            take(here)
            until(lambda: spans_of(here.folder))
            with platform.running(int(address.rpartition(":")[2])):
                assert here.end() == 7  # the others took nothing
    assert len(platform.accepted) == 1
