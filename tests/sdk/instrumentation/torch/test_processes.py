"""Training in forked and spawned children and in threads: each has a correct tree of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import Node, read_spool

from . import trees
from .programs import PROGRAMS

CASES = ["forked", "multiprocessed", "grandchild", "spawned", "threads", "side_by_side"]
STEP = """
    step[0-3]
      data_load
      forward{module=Net}
      loss
      backward
      optimizer_step
"""


def epochs(last: int) -> str:
    """The tree of so many whole epochs and one."""
    return f"cirron.session\n  epoch[0-{last}]{STEP}"


class Ran:
    """What all cases left."""

    def __init__(self, scripts: ForkedScripts, directory: Path) -> None:
        self.directory = directory
        self.results = scripts.result(PROGRAMS / "training_processes.py", directory, *CASES)

    def sessions(self, case: str) -> dict[int, Node]:
        """By their process."""
        spool = read_spool(self.directory / case)
        assert spool.lost == []
        assert spool.roots == spool.sessions
        assert {"incomplete"} & {key for span in spool.spans for key in span["attrs"]} == set()
        return {each.record["pid"]: each for each in spool.sessions}


@pytest.fixture(scope="module")
def ran(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(scripts, tmp_path_factory.mktemp("processes"))


def check(session: Node, expected: str) -> None:
    """See that a session is the expected tree, in order of start.

    Threads that follow one another may have the same number.
    """
    node = trees._node(session, Counter())
    assert trees.difference(trees.parse(expected), node) == ""
    assert trees.time_faults(node) == []


@pytest.mark.parametrize(("case", "parents"), [("forked", 1), ("multiprocessed", 0)])
def test_a_child_that_is_forked_within_a_step(ran: Ran, case: str, parents: int) -> None:
    """Between forward and backward: the parent's step goes on as if nothing had been."""
    sessions = ran.sessions(case)
    own = sessions.pop(ran.results["pid"])
    (child,) = sessions.values()
    assert [child.record["pid"]] == ran.results[case]
    check(own, epochs(parents))
    check(child, epochs(1))
    (link,) = child.record["otel"]["links"]
    assert link["span_id"] == own.record["id"][:16]
    within = own.children[0].children[1].record
    assert within["start_ns"] < child.record["start_ns"] < child.record["end_ns"] < within["end_ns"]


def test_a_forked_child_that_forks(ran: Ran) -> None:
    sessions = ran.sessions("grandchild")
    child, grandchild = (sessions[pid] for pid in ran.results["grandchild"])
    check(sessions[ran.results["pid"]], "cirron.session")
    check(child, epochs(1))
    check(grandchild, epochs(1))
    (link,) = grandchild.record["otel"]["links"]
    assert link["span_id"] == child.record["id"][:16]


def test_a_spawned_child_that_profiles_itself(ran: Ran) -> None:
    sessions = ran.sessions("spawned")
    check(sessions.pop(ran.results["pid"]), "cirron.session")
    assert sorted(sessions) == sorted(ran.results["spawned"])
    assert sorted(each.record["rank"] for each in sessions.values()) == [1]
    for each in sessions.values():
        check(each, epochs(1))


def test_a_loop_that_ends_with_its_thread(ran: Ran) -> None:
    (session,) = ran.sessions("threads").values()
    assert ran.results["threads"] == [4 + 2 + 3], "it is over when the thread is, not the session"
    phases = "\n".join(f"        {name}" for name in ("data_load", "forward", "loss", "backward"))
    check(session, f"""
cirron.session
  epoch[0]
    step[0]
      micro_step[0-2]
{phases}
      optimizer_step
    step[1]
      micro_step[0]
{phases}
  epoch[0]{STEP.replace("0-3", "0-1")}
  step[0]
    micro_step[0-1]
      forward
      loss
      backward
    optimizer_step
  forward
  loss
  backward
""")  # fmt: skip


def test_threads_that_train_side_by_side(ran: Ran) -> None:
    (session,) = ran.sessions("side_by_side").values()
    check(session, f"cirron.session\n  epoch[0]{STEP}" + f"\n  epoch[0]{STEP}" * 2)
    assert len({each.record["thread_id"] for each in session.children}) == 3


def test_nothing_was_logged(ran: Ran) -> None:
    assert ran.results["said"] == []
