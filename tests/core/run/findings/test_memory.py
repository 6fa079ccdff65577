"""Memory, readings of the sampler, and incomplete recordings."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.analysis.divergence.comparing import Divergence
from cirron_otel.core.analysis.divergence.rank_states import ReplicaDivergence
from cirron_otel.core.analysis.divergence.replicas import ReplicaComparison
from cirron_otel.core.run.findings.conclude import conclude, not_assessed
from cirron_otel.core.run.findings.facts import Facts, MemoryUse
from cirron_otel.core.run.utilization import Utilization

from .ledgers import START_NS, job

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
    assert "grows by 16 MiB with each step" in finding.sentence


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
