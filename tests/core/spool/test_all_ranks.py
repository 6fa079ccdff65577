"""The steps of all ranks together have the figures that their durations have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.breakdown import (
    STEP,
    UNATTRIBUTED,
    Breakdown,
)
from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.spool.reader import BatchFile, SpoolReader
from tests.kit.generators.trees import random_spool, training
from tests.kit.phase_times import PhaseTimes, TimedBreakdown
from tests.kit.spools.recorded import NAMES, SPOOLS
from tests.kit.spools.reports import reported
from tests.perf.scale.ranks import Job
from tests.perf.scale.simulate import requests_of


def joined(parts: Iterable[Breakdown]) -> Breakdown:
    """Combine several breakdowns, for example those of several ranks, into one.

    They must have their durations.
    """
    steps, unattributed = PhaseTimes(STEP), PhaseTimes(UNATTRIBUTED)
    phases: dict[str, PhaseTimes] = {}
    for part in parts:
        steps.durations += part.steps.durations
        unattributed.durations += part.unattributed.durations
        for each in part.phases:
            phases.setdefault(each.name, PhaseTimes(each.name)).durations.extend(each.durations)
    return TimedBreakdown(steps, list(phases.values()), unattributed)


def figures(report: RunReport) -> dict[str, Any]:
    assert report.together is not None
    found = report.together
    return {
        "steps": [each.to_json() for each in (found.steps, *found.phases, found.unattributed)],
        "shares": [found.share(each) for each in found.phases],
    }


def check(batches: list[BatchFile]) -> RunReport:
    complete = reported(batches, durations=True)
    report = reported(batches)
    assert report.to_json() == complete.to_json()
    found = figures(report)
    complete.together = joined(each.steps for each in complete.ranks)
    assert found == figures(complete)
    for rank in report.ranks:
        times = (rank.steps.steps, *rank.steps.phases, rank.steps.unattributed)
        assert not any(isinstance(each, PhaseTimes) and each.durations for each in times)
    return report


def files(contents: Iterable[tuple[str, bytes]]) -> list[BatchFile]:
    return [BatchFile(name, Path(name), data) for name, data in contents]


@pytest.mark.parametrize("name", NAMES)
def test_recordings(name: str) -> None:
    check(list(SpoolReader(SPOOLS / name)))


@pytest.mark.parametrize("seed", range(12))
def test_random_trees(seed: int) -> None:
    check(files(random_spool(seed)))


def test_several_ranks_with_warm_up() -> None:
    report = check(files(training(3, 40)))
    assert report.together is not None
    assert report.together.steps.times == sum(each.steps.steps.times for each in report.ranks) > 200


def test_simulated_ranks() -> None:
    requests = requests_of(Job.of(20, 12, 3, None))
    report = check([
        BatchFile(each.batch.name, Path(each.batch.name), each.batch.data)
        for request in requests
        for each in request.batches
    ])  # fmt: skip
    assert len(report.ranks) == 19


def test_no_steps() -> None:
    report = check([])
    assert report.together is not None
    assert report.together.steps.times == 0
