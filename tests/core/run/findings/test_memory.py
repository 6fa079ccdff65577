"""Memory, readings of the sampler, and incomplete recordings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cirron_otel.core.analysis.divergence.comparing import Divergence
from cirron_otel.core.analysis.divergence.rank_states import ReplicaDivergence
from cirron_otel.core.analysis.divergence.replicas import ReplicaComparison
from cirron_otel.core.run.findings.conclude import conclude, not_assessed
from cirron_otel.core.run.findings.facts import Facts, MemoryUse
from cirron_otel.core.run.utilization import Utilization

from .ledgers import START_NS, job, second_from

_GIB = 2**30


def _use(
    rank: int, sizes: np.ndarray, capacity: int | None = 80 * _GIB, device: str = "cuda:0"
) -> MemoryUse:
    times = START_NS + np.linspace(0, 9.55e9, len(sizes)).astype(np.int64)
    return MemoryUse(rank, device, int(sizes.max()), capacity, times, sizes)


@pytest.mark.parametrize(
    ("gib", "severity"), [(73, None), (74, "warning"), (77, "warning"), (78, "critical")]
)
def test_pressure(gib: int, severity: str | None) -> None:
    findings = conclude(Facts(job(), memory=[MemoryUse(0, "cuda:0", gib * _GIB, 80 * _GIB)]))
    assert [(each.kind, each.severity) for each in findings] == (
        [("HIGH_PRESSURE", severity)] if severity else []
    )


@pytest.mark.parametrize(("peak", "severity"), [(27, None), (29, "warning"), (60, "critical")])
def test_imbalance(peak: int, severity: str | None) -> None:
    sizes = (23, 23, peak, 23)
    memory = [MemoryUse(rank, "cuda:0", each * _GIB, 80 * _GIB) for rank, each in enumerate(sizes)]
    findings = conclude(Facts(job(4), memory=memory))
    assert [(each.kind, each.severity, each.ranks) for each in findings] == (
        [("IMBALANCE", severity, [2])] if severity else []
    )


def test_memory_that_grows_with_each_step() -> None:
    sizes = 1.0 * _GIB + 16 * 2**20 * np.linspace(0, 100, 200)
    (finding,) = conclude(Facts(job(), memory=[_use(0, sizes, 20 * _GIB, "cpu")]))
    assert (finding.kind, finding.severity) == ("CREEP_CONFIRMED", "warning")
    assert finding.evidence["per_unit_bytes"] == pytest.approx(16 * 2**20, rel=0.1)
    assert finding.evidence["units_until_full"] == pytest.approx((20 - 2.5) * 64, rel=0.05)
    assert finding.evidence["fit"] == pytest.approx(1, abs=1e-3)
    assert finding.sentence == (
        "The host memory of rank 0 grows by 16 MiB with each step (fit 1.00): 1,431 MiB in the run;"
        " at this rate the limit of 20.0 GiB comes after 1,116 more steps."
    )


def test_growth_that_fills_the_device_within_the_length_of_the_run_is_critical() -> None:
    sizes = 1.0 * _GIB + 16 * 2**20 * np.linspace(0, 100, 200)
    (finding,) = conclude(Facts(job(), memory=[_use(0, sizes, 3 * _GIB)]))
    assert (finding.kind, finding.severity) == ("CREEP_CONFIRMED", "critical")


def test_small_growth_is_a_notice_and_a_cache_that_fills_is_none() -> None:
    small = 1.0 * _GIB + 2**20 * np.linspace(0, 200, 200)
    (finding,) = conclude(Facts(job(), memory=[_use(0, small)]))
    assert (finding.kind, finding.severity) == ("CREEP_EARLY", "notice")
    fills = _GIB * (1 + np.minimum(np.linspace(0, 20, 200), 1))
    noise = _GIB * (1 + 0.2 * np.random.default_rng(2).random(200))
    for sizes in (fills, noise):
        assert conclude(Facts(job(), memory=[_use(0, sizes)])) == []


PLACES = np.linspace(0, 1, 60)
NORMAL = {
    "an allocator that warms up": 1 - np.exp(-12 * PLACES),
    "a cache that fills and stops": np.minimum(PLACES / 0.6, 1),
    "a cache that fills until shortly ahead of the end": np.minimum(PLACES / 0.75, 1),
    "one large allocation": 1.0 * (PLACES > 0.5),
    "noise": np.random.default_rng(2).random(60),
    "growth that is freed": PLACES % 0.25,
    "the same size": 0 * PLACES,
    "two allocations": 0.5 * (PLACES > 0.3) + 0.5 * (PLACES > 0.6),
}


@pytest.mark.parametrize("name", NORMAL)
def test_memory_of_a_normal_process_is_no_finding(name: str) -> None:
    sizes = _GIB * (1 + 3 * NORMAL[name])
    assert conclude(Facts(job(), memory=[_use(0, sizes, 80 * _GIB, "cpu")])) == []


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_memory_that_grows_from_training_to_training_only_is_no_finding(device: str) -> None:
    sizes = _GIB * (1.0 + 5 * (np.arange(200) >= 60) + np.linspace(0, 0.02, 200))
    use = _use(0, sizes, 80 * _GIB, device)
    assert conclude(Facts(second_from(job(), 30), memory=[use])) == []
    growing = _use(0, sizes + _GIB * np.linspace(0, 4, 200), 80 * _GIB, device)
    (finding,) = conclude(Facts(second_from(job(), 30), memory=[growing]))
    assert finding.kind == "CREEP_CONFIRMED"
    assert finding.evidence["growth_bytes"] < 3.5 * _GIB


GROWING = {
    "each step": PLACES,
    "after a warm-up": np.maximum(1 - np.exp(-80 * PLACES), 0) / 4 + PLACES * 0.75,
    "each of eight epochs": np.floor(PLACES * 8) / 8,
    "each of five epochs": np.floor(PLACES * 5) / 5,
    "with noise": PLACES + 0.05 * np.random.default_rng(3).random(60),
}


@pytest.mark.parametrize("name", GROWING)
def test_memory_that_grows_until_the_end_is_a_finding(name: str) -> None:
    sizes = _GIB * (1 + 3 * GROWING[name])
    (finding,) = conclude(Facts(job(), memory=[_use(0, sizes, 80 * _GIB, "cpu")]))
    assert (finding.kind, finding.severity) == ("CREEP_CONFIRMED", "warning")
    assert finding.evidence["per_unit_bytes"] == pytest.approx(3 * _GIB / 100, rel=0.35)


@pytest.mark.parametrize("entries", [10, 100])
def test_the_growth_of_a_unit_does_not_depend_on_joined_entries(entries: int) -> None:
    ledger = job(1, entries, usual={"forward": 95.5 * 100 / entries})
    ledger.lanes[0].size = 2_000 // entries
    use = _use(0, _GIB * (1 + 3 * PLACES), 80 * _GIB, "cpu")
    (finding,) = (e for e in conclude(Facts(ledger, memory=[use])) if "CREEP" in e.kind)
    assert finding.evidence["per_unit_bytes"] == pytest.approx(3 * _GIB / 2_000, rel=0.05)
    assert finding.evidence["units_until_full"] == pytest.approx(76 / 3 * 2_000, rel=0.05)


def test_processes_of_a_host_reach_its_limit_together() -> None:
    sizes = _GIB * (1 + 3 * PLACES)
    uses = [replace(_use(rank, sizes, 80 * _GIB, "cpu"), used_bytes=50 * _GIB) for rank in range(2)]
    (finding,) = conclude(Facts(job(2), memory=uses))
    assert finding.ranks == [0, 1]
    assert finding.evidence["units_until_full"] == pytest.approx(30 / (2 * 3 / 100), rel=0.05)


def test_small_growth_is_critical_if_it_reaches_the_limit_soon() -> None:
    sizes = _GIB + 200 * 2**20 * PLACES
    use = _use(0, sizes, 4 * _GIB, "cpu")
    near = replace(use, used_bytes=4 * _GIB - 100 * 2**20)
    for each, expected in (
        (use, ("CREEP_EARLY", "notice")),
        (near, ("CREEP_CONFIRMED", "critical")),
    ):
        (finding,) = conclude(Facts(job(), memory=[each]))
        assert (finding.kind, finding.severity) == expected


def test_few_samples_or_few_units_are_no_finding() -> None:
    few = _use(0, _GIB * (1 + 3 * PLACES[::10]), 80 * _GIB, "cpu")
    assert conclude(Facts(job(), memory=[few])) == []
    short = _use(0, _GIB * (1 + 3 * PLACES), 80 * _GIB, "cpu")
    assert not [e for e in conclude(Facts(job(1, 10), memory=[short])) if "CREEP" in e.kind]


def test_readings_are_notices() -> None:
    facts = Facts(
        job(),
        cpu=[Utilization(None, "host", 0.95)],
        gpu=[Utilization(0, "cuda:0", 0.2), Utilization(1, "cuda:1", 0.9)],
        temperature=[Utilization(1, "cuda:1", 91.0)],
    )
    assert [(each.kind, each.severity, each.ranks) for each in conclude(facts)] == [
        ("LOW_GPU_UTIL", "notice", [0]), ("GPU_HOT", "notice", [1]), ("HIGH_CPU", "notice", []),
    ]  # fmt: skip


def test_an_incomplete_recording() -> None:
    (finding,) = conclude(Facts(job(), dropped_records=1_200, missing_files=1))
    assert (finding.kind, finding.severity) == ("INCOMPLETE", "warning")
    assert "1,200 records; 1 batch cannot be read" in finding.sentence
    (finding,) = conclude(Facts(job(), state="running", summarised=7))
    assert (finding.kind, finding.severity) == ("INCOMPLETE", "notice")


def test_kinds_without_data() -> None:
    kinds = {each["kind"] for each in not_assessed(Facts(job()))}
    assert kinds == {
        "STRAGGLER", "HIGH_PRESSURE", "CREEP_CONFIRMED", "DIVERGING", "HIGH_CPU", "LOW_GPU_UTIL",
        "GPU_HOT", "CPU_CONTENTION",
    }  # fmt: skip
    assert {each["kind"] for each in not_assessed(Facts())} == kinds | {"INPUT_BOUND"}
    memory = [MemoryUse(0, "cuda:0", _GIB, _GIB * 80)]
    kinds = {each["kind"] for each in not_assessed(Facts(job(2), memory=memory))}
    assert kinds == {
        "COMPUTE_STRAGGLER", "WAIT_HEAVY", "DIVERGING", "HIGH_CPU", "LOW_GPU_UTIL", "GPU_HOT",
        "CPU_CONTENTION",
    }  # fmt: skip


@pytest.mark.parametrize(("is_from_start", "severity"), [(True, "warning"), (False, "critical")])
def test_replicas_that_differ(is_from_start: bool, severity: str) -> None:
    first = Divergence(1, 40, "1", "10", "weights")
    different = ReplicaDivergence(first, [0, 1, 2], [1], is_from_start)
    replicas = ReplicaComparison([[0, 1, 2]], 90, [different])
    (finding,) = conclude(Facts(job(3), replicas=replicas))
    assert (finding.kind, finding.severity, finding.ranks) == ("REPLICAS_DIFFER", severity, [1])
    assert conclude(Facts(job(3), replicas=ReplicaComparison([[0, 1, 2]], 90))) == []
