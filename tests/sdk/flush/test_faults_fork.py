"""Children: each a session of its own, linked to the parent's, and nothing twice."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cirron_otel.core.spool.owner import owners
from cirron_otel.core.spool.paths import target_spool
from tests.kit.servers.backend import WAYS, Backend, Environment
from tests.kit.sessions.processes import (
    Agent,
    run,
    start,
    until,
)
from tests.kit.sessions.whole import Whole, recovered, whole

STEPS = 40


@pytest.mark.parametrize("how", ["os.fork", "fork", "spawn", "forkserver"])
def test_children_that_record(tmp_path: Path, how: str) -> None:
    done = run("forking", tmp_path, how)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "state").iterdir()) == []
    found = whole(tmp_path)
    assert sorted(s["pid"] for s in found.sessions) == sorted([said["pid"], *said["children"]])
    runs = {each["otel"]["resource"]["attributes"]["cirron.run.id"] for each in found.batches}
    assert len(runs) == 1
    parent = found.of(said["pid"])
    assert parent.numbers() == list(range(3 * STEPS))
    (session,) = parent.sessions
    for pid in said["children"]:
        child = found.of(pid)
        assert {span["pid"] for span in child.spans.values()} == {pid}
        assert child.numbers() == list(range(1000, 1000 + STEPS))
        check_linked(child, session["id"])
    assert said["idle"] not in {span["pid"] for span in found.spans.values()}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("how", ["os.fork", "fork"])
def test_parent_and_forked_children_send_each_span_once(
    tmp_path: Path, how: str, way: Environment
) -> None:
    """Each span once, though the children inherit the parent's connections."""
    with Backend.running() as backend:
        done = run("forking", tmp_path, how, env=way(backend))
    assert done.returncode == 0, done.stderr
    assert sorted(backend.span_ids) == sorted(whole(tmp_path).spans)


def test_no_module_is_imported_after_profiling_starts(tmp_path: Path) -> None:
    """A child forked from the midst of an import would have half of the module for good."""
    for way in WAYS.values():
        with Backend.running() as backend, Agent(env=way(backend)) as agent:
            agent.do("profile", output_dir=str(tmp_path), flush_interval=0.01)
            before = agent.do("modules")
            agent.do("steps", n=1)
            until(lambda: backend.span_ids)
            assert agent.do("shutdown")
            assert set(agent.do("modules")) - set(before) == set()


def check_linked(child: Whole, parent_id: str) -> None:
    """The session of a child names the session that it comes from."""
    (session,) = child.sessions
    assert session["parent_id"] is None
    assert session["id"] != parent_id
    (link,) = session["otel"]["links"]
    assert link["span_id"] == parent_id[:16]
    assert link["trace_id"][16:] == parent_id[16:]
    roots = [s for s in child.spans.values() if s["parent_id"] == session["id"]]
    assert {span["name"] for span in roots} == {"step"}


def test_a_child_does_not_keep_a_dead_parent_alive(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    process = start("outlived", tmp_path, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        parent, child = map(int, process.stdout.readline().split())
        process.wait(60)
        assert parent == process.pid
        assert [done.incomplete for done in recovered(tmp_path)] == [2]
        process.stdin.write("record\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True\n"
        assert recovered(tmp_path) == []
        assert len(owners(target_spool(tmp_path))) == 1
    finally:
        process.stdin.close()
        process.stdout.read()
    until(lambda: not list((tmp_path / "state").iterdir()))
    found = whole(tmp_path)
    assert found.of(parent).names() == {"epoch": 1}
    assert found.of(child).names() == {"of the child": 1}
    (link,) = found.of(child).sessions[0]["otel"]["links"]
    assert link["span_id"] == found.of(parent).sessions[0]["id"][:16]
