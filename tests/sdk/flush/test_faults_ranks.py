"""Eight ranks record into one directory; one of them is killed."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cirron_otel.core.spool.owner import dead_owners, owners
from cirron_otel.core.spool.paths import target_spool
from tests.kit.sessions.processes import Agent, until
from tests.kit.sessions.whole import recovered, whole

RANKS = 8


def rank(number: int) -> Agent:
    return Agent(env={"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(RANKS)})


def state_of(directory: Path) -> list[str]:
    return [path.name for path in (directory / "state").iterdir()]


def test_one_of_eight_is_killed_and_the_others_are_left_alone(tmp_path: Path) -> None:
    paths = target_spool(tmp_path)
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(rank(number)) for number in range(RANKS)]
        for agent in ranks:
            agent.ask("profile", output_dir=str(tmp_path), flush_interval=0.02)
        assert all(agent.answer() for agent in ranks)
        for agent in ranks:
            agent.do("enter", name="epoch")
            agent.do("steps", n=20)
            assert agent.do("flush")
        pids = [agent.do("pid") for agent in ranks]
        victim = ranks.pop(3)
        victim.kill()
        assert len(owners(paths)) == RANKS
        (dead,) = dead_owners(paths)
        living = {name for name in state_of(tmp_path) if dead not in name and ".tmp" not in name}
        with Agent() as ninth:
            ninth.do("profile", output_dir=str(tmp_path), flush_interval=0.02)
            until(lambda: dead not in owners(paths))
            ninth.do("steps", n=1)
            ninth_pid = ninth.do("pid")
            assert ninth.do("health")["swallowed_error_count"] == 0
            assert ninth.do("shutdown")
            assert ninth.end() == 0
        assert dead_owners(paths) == []
        assert {name for name in state_of(tmp_path) if ".tmp" not in name} == living
        for agent in ranks:
            agent.do("steps", n=20)
            agent.do("leave")
            assert agent.do("shutdown")
            assert agent.do("health")["swallowed_error_count"] == 0
            assert agent.end() == 0
    assert recovered(tmp_path) == []
    assert state_of(tmp_path) == []
    found = whole(tmp_path)
    assert sorted(span["pid"] for span in found.sessions) == sorted([*pids, ninth_pid])
    for number, pid in enumerate(pids):
        own = found.of(pid)
        assert {span["rank"] for span in own.spans.values()} == {number}
        assert own.numbers() == list(range(20 if number == 3 else 40))
        (epoch,) = [span for span in own.spans.values() if span["name"] == "epoch"]
        assert epoch["attrs"].get("incomplete", False) == (number == 3)
        assert epoch["parent_id"] == own.sessions[0]["id"]
