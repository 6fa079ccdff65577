"""Runs the analysis on cases, and scores its findings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cirron_otel.core.run.choosing import open_chosen_run
from cirron_otel.core.run.run import Run
from cirron_otel.core.spool.reader import SpoolReader

from .building import Family
from .case import Case
from .producers import write
from .scoring import Result, result

FindingsOf = Callable[[Run, int | None], Sequence[Any]]
"""The analysis: it returns the findings about a run, which should have a number of ranks."""


def analysis() -> FindingsOf:
    """Return the analysis of the package."""
    from cirron_otel.core.run.findings.conclude import findings_of

    return lambda run, world_size: findings_of(run, world_size=world_size)


def findings_about(case: Case, findings_of: FindingsOf) -> list[dict[str, Any]]:
    """Return the findings about a case, as objects of a report, in its order."""
    from cirron_otel.core.run.findings.finding import by_severity

    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        spool.mkdir()
        for name, data in write(case):
            (spool / name).write_bytes(data)
        reader = SpoolReader(folder)
        with open_chosen_run(reader, None) as (chosen, run):
            found = findings_of(run, chosen.world_size)
            return [each.to_json() for each in by_severity(found)]


def scored(family: Family, seeds: Iterable[int], findings_of: FindingsOf) -> Iterator[Result]:
    """Yield the scores of the cases of a family. An exception of the analysis is a wrong answer."""
    for seed in seeds:
        case = family.build(seed)
        try:
            found = findings_about(case, findings_of)
        except Exception as error:  # a case must not end the run of all the others
            yield result(case, [], f"{type(error).__name__}: {error}")
        else:
            yield result(case, found)
