"""The result of a check's process, also if it failed; the comparisons of the checks can fail."""

from __future__ import annotations

import copy
import json
import sys

import pytest

from tests.conftest import need_torch

from . import running

_PASSED = f"print({running.MARK + json.dumps(running.result(running.PASSED))!r}, flush=True)"


@pytest.fixture(autouse=True)
def _torch() -> None:
    need_torch()


@pytest.mark.parametrize(
    ("then", "timeout", "message"),
    [
        ("sys.exit(7)", 60, "exit status 7; before, it said: passed: "),
        ("os.abort()", 60, "exit status -6; before, it said: passed: "),
        ("time.sleep(600)", 5, "it did not end within 5 s; before, it said: passed: "),
    ],
)
def test_a_process_that_does_not_end_well_has_failed(
    then: str, timeout: float, message: str
) -> None:
    program = f"import os, sys, time\n{_PASSED}\nprint('oh', file=sys.stderr, flush=True)\n{then}"
    outcome = running.called([sys.executable, "-c", program], timeout)
    assert (outcome["status"], outcome["said"]) == (running.FAILED, message)
    assert outcome["stderr"].startswith("oh\n")


def test_check_passes_only_if_it_reports_success() -> None:
    assert running.called([sys.executable, "-c", _PASSED], 60)["status"] == running.PASSED
    outcome = running.called([sys.executable, "-c", ""], 60)
    assert (outcome["status"], outcome["said"]) == (running.FAILED, "it said nothing")


def test_a_check_that_raises_gives_its_traceback_and_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from . import timing
    from .machine import Machine, Unavailable, expect

    def fail(machine: Machine) -> None:
        machine.figures["ms"] = 3
        expect(False, "too little")

    def leave(_machine: Machine) -> None:
        raise Unavailable("not here", lacks="triton")

    monkeypatch.setattr(timing, "truth", fail)
    monkeypatch.setattr(timing, "cost", leave)
    failed, left = running.ran("truth", "cuda"), running.ran("cost", "cuda")
    assert (failed["status"], failed["said"]) == (running.FAILED, "CheckError: too little")
    assert "in fail" in failed["traceback"]
    assert failed["figures"] == {"ms": 3}
    assert (left["status"], left["said"], left["lacks"]) == ("not shown", "not here", "triton")


_CLOSING = """
import json
import os
import sys
from types import SimpleNamespace
from cirron_otel.sdk.session.errors import record_error
from tests.perf.gpu import machine

for number, broken in enumerate(sys.argv[1:]):
    if not (pid := os.fork()):
        break
    os.waitpid(pid, 0)
else:
    sys.exit()

def begin(**options):
    made = profile(**options)
    exec(broken, globals() | {"hooks": made.instrumentation})
    return made

profile, machine.ci.profile = machine.ci.profile, begin
try:
    with machine.traced():
        pass
except machine.CheckError as error:
    print(json.dumps([number, str(error)]), file=sys.stderr)
"""
"""Runs a session for each argument, a statement that breaks it, in a process of its own."""
_BROKEN = {
    "hooks.remove = lambda: record_error('late', ValueError('!'))": "errors were kept from the",
    "hooks.hooks['torch'].torch_state.clock = SimpleNamespace(unread=2, expire=int, close=int)": (
        "2 scopes whose time was not read"
    ),
    "end, machine.ci.shutdown = machine.ci.shutdown, lambda: end() and False": (
        "the session was not closed in time"
    ),
}


@pytest.fixture(scope="module")
def closings() -> dict[str, str]:
    """The error of each broken session."""
    need_torch()
    outcome = running.called([sys.executable, "-c", _CLOSING, *_BROKEN], 120)
    statements = list(_BROKEN)
    pairs = (json.loads(line) for line in outcome["stderr"].splitlines() if line.startswith("["))
    return {statements[number]: error for number, error in pairs}


@pytest.mark.parametrize("broken", _BROKEN)
def test_a_session_that_does_not_end_well_fails_the_check(
    broken: str, closings: dict[str, str]
) -> None:
    assert _BROKEN[broken] in closings[broken]


def test_differing_statistics_are_reported() -> None:
    import torch

    from cirron_otel.sdk.snapshots.capture import Record, take

    from .snapshots import Holding, differences

    tensors = [torch.arange(40.0), torch.tensor([1.0, float("nan"), 3.0])]
    records = list(take(Holding(tensors)).records())

    def other(**changes: object) -> list[Record]:
        some = copy.deepcopy(records)
        for record in some:
            assert record.stats is not None
            (record.stats.get("finite") or record.stats).update(changes)
        return some

    assert not differences(records, copy.deepcopy(records))
    assert len(differences(other(mean=1.0000001), records)) == 2
    assert len(differences(other(histogram={"bins": [], "counts": []}), records)) == 4
    assert len(differences(other(max=None), records)) == 2
    assert differences(records[:1], records) == ["1 records, not 2"]
    records[1].stats = None
    (problem,) = differences(records, records)
    assert "p1: without statistics" in problem
