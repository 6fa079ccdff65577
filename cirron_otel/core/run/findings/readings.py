"""Notices on the readings of the sampler: the use of CPUs and devices, and temperatures."""

from __future__ import annotations

from collections.abc import Iterator

from ..utilization import Utilization
from .assessment import locate
from .facts import Facts
from .finding import Advice, Finding
from .thresholds import Limits
from .words import percent


def reading_findings(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """Yield the notices on readings that are out of their usual range."""
    if facts.gpu:
        worst = min(facts.gpu, key=lambda each: each.value)
        if worst.value < limits["gpu_utilization.notice"]:
            yield _reading(
                "LOW_GPU_UTIL", worst,
                f"{worst.source} of {facts.who([worst.rank], begins=False)} is"
                f" {percent(worst.value)} busy.",
                "a larger batch, and less work of the host per step",
            )  # fmt: skip
    if facts.temperature:
        worst = max(facts.temperature, key=lambda each: each.value)
        if worst.value >= limits["gpu_temperature.notice"]:
            yield _reading(
                "GPU_HOT", worst,
                f"{worst.source} of {facts.who([worst.rank], begins=False)} reached"
                f" {worst.value:.0f} °C.",
                "check the cooling: a hot device lowers its clock",
            )  # fmt: skip
    if facts.cpu:
        worst = max(facts.cpu, key=lambda each: each.value)
        if worst.value >= limits["cpu.notice"]:
            where = "the host" if worst.source == "host" else facts.who([worst.rank], begins=False)
            yield _reading(
                "HIGH_CPU", worst,
                f"The CPUs of {where} are {percent(worst.value)} busy.",
                "fewer DataLoader workers or threads (OMP_NUM_THREADS), or less preprocessing",
            )  # fmt: skip


def _reading(kind: str, worst: Utilization, sentence: str, advice: str) -> Finding:
    finding = Finding(kind, "notice", None, None, sentence, advice=[Advice(advice)])
    if worst.source != "host" and worst.rank is not None:
        finding.ranks = [worst.rank]
    locate(finding, value=worst.value, source=worst.source)
    return finding
