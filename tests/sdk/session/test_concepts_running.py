"""Cirron's concepts page, from "Transport selection" on.

docs/conformance.md says which sentence each test holds.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel._version import SDK_VERSION
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.sessions.opened import opened, recorded
from tests.kit.sessions.spool_trees import OVERHEAD, read_spool


def train() -> None:
    for _ in ci.epochs(range(2)):
        for _ in ci.batches(range(3)):
            with ci.scope("forward"):
                ci.mark("loss", 0.5)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment, in which nothing is configured."""
    for name in ("CIRRON_RUN_ID", "CIRRON_API_KEY", "CIRRON_API_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


class TestTransports:
    @pytest.mark.usefixtures("environ")
    def test_no_credentials_file_only(self, tmp_path: Path) -> None:
        with opened(tmp_path) as profiler:
            train()
            assert profiler.health()["transport"] == "spool"
            assert profiler.health()["targets"] == []
        assert len(read_spool(tmp_path).session.find("forward")) == 6

    def test_api_key_posts_the_spooled_batches(
        self, environ: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with CirronServer().running() as server:
            environ.setenv("CIRRON_API_KEY", "key-of-the-workspace")
            environ.setenv("CIRRON_API_ENDPOINT", server.url)
            with opened(tmp_path):
                train()
                assert ci.flush()
                with ci.scope("behind the first flush"):
                    pass
                assert ci.shutdown()
        spool = {batch["batch_id"]: batch for batch in read_spool(tmp_path).batches}
        assert server.batches == spool
        assert len(server.accepted) == len(spool) >= 2
        for request in server.posts():
            assert request.path == "/v1/traces"
            assert request.headers["authorization"] == "Bearer key-of-the-workspace"
            assert request.headers["x-cirron-sdk-version"] == SDK_VERSION

    def test_a_run_of_the_platform_goes_to_the_event_stream(self, tmp_path: Path) -> None:
        program = f"""
import os, cirron_otel as ci
os.environ["CIRRON_RUN_ID"] = "run-1"
os.environ["CIRRON_API_KEY"] = "not used"
os.environ["CIRRON_API_ENDPOINT"] = "http://127.0.0.1:1"
ci.profile(frameworks=[], output_dir={str(tmp_path)!r})
with ci.scope("forward"):
    ci.mark("loss", 0.5)
print("the program's own line")
assert ci.shutdown()
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        events = [json.loads(line) for line in lines]
        assert [event["__cirron_event__"] for event in events] == ["trace_batch"] * len(events)
        assert [event["payload"] for event in events] == read_spool(tmp_path).batches != []

    def test_batch_is_sent_only_after_it_is_in_the_spool(
        self, environ: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        in_spool: list[bool] = []

        def look(received: Any) -> None:
            names = [path.name for path in (tmp_path / "spool").glob("*.json")]
            in_spool.append(any(received.batch["batch_id"] in name for name in names))

        with CirronServer().running() as server:
            environ.setenv("CIRRON_API_KEY", "key")
            environ.setenv("CIRRON_API_ENDPOINT", server.url)
            server.faults = [look] * 100
            with opened(tmp_path):
                for _ in range(3):
                    train()
                    ci.flush()
        assert len(in_spool) >= 3
        assert all(in_spool)

    def test_unsent_batches_stay_spooled_until_they_can_be_sent(
        self, environ: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with CirronServer().running() as server:
            environ.setenv("CIRRON_API_KEY", "key")
            environ.setenv("CIRRON_API_ENDPOINT", server.url)
            server.faults = [Fault(status=503)] * 1000
            with opened(tmp_path):
                train()
                assert not ci.shutdown(timeout=0.2)
            environ.delenv("CIRRON_API_KEY")
            with opened(tmp_path / "next"):
                pass  # the next session opens once the flush thread has sealed the first one
            environ.setenv("CIRRON_API_KEY", "key")
            left = {batch["batch_id"] for batch in read_spool(tmp_path).batches}
            assert left
            assert not server.accepted
            server.faults = []
            program = "import sys; from cirron_otel.tools.cli import main; main(sys.argv[1:])"
            flush = [sys.executable, "-c", program, "spool", "flush", str(tmp_path)]
            subprocess.run(flush, check=True, timeout=60, capture_output=True)
        assert set(server.accepted) == left

    def test_an_endpoint_that_never_answers_holds_nothing_up(
        self, environ: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        release = threading.Event()
        with CirronServer().running() as server:
            environ.setenv("CIRRON_API_KEY", "key")
            environ.setenv("CIRRON_API_ENDPOINT", server.url)
            server.faults = [Fault(hold=release, status=503)] * 100
            try:
                with opened(tmp_path, shutdown_timeout=0.2):
                    train()
                    assert ci.flush(120)
                    for _ in range(20):
                        train()
                        assert ci.flush(120)
                    ci.shutdown(timeout=0.2)
            finally:
                release.set()
        assert len(read_spool(tmp_path).session.find("forward")) == 21 * 6


_FOLLOWED = (dict, list, tuple, set, frozenset, MethodType)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def locks_below(start: list[object]) -> list[Any]:
    """Every lock that can be reached from there through our own objects and `threading`'s."""
    seen: dict[int, object] = {}
    waiting, locks = list(start), []
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, _LOCKS):
            locks.append(item)
            continue
        kind = type(item)
        is_ours = kind.__module__.startswith(("cirron_otel", "threading"))
        if is_ours or isinstance(item, _FOLLOWED):
            waiting += gc.get_referents(item)
        elif isinstance(item, FunctionType) and (item.__module__ or "").startswith("cirron_otel"):
            waiting += [cell.cell_contents for cell in item.__closure__ or ()]
    return locks


@contextmanager
def held(locks: list[Any]) -> Iterator[None]:
    """Each lock, held by another thread."""
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        mine = [lock for lock in locks if lock.acquire(timeout=0.2)]
        assert len(mine) >= 5
        taken.set()
        release.wait(60)
        for lock in mine:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    try:
        yield
    finally:
        release.set()
        thread.join()


class TestHotPath:
    def test_no_lock_of_ours_is_taken_by_scopes_marks_and_loops(self, tmp_path: Path) -> None:
        def record() -> None:
            for step in ci.batches(range(500)):
                with ci.scope("forward", step, layer="conv1"):
                    ci.mark("loss", 0.5)

        with opened(tmp_path, flush_interval=3600) as profiler:
            modules = [vars(m) for name, m in list(sys.modules.items())
                       if isinstance(m, ModuleType) and name.startswith("cirron_otel")]  # fmt: skip
            locks = locks_below([profiler, *modules])
            with held(locks):
                worker = threading.Thread(target=record, daemon=True)
                worker.start()
                worker.join(60)
                assert not worker.is_alive()
        assert len(read_spool(tmp_path).session.find("forward")) == 500

    def test_the_calling_thread_does_no_i_o(self, tmp_path: Path) -> None:
        program = f"""
import sys, threading
import cirron_otel as ci
ci.profile(frameworks=[], output_dir={str(tmp_path)!r}, flush_interval=0.01)
seen, watched = [], threading.get_ident()
ci.mark("warm", 1)
with ci.scope("warm"):
    pass
def hook(event, arguments):
    if watched == threading.get_ident():
        seen.append(event)
sys.addaudithook(hook)
for _ in ci.epochs(range(2)):
    for step in ci.batches(range(1000)):
        with ci.scope("forward", step, layer="conv1"):
            ci.mark("loss", 0.5)
watched = 0
ci.shutdown()
assert not seen, set(seen)
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
        spool = read_spool(tmp_path)
        assert len(spool.session.find("forward")) == 2000


class TestOverhead:
    def test_every_scope_has_an_sdk_overhead_mark(self, tmp_path: Path) -> None:
        spool = recorded(tmp_path, train)
        nodes = [n for name in ("cirron.session", "epoch", "step", "forward")
                 for n in spool.session.find(name)]  # fmt: skip
        assert len(nodes) == 1 + 2 + 6 + 6
        for node in nodes:
            own = node.mark(OVERHEAD)
            assert (own["value_type"], own["kind"]) == ("int", "summary")
            assert own["id"] in node.record["mark_ids"]
        for epoch in spool.session.children:
            inside = sum(step.mark(OVERHEAD)["value"] for step in epoch.children)
            assert epoch.mark(OVERHEAD)["value"] > inside > 0

    def test_health_sums_it_up(self, tmp_path: Path) -> None:
        with opened(tmp_path) as profiler:
            train()
        session = read_spool(tmp_path).session
        tops = [session, *session.children]
        assert profiler.health()["overhead_ns"] == sum(top.mark(OVERHEAD)["value"] for top in tops)

    @pytest.mark.parametrize(("every", "expected"), [(False, 0), (5, 3), (1, 15)])
    def test_a_setting_thins_it_out(self, every: int, expected: int, tmp_path: Path) -> None:
        spool = recorded(tmp_path, train, overhead_marks=every)
        assert len([mark for mark in spool.marks if mark["name"] == OVERHEAD]) == expected


class TestErrors:
    def test_swallowed_errors_are_counted_and_logged_once_at_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, "cirron_otel"), opened(tmp_path) as profiler:
            for _ in range(3):
                ci.mark("bad", [1, 2])
            health = profiler.health()
        assert health["swallowed_errors"] == {"mark": 3}
        assert health["swallowed_error_count"] == 3
        ours = [record for record in caplog.records if record.name.startswith("cirron_otel")]
        assert [record.levelno for record in ours] == [logging.WARNING]

    def test_each_invalid_option_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            caplog.at_level(logging.DEBUG, "cirron_otel"),
            opened(tmp_path, flush_interval=-1, join="x", provider="none") as profiler,
        ):
            health = profiler.health()
        assert health["enabled"]
        assert health["swallowed_errors"] == {"configuration": 2, "provider": 1}
        told = [record.getMessage() for record in caplog.records]
        for what in ("flush_interval= of profile()", "join= of profile()", "provider= is a str"):
            assert [message.count(what) for message in told if what in message] == [1]

    def test_health_has_the_same_keys_without_a_session(self, tmp_path: Path) -> None:
        def keys(health: dict[str, Any]) -> dict[str, Any]:
            nested = ("queue", "drops", "recorded", "flush")
            return {key: list(health[key]) if key in nested else None for key in health}

        with opened(tmp_path) as profiler:
            running = profiler.health()
        off = ci.profile(enabled=False)
        assert keys(off.health()) == keys(running)
        off.shutdown()

    def test_user_exceptions_propagate_unchanged(self, tmp_path: Path) -> None:
        raised = ValueError("the user's")

        def act() -> None:
            for _ in ci.batches(range(1)):
                with ci.scope("forward"):
                    raise raised

        with opened(tmp_path), pytest.raises(ValueError, match="the user's") as caught:
            act()
        assert caught.value is raised
        forward = read_spool(tmp_path).session.one("forward").record
        assert forward["otel"]["status"]["code"] == 2

    def test_a_spool_over_its_cap_drops_the_oldest_batches_and_counts_them(
        self, tmp_path: Path
    ) -> None:
        with opened(tmp_path, enabled=True) as profiler:
            assert profiler.config.spool_max_bytes == 1_000_000_000
        with_cap = ci.Cirron(spool_max_bytes=20_000, output_dir=str(tmp_path / "small"))
        profiler = with_cap.profile(frameworks=[], handle_signals=False)
        try:
            for number in range(8):
                with ci.scope("filling", number, text="x" * 4000):
                    pass
                assert profiler.flush()
        finally:
            profiler.shutdown()
        spool = read_spool(tmp_path / "small")
        kept = [span["index"] for span in spool.spans if span["name"] == "filling"]
        assert kept == list(range(8))[-len(kept) :]
        assert 0 < len(kept) < 8
        dropped = profiler.health()["spool_drop_count"]
        assert dropped >= 8 - len(kept) > 0
        files = (tmp_path / "small" / "spool").iterdir()
        assert sum(path.stat().st_size for path in files) <= 20_000


def kill_flush_thread(profiler: ci.Profiler) -> None:
    """Raise SystemExit in it, as an interpreter may, and wait until it has been replaced."""
    before = profiler.health()["flush_restart_count"]
    (thread,) = (t for t in threading.enumerate() if t.name == "cirron-otel-flush")
    assert thread.ident is not None
    ident = ctypes.c_ulong(thread.ident)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit)) == 1
    while profiler.health()["flush_restart_count"] == before:
        profiler.flush(1)


class TestFlushThread:
    def test_flush_thread_is_restarted_after_dying_once(self, tmp_path: Path) -> None:
        with opened(tmp_path, flush_interval=0.01) as profiler:
            train()
            kill_flush_thread(profiler)
            train()
            assert profiler.flush()
            assert profiler.health()["flush"]["is_alive"]
            assert profiler.health()["flush_mode"] == "normal"
        assert len(read_spool(tmp_path).session.find("forward")) == 12

    def test_three_deaths_in_60_seconds_leave_the_spool_alone(
        self, environ: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with CirronServer().running() as server:
            environ.setenv("CIRRON_API_KEY", "key")
            environ.setenv("CIRRON_API_ENDPOINT", server.url)
            with opened(tmp_path, flush_interval=0.01) as profiler:
                for deaths in range(1, 4):
                    kill_flush_thread(profiler)
                    expected = "normal" if deaths < 3 else "spool_only"
                    assert profiler.health()["flush_mode"] == expected
                with ci.scope("behind"):
                    pass
            accepted = list(server.accepted)
            with opened(tmp_path / "next") as profiler:
                assert profiler.health()["flush_mode"] == "normal"
        batches = read_spool(tmp_path).batches
        behind = [b["batch_id"] for b in batches if "behind" in {s["name"] for s in b["spans"]}]
        assert len(behind) == 1
        assert behind[0] not in accepted
