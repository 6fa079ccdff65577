"""Runs that failed, were killed, stalled, or have no records of some ranks."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.figures.failures import in_order
from cirron_otel.core.run.findings.conclude import conclude, headline_of, status_of
from cirron_otel.core.run.findings.facts import Facts, OutOfMemory
from cirron_otel.core.run.stall import Stall
from cirron_otel.semconv import JOB

from .failed_runs import failure, session
from .ledgers import START_NS, Times, job


def _at(number: int) -> int:
    """Return a time in the middle of a unit of `job()`."""
    return START_NS + round((number + 0.5) * 95.5e6)


def test_the_first_death_is_the_finding_and_others_are_victims() -> None:
    ledger = job(3, 100)
    for lane in ledger.lanes:
        lane.outside["ended"] = 4_000_000_000
    ledger.last_ns += 4_000_000_000
    failures = [
        failure("b", 1, _at(60), "ValueError: bad", scope="forward", where="train.py:7 in f"),
        failure("a", 0, _at(61), "RuntimeError: peer", "failed"),
        failure("c", 2, _at(61), "SIGTERM", "killed"),
    ]
    facts = Facts(ledger, failures=failures)
    findings = conclude(facts)
    finding = findings[0]
    assert (finding.kind, finding.severity, finding.ranks) == ("FAILED", "failure", [1])
    assert finding.steps == [(60, 60)]
    assert finding.phase == "forward"
    assert finding.cost_ns == 12_000_000_000
    assert [each["rank"] for each in finding.evidence["victims"]] == [0, 2]
    assert finding.sentence == (
        "Rank 1 failed in forward at step 60: ValueError: bad; 2 other processes ended because of"
        " it."
    )
    assert finding.advice[0].text == "look at train.py:7 in f"
    assert status_of(findings) == "failed"
    assert headline_of(findings, facts) == finding.sentence


_CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]"
_LOST = {
    "gloo": _CLOSED,
    "gloo without a path": "RuntimeError: Connection closed by peer [10.0.0.2]:42137",
    "gloo reads": "RuntimeError: [pair.cc:553] Read error [::1]:42137: Connection reset by peer",
    "gloo writes": "RuntimeError: writev [127.0.0.1]:42137: Broken pipe",
    "a collective's timeout": "DistBackendError: Watchdog caught collective operation timeout",
    "NCCL's system error": "DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system"
    " error (run with NCCL_DEBUG=INFO for details), ncclSystemError: System call (e.g. socket,"
    " malloc) or external library call failed or device error.",
    "NCCL's remote error": "DistBackendError: ncclRemoteError: A call failed possibly due to a"
    " network error or a remote process exiting prematurely.",
    "an aborted communicator": "DistBackendError: NCCL communicator was aborted on rank 1.",
    "the store": "DistNetworkError: failed to recv, got 0 bytes",
}
_OTHER = {
    "a value": "ValueError: bad",
    "a client of the program": "ConnectionResetError: [Errno 104] Connection reset by peer",
    "NCCL's use": "DistBackendError: ncclInvalidUsage: This usually reflects invalid usage of NCCL",
}
_TIMEOUT = "DistBackendError: Watchdog caught collective operation timeout"
_DIED = "incomplete: the process ended without closing this scope"
_SIGTERM = "killed: the process was ended by SIGTERM"


@pytest.mark.parametrize(
    ("errors", "order"),
    [
        ({"job": "exit code 1", "peer": _CLOSED, "died": _DIED}, ["died", "peer", "job"]),
        ({"peer": _TIMEOUT, "died": _DIED, "term": _SIGTERM}, ["died", "peer", "term"]),
        ({"peer": _CLOSED, "term": _SIGTERM, "job": "exit code 1"}, ["peer", "job", "term"]),
        ({"peer": _CLOSED, "bad": "ValueError: bad", "died": _DIED}, ["bad", "died", "peer"]),
        ({"died": _DIED, "bad": "ValueError: bad"}, ["bad", "died"]),
        ({"job": "exit code 1", "died": _DIED, "term": _SIGTERM}, ["died", "job", "term"]),
        ({"job": "exit code 1", "bad": "ValueError: bad"}, ["bad", "job"]),
    ],
)
def test_a_death_is_ahead_of_its_consequences(errors: dict[str, str], order: list[str]) -> None:
    failures = [
        failure(id_, rank, _at(rank), error, "killed" if id_ in ("died", "term") else "failed",
                scope=JOB if id_ == "job" else None)
        for rank, (id_, error) in enumerate(errors.items())
    ]  # fmt: skip
    assert [each.session for each in in_order(failures)] == order


@pytest.mark.parametrize("name", [*_LOST, *_OTHER])
def test_lost_connections_come_after_a_death(name: str) -> None:
    """The connection is lost before the time of the death, which is that of its last record."""
    failures = [
        failure("peer", 0, _at(0), (_LOST | _OTHER)[name], "failed"),
        failure("died", 1, _at(1), _DIED, "killed"),
    ]
    found = [each.session for each in in_order(failures)]
    assert found == (["died", "peer"] if name in _LOST else ["peer", "died"])


def test_a_killed_process_was_at_or_after_its_last_unit() -> None:
    facts = Facts(job(), failures=[failure("a", None, _at(200), "SIGKILL", "killed")])
    finding = conclude(facts)[0]
    assert finding.kind == "KILLED"
    assert finding.sentence == "The process was killed at or after step 99: SIGKILL."


def test_out_of_memory_that_ended_the_run() -> None:
    died = failure("a", 0, _at(5), "OutOfMemoryError", cause="out of memory",
                   requested_bytes=2**31)  # fmt: skip
    (finding,) = conclude(Facts(job(), failures=[died], out_of_memory=[OutOfMemory(0, _at(5))]))
    assert (finding.kind, finding.severity) == ("OUT_OF_MEMORY", "failure")
    assert "(2,048 MiB requested)" in finding.sentence


def test_out_of_memory_after_which_the_run_continued() -> None:
    (finding,) = conclude(Facts(job(), out_of_memory=[OutOfMemory(None, _at(60))]))
    assert (finding.kind, finding.severity) == ("OUT_OF_MEMORY", "critical")
    assert finding.steps == [(60, 60)]
    assert finding.evidence["retried"] is True
    assert finding.sentence == "The process ran out of memory at step 60 and continued."


def test_a_failure_without_units() -> None:
    findings = conclude(Facts(failures=[failure("a", 0, 5, "ImportError: x", step="3")]))
    assert findings[0].sentence == "Rank 0 failed, step 3: ImportError: x."
    assert findings[0].cost_ns is None


def test_a_failure_that_a_later_process_continued_is_not_a_failure_of_the_run() -> None:
    facts = Facts(
        job(2, 100),
        failures=[failure("a", 0, _at(50), "x")],
        sessions=[session("a", 0, START_NS, _at(50), "failed"), session("b", 0, _at(51), _at(99))],
    )
    assert status_of(conclude(facts)) == "healthy"


def test_an_interrupt_is_not_a_failure() -> None:
    facts = Facts(job(), state="interrupted", failures=[failure("a", 0, 5, "KeyboardInterrupt")])
    (finding,) = conclude(facts)
    assert (finding.kind, finding.severity) == ("INCOMPLETE", "notice")
    assert "interrupted" in finding.sentence


def test_a_failure_ahead_of_an_interrupt_is_a_failure() -> None:
    failures = [
        failure("b", 1, _at(40), "ValueError: bad"),
        failure("a", 0, _at(90), "KeyboardInterrupt"),
        failure("c", 2, _at(91), "SIGTERM", "killed"),
    ]
    finding = conclude(Facts(job(3), failures=failures, state="interrupted"))[0]
    assert (finding.kind, finding.ranks, finding.evidence["victims"]) == ("FAILED", [1], [])
    assert status_of(conclude(Facts(job(3), failures=failures[1:]))) == "healthy"


@pytest.mark.parametrize(
    ("code", "kind"), [(1, "FAILED"), (137, "KILLED"), (143, "KILLED"), (130, None)]
)
def test_the_exit_code_of_a_command(code: int, kind: str | None) -> None:
    ended = failure("a", None, _at(200), f"exit code {code}", scope="cirron.job")
    findings = conclude(Facts(job(), failures=[ended]))
    assert [each.kind for each in findings] == ([kind] if kind else [])
    if kind is not None:
        verb = "failed" if kind == "FAILED" else "was killed"
        assert findings[0].sentence == (
            f"The command {verb} at or after step 99: exit code {code}."
        )


def test_a_last_unit_that_stalled() -> None:
    def plant(times: Times) -> None:
        times["stalled"] = np.zeros((1, 100))
        times["stalled"][:, -1] = 20_000

    finding = conclude(Facts(job(plant=plant), state="incomplete"))[0]
    assert (finding.kind, finding.severity) == ("STALLED", "failure")
    assert finding.cost_ns == 20_000_000_000
    assert finding.steps == [(99, 99)]
    assert conclude(Facts(job(plant=plant)))[0].severity == "critical"


def test_ranks_of_a_running_job_that_are_silent() -> None:
    stalls = [Stall(3, 90 * 10**9, 10**8, ("epoch", "all_reduce"))]
    finding = conclude(Facts(job(4, 50), state="running", stalls=stalls))[0]
    assert (finding.kind, finding.ranks, finding.scope) == ("STALLED", [3], "all_reduce")


@pytest.mark.parametrize(("world", "kind"), [(3, "RANK_MISSING"), (4, "RANK_MISSING"),
                                             (5, "INCOMPLETE")])  # fmt: skip
def test_ranks_without_records(world: int, kind: str) -> None:
    (finding,) = conclude(Facts(job(2, 50), world_size=world))
    assert finding.kind == kind
    if kind == "RANK_MISSING":
        assert finding.ranks == list(range(2, world))
        assert finding.severity == "failure"
