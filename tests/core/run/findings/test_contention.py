"""Waits for a CPU are priced, and explain slow units, intervals and ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cirron_otel.core.analysis.summary import SessionSummary
from cirron_otel.core.run.figures.ledger import Ledger
from cirron_otel.core.run.figures.timed_marks import TimedValues
from cirron_otel.core.run.findings.conclude import conclude, not_assessed
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.semconv import CPU_ALLOWED, CPU_WAIT_NS
from cirron_otel.tools.cli.main import run as run_command
from tests.core.analysis.verdicts.records import Rank, write_spool
from tests.kit.ledger_identities import assert_affordable

from .ledgers import MS, START_NS, USUAL, Times, job

EVERY_NS = 1_000 * MS


def readings(ledger: Ledger, rank: int, extra_ms: np.ndarray) -> TimedValues:
    """Readings once a second: the waits of the units, ms, as far as each is in the interval."""
    lane = ledger.lanes[rank]
    ends = lane.start + lane.ns
    edges = np.r_[lane.start[0], ends].astype(np.float64)
    sums = np.r_[0.0, np.cumsum(extra_ms * MS)]
    at = np.arange(START_NS - EVERY_NS, int(ends[-1]) + 2 * EVERY_NS, EVERY_NS)
    return TimedValues(at, np.diff(np.interp(at, edges, sums), prepend=0).astype(np.int64))


def found(
    extra_ms: np.ndarray, *, account: str = "forward", is_read: bool = True, noise: float = 0.0,
    plant: Callable[[Times], None] | None = None,
) -> list[Finding]:  # fmt: skip
    """The findings on a job whose units take longer by a wait: ranks by units, ms."""

    def slow(times: Times) -> None:
        times[account] = times[account] + extra_ms
        if plant is not None:
            plant(times)

    ranks, units = extra_ms.shape
    ledger = job(ranks, units, noise=noise, plant=slow)
    waits = {each.rank: readings(ledger, place, extra_ms[place])
             for place, each in enumerate(ledger.lanes)}  # fmt: skip
    findings = conclude(Facts(ledger, cpu_waits=waits if is_read else {}))
    assert_affordable(findings, ledger.total_ns)
    return [each for each in findings if each.severity != "notice"]


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [each.kind for each in findings]


def burst(ranks: int = 1, units: int = 200) -> np.ndarray:
    extra = np.zeros((ranks, units))
    extra[:, 80:140] = 90
    return extra


def single(ranks: int = 1, units: int = 200) -> np.ndarray:
    extra = np.zeros((ranks, units))
    extra[:, 13::27] = 400
    return extra


def growing(ranks: int = 1, units: int = 200) -> np.ndarray:
    return np.tile(np.linspace(0, 100, units), (ranks, 1))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("shape", "kind"),
    [(burst, "SLOW_INTERVAL"), (single, "SPIKES"), (growing, "SLOWING_DOWN")],
)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_waits_explain_slow_units(
    shape: Callable[[int], np.ndarray], kind: str, ranks: int, noise: float
) -> None:
    extra = shape(ranks)
    assert kind in kinds(found(extra, is_read=False, noise=noise))
    findings = found(extra, noise=noise)
    assert kinds(findings) == ["CPU_CONTENTION"]
    assert findings[0].severity == "warning"
    assert findings[0].cost_ns == pytest.approx(extra.sum() * MS, rel=0.06 if noise else 0.02)


@pytest.mark.parametrize("account", ["input", "unattributed", "between_units"])
def test_waits_in_every_unit_explain_steady_costs(account: str) -> None:
    extra = np.full((1, 200), 60.0)
    (alone,) = found(extra, account=account, is_read=False)
    findings = {each.kind: each for each in found(extra, account=account)}
    contention = findings.pop("CPU_CONTENTION")
    assert all(each.cost_ns < 0.7 * alone.cost_ns for each in findings.values())
    assert contention.cost_ns == pytest.approx(extra.sum() * MS, rel=0.02)


def test_rank_that_waits_for_a_cpu_is_named_with_the_waiting_of_the_others() -> None:
    extra = np.zeros((4, 200))
    extra[2] = 40
    assert "COMPUTE_STRAGGLER" in kinds(found(extra, is_read=False))
    (finding,) = found(extra)
    assert (finding.kind, finding.ranks) == ("CPU_CONTENTION", [2])
    assert finding.sentence.startswith("Rank 2: waiting for a CPU takes 7.9")
    assert finding.cost_ns == pytest.approx(4 * extra[2].sum() * MS, rel=0.05)


def test_units_are_named_if_the_waits_are_in_some() -> None:
    (finding,) = found(burst())
    ((first, last),) = finding.steps
    assert 70 <= first <= 82
    assert 137 <= last <= 150
    assert not found(np.full((1, 200), 60.0))[0].steps


def test_waits_of_a_notice_are_no_other_finding() -> None:
    def plant(times: Times) -> None:
        times["forward"][:, 5::50] += 450

    extra = np.zeros((1, 200))
    extra[:, 30::50] = 200
    assert kinds(found(extra, plant=plant)) == ["SPIKES"]
    alone = found(np.zeros((1, 200)), plant=plant)[0]
    assert found(extra, plant=plant)[0].cost_ns == alone.cost_ns
    assert found(extra, plant=plant, is_read=False)[0].cost_ns > alone.cost_ns


def test_other_causes_keep_their_price() -> None:
    def plant(times: Times) -> None:
        times["input"] = times["input"] + 60

    (cause,) = found(np.zeros((1, 200)), plant=plant)
    findings = found(burst(), plant=plant)
    assert kinds(findings) == ["INPUT_BOUND", "CPU_CONTENTION"]
    assert findings[0].cost_ns == pytest.approx(cause.cost_ns, rel=0.05)


@pytest.mark.parametrize("factor", [1, 1.3, 2, 4])
def test_severity_and_price_of_another_cause_are_those_without_the_waits(factor: float) -> None:
    def plant(times: Times) -> None:
        times["input"] = times["input"] + 28
        for name in times:
            times[name] = times[name] * factor

    ledger = job(1, 400, plant=plant)
    (lane,) = ledger.lanes
    work_ms = np.sum([*lane.accounts.values()], axis=0) / MS
    waits = {None: readings(ledger, 0, work_ms * (1 - 1 / factor))}
    finding = conclude(Facts(ledger, cpu_waits=waits))[0]
    assert (finding.kind, finding.severity) == ("INPUT_BOUND", "critical")
    assert finding.cost_ns == pytest.approx(400 * 29 * MS, rel=0.02)


def test_waits_belong_to_the_slow_units_of_their_training() -> None:
    """Units of the second training take ten times as long, without waiting."""
    extra = np.zeros(200)
    extra[40:60] = 1_000

    def plant(times: Times) -> None:
        for name in times:
            times[name][:, 100:] *= 10
        times["forward"][0] += extra

    ledger = job(1, 200, plant=plant)
    (lane,) = ledger.lanes
    lane.training = np.repeat([0, 1], 100)
    one = TimedValues(
        np.array([lane.start[0], lane.start[-1] + lane.ns[-1]]),
        np.array([0, int(extra.sum()) * MS]),
    )
    findings = conclude(Facts(ledger, cpu_waits={None: one}))
    (finding,) = [each for each in findings if each.kind == "CPU_CONTENTION"]
    assert finding.steps == [(40, 59)]
    assert not [each for each in findings if each.kind in ("SLOW_INTERVAL", "SPIKES")]


@pytest.mark.parametrize(("processes", "is_found"), [(1, True), (2, False)])
def test_readings_of_several_processes_without_ranks_are_not_used(
    processes: int, is_found: bool
) -> None:
    ledger = job(plant=lambda times: times.update(forward=times["forward"] + 90))
    sessions = [SessionSummary(str(number), "closed") for number in range(processes)]
    waits = {None: readings(ledger, 0, np.full(100, 90.0))}
    findings = conclude(Facts(ledger, cpu_waits=waits, sessions=sessions))
    assert ("CPU_CONTENTION" in {each.kind for each in findings}) is is_found


@pytest.mark.parametrize("seed", range(40))
def test_any_readings_cost_at_most_the_time(seed: int) -> None:
    """Readings may be damaged: repeated, out of order, ahead of the run, larger than the time."""
    chance = np.random.default_rng(seed)
    ledger = job(int(chance.integers(1, 4)), int(chance.integers(1, 40)), noise=0.3, seed=seed)
    waits = {}
    for lane in ledger.lanes:
        count = int(chance.integers(0, 30))
        first, last = int(lane.start[0]), int(lane.start[-1] + lane.ns[-1])
        margin = (last - first) // 4 + 1
        at = chance.integers(first - margin, last + margin, count)
        at[: count // 3] = at[:1] if count else at[:0]
        most = int(chance.choice([1, 10**6, 10**9, 2**62]))
        waits[lane.rank] = TimedValues(at, chance.integers(0, most, count))
    findings = conclude(Facts(ledger, cpu_waits=waits))
    assert_affordable(findings, ledger.total_ns)


def test_recording_without_readings_names_the_remedy() -> None:
    def of(facts: Facts) -> list[str]:
        return [each["remedy"] for each in not_assessed(facts) if each["kind"] == "CPU_CONTENTION"]

    assert of(Facts(job())) == ["record on Linux with samples and cpu_wait"]
    one = TimedValues(np.array([START_NS]), np.array([0]))
    assert of(Facts(job(), cpu_waits={None: one})) == []


@pytest.mark.parametrize("engine", ["python", "duckdb"])
def test_marks_of_a_recording(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = Rank()
    rank.epoch(0)
    rank.mark(CPU_WAIT_NS, 0)
    rank.marks[-1] |= {"value_type": "int"}
    for number in range(60):
        is_slow = 20 <= number < 40
        rank.step(number, {"data_load": 2, "forward": 60 if is_slow else 20, "backward": 20})
        rank.mark(CPU_WAIT_NS, 40 * MS if is_slow else 0)
        rank.marks[-1] |= {"value_type": "int"}
    spool = write_spool(tmp_path, [rank], "r")
    run_command(["report", str(spool), "--json", "--engine", engine])
    document = json.loads(capsys.readouterr().out)
    (finding,) = [each for each in document["findings"] if each["severity"] != "notice"]
    assert (finding["kind"], finding["steps"]) == ("CPU_CONTENTION", [[20, 39]])
    assert finding["cost_ns"] == pytest.approx(20 * 40 * MS, rel=0.02)
    assert CPU_WAIT_NS not in {each["name"] for each in document["marks"]}


def test_the_cpus_of_the_process_are_named() -> None:
    ledger = job(plant=lambda times: times.update(forward=times["forward"] + 90))
    waits = {None: readings(ledger, 0, np.full(100, 90.0))}
    facts = Facts(ledger, cpu_waits=waits, settings={CPU_ALLOWED: {2: [None]}})
    assert conclude(facts)[0].sentence.endswith(
        "more threads are ready to run than there are CPUs (2 for this process)."
    )
    assert USUAL["forward"] < 90
