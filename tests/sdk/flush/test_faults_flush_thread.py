"""The flush thread dies: it comes back, and nothing is lost."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from cirron_otel.sdk.flush import pipeline
from cirron_otel.sdk.flush.pipeline import Pipeline
from cirron_otel.sdk.session.errors import errors
from tests.kit.servers.backend import Backend
from tests.kit.sessions.processes import Agent, until
from tests.kit.sessions.whole import batch_files, whole
from tests.sdk.conftest import OpenSession


def test_killed_once_it_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    with Agent() as agent:
        agent.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
        agent.do("enter", name="epoch")
        agent.do("steps", n=2_000)
        assert agent.do("kill_flush") == 1
        agent.do("steps", n=2_000)
        agent.do("leave")
        health = agent.do("health")
        assert health["flush_mode"] == "normal"
        assert health["swallowed_errors"]["flush thread"] == 1
        assert agent.do("shutdown")
        assert not any(agent.do("health")["drops"].values())
        assert agent.end() == 0
    found = whole(tmp_path)
    assert found.numbers() == list(range(4_000))
    assert found.names()["epoch"] == 1


def test_killed_three_times_in_a_minute_it_writes_the_spool_alone(tmp_path: Path) -> None:
    with Backend.running() as backend, Agent(env=backend.otlp()) as agent:
        agent.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
        agent.do("steps", n=100)
        until(lambda: backend.span_ids)
        agent.do("kill_flush")
        assert agent.do("kill_flush") == 2
        assert agent.do("health")["flush_mode"] == "normal"
        assert agent.do("kill_flush") == 3
        health = agent.do("health")
        assert health["flush_mode"] == "spool_only"
        assert "failed three times" in health["last_errors"]["degraded"]
        assert agent.do("flush")
        until(lambda: not agent.do("health")["targets"][0]["waiting"])
        sealed, sent = len(batch_files(tmp_path)), len(backend.span_ids)
        agent.do("steps", n=100)
        assert agent.do("flush")
        assert len(batch_files(tmp_path)) > sealed
        assert agent.do("shutdown", timeout=5) is False
        assert agent.end() == 0
        assert len(backend.span_ids) == sent
    found = whole(tmp_path)
    assert found.numbers() == list(range(200))
    with Agent(env=backend.otlp()) as other, backend.again():
        other.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
        until(lambda: found.spans.keys() <= set(backend.span_ids))


def test_killed_at_any_moment_of_its_work(tmp_path: Path) -> None:
    """The kills fall where they fall: into taking, encoding and writing, and into the waits."""
    pauses = random.Random(7)
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(Agent()) for _ in range(5)]
        for number, agent in enumerate(agents):
            directory = str(tmp_path / str(number))
            agent.do("profile", output_dir=directory, flush_interval=0.0001)
            agent.do("enter", name="epoch")
        for _ in range(3):
            for agent in agents:
                agent.ask("kill_flush_at_work", pause=pauses.uniform(0.0, 0.1))
            made = [agent.answer() for agent in agents]
        for agent in agents:
            agent.do("leave")
            assert agent.do("shutdown", timeout=60)
            health = agent.do("health")
            assert health["flush_restart_count"] >= 3
            assert not any(health["drops"].values()), health["drops"]
            assert agent.end() == 0
    for number, count in enumerate(made):
        assert whole(tmp_path / str(number)).numbers() == list(range(count))


def test_a_thread_that_is_gone_is_replaced_by_one(tmp_path: Path) -> None:
    """Nobody asks for a flush: the threads that record notice, and do not wait."""
    with Agent() as agent:
        agent.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
        agent.do("end_flush")
        assert agent.do("steps_in_threads", n=200, count=8) == 1
        until(lambda: batch_files(tmp_path))
        assert agent.do("health")["flush"]["is_alive"]
        assert agent.do("shutdown")
        assert not any(agent.do("health")["drops"].values())
        assert agent.end() == 0
    assert whole(tmp_path).names()["step"] == 1_600


def test_a_failure_in_its_bookkeeping_is_counted_and_followed_by_a_rest(
    monkeypatch: pytest.MonkeyPatch, session: OpenSession
) -> None:
    """Else the thread would try again at once, for ever, and hold the interpreter's lock."""
    rests: list[float] = []
    monkeypatch.setattr(pipeline.time, "sleep", rests.append)

    class Broken(Pipeline):
        tries = 0

        def _tick(self) -> None:
            self.tries += 1
            self._is_done = self.tries == 3
            raise MemoryError

        def _died(self, why: str) -> None:
            raise MemoryError(why)

    broken = Broken(session.collector, None, 0.0)  # type: ignore[arg-type]
    counted = errors.counts["flush thread"]
    broken._run()
    assert rests == [1.0, 1.0]
    assert errors.counts["flush thread"] == counted + 3
