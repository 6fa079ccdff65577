"""The backend fails in every way: training goes on, the spool is whole, and all arrives in the end.

The deliveries' own tests are in tests/core/delivery; here a whole process is behind them.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.backend import (
    GARBAGE,
    HOLD,
    LOSE,
    SLOW,
    TAKE,
    WAYS,
    Backend,
    Environment,
)
from tests.kit.sessions.processes import Agent, environment, until
from tests.kit.sessions.whole import recovered, whole

way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def record(agent: Agent, directory: Path, flushes: int = 3) -> None:
    agent.do("profile", output_dir=str(directory), flush_interval=0.02)
    more(agent, flushes)


def more(agent: Agent, flushes: int = 3) -> None:
    for _ in range(flushes):
        agent.do("steps", n=5)
        assert agent.do("flush")


def target(agent: Agent) -> dict[str, Any]:
    """What health() says of the one target."""
    (found,) = agent.do("health")["targets"]
    return dict(found)


def flush_spool(directory: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`cirron-otel spool flush`, as a process of its own."""
    command = [str(Path(sys.executable).parent / "cirron-otel"), "spool", "flush", str(directory)]
    return subprocess.run(
        command, env=environment(**env), capture_output=True, text=True, timeout=180, check=False
    )


@way
def test_next_process_sends_the_backlog_of_an_outage(tmp_path: Path, way: Environment) -> None:
    """The next process sends what is left, each span once."""
    backend = Backend.down()
    with Agent(env=way(backend)) as agent:
        record(agent, tmp_path)
        until(lambda: target(agent)["last_error"])
        assert target(agent)["waiting"] >= 3
        assert agent.do("shutdown", timeout=0.5) is False
        assert agent.end() == 0
    found = whole(tmp_path)
    assert found.numbers() == list(range(15))
    with backend.again(), Agent(env=way(backend)) as other:
        other.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
        until(lambda: found.spans.keys() <= set(backend.span_ids))
        assert other.do("shutdown")
        assert other.end() == 0
    assert set(Counter(backend.span_ids).values()) == {1}
    assert sorted(backend.span_ids) == sorted(whole(tmp_path).spans)


@way
def test_spool_flush_sends_the_backlog_of_a_killed_process(
    tmp_path: Path, way: Environment
) -> None:
    """The process was killed, too: what it left open is closed and sent."""
    backend = Backend.down()
    with Agent(env=way(backend)) as agent:
        record(agent, tmp_path)
        agent.do("enter", name="epoch")
        assert agent.do("flush")
        agent.kill()
    with backend.again():
        done = flush_spool(tmp_path, way(backend))
        assert done.returncode == 0, done.stderr
        assert flush_spool(tmp_path, way(backend)).returncode == 0
    found = whole(tmp_path)
    assert found.names()["epoch"] == 1
    assert sorted(backend.span_ids) == sorted(found.spans)


@way
@pytest.mark.parametrize("mood", [429, 503, 400, 401, GARBAGE, SLOW])
def test_a_backend_in_a_bad_mood(tmp_path: Path, way: Environment, mood: int | str) -> None:
    with Backend.running() as backend, Agent(env=way(backend)) as agent:
        backend.set(mood)
        record(agent, tmp_path)
        until(lambda: backend.requests)
        if mood != SLOW:
            until(lambda: target(agent)["last_error"])
        said = target(agent)
        assert said["errors"] == 0, said["last_error"]
        more(agent)
        if mood == 400:  # for good: what is refused is counted, and not sent again
            until(lambda: target(agent)["refused"])
            assert "400" in target(agent)["last_error"]
        elif isinstance(mood, int):
            assert str(mood) in said["last_error"]
            assert said["is_misconfigured"] == (mood == 401)
            assert said["waiting"] > 0
        backend.set(TAKE)
        is_done = agent.do("shutdown", timeout=120)
        assert is_done
        refused = target(agent)["refused"]
        assert agent.do("health")["flush_mode"] == "stopped"
        assert agent.end() == 0
    found = whole(tmp_path)
    assert found.numbers() == list(range(30))
    sent = Counter(backend.span_ids)
    assert sent.keys() <= found.spans.keys()
    assert bool(refused) == (mood == 400)
    if mood != 400:
        assert sent.keys() == found.spans.keys()


@way
def test_a_lost_acknowledgement_costs_one_request_twice(tmp_path: Path, way: Environment) -> None:
    with Backend.running() as backend, Agent(env=way(backend)) as agent:
        backend.set(LOSE)
        record(agent, tmp_path, flushes=1)
        until(lambda: backend.mood == TAKE)
        more(agent)
        assert agent.do("shutdown")
        assert agent.end() == 0
    check_at_most_once_more(backend, tmp_path)


@way
def test_process_killed_awaiting_acknowledgement_resends_at_most_once(
    tmp_path: Path, way: Environment
) -> None:
    """The backend has a request, and the process dies before it hears of it."""
    with Backend.running() as backend, Agent(env=way(backend)) as agent:
        record(agent, tmp_path)
        until(lambda: not target(agent)["waiting"])
        before = len(backend.taken)
        backend.set(HOLD)
        more(agent)
        until(lambda: any(backend.taken[before:]))  # not only what announces an open scope
        agent.kill()
        backend.set(TAKE)
        recovered(tmp_path)
        with Agent(env=way(backend)) as other:
            other.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
            expected = set(whole_spans(tmp_path))
            until(lambda: expected <= set(backend.span_ids))
            assert other.do("shutdown")
            assert other.end() == 0
    check_at_most_once_more(backend, tmp_path)


def whole_spans(directory: Path) -> list[str]:
    return [span_id for span_id, span in whole(directory).spans.items()]


def check_at_most_once_more(backend: Backend, directory: Path) -> None:
    """All spans came; those that came twice had been in one request, with the same ids."""
    found = whole(directory)
    sent = Counter(backend.span_ids)
    assert sent.keys() == found.spans.keys()
    again = {span_id for span_id, times in sent.items() if times > 1}
    assert max(sent.values()) == 2
    assert any(again == set(request) for request in backend.taken)


@way
def test_a_dead_backend_costs_no_memory_but_names(tmp_path: Path, way: Environment) -> None:
    with Agent(env=way(Backend.down())) as agent:
        agent.do(
            "profile", output_dir=str(tmp_path), flush_interval=0.001, trace_buffer_max_spans=0
        )  # fmt: skip
        agent.do("steps", n=100, size=10_000)
        before = agent.do("peak_bytes")
        for _ in range(30):
            agent.do("steps", n=100, size=10_000)
            assert agent.do("flush")
        spool = agent.do("health")["spool_bytes"]
        assert spool > 28_000_000
        assert agent.do("peak_bytes") - before < spool / 2
        assert agent.do("shutdown", timeout=0) is False
        assert agent.end() == 0
    assert whole(tmp_path).numbers() == list(range(3_100))
