"""The steps of each rank, and those of them that are warm-up."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import ibis

from ..analysis.breakdown import MOST_WARM_UP, STEP, warm_up_of
from ..analysis.verdicts.comparison import BLOCKS, MIN_STEPS
from .engine import SqlEngine, Table
from .expressions import FALSE, ascending
from .figures import figures_by_rank, medians_of
from .steps import StepRelations


class StepsByRank:
    """The steps of the ranks of a run."""

    def __init__(self, engine: SqlEngine, relations: StepRelations) -> None:
        """Find the warm-up of each rank."""
        self._engine, self._step = engine, relations.step
        self.first = self._first_steps()
        """The starts and the durations of the first steps of each rank, ns."""
        self.figures = figures_by_rank(engine, self._step, STEP)
        """The figures of all steps of each rank that has any."""
        self.warm_up = {
            rank: warm_up_of(each, [ns for _, ns in self.first[rank]])
            for rank, each in self.figures.items()
        }
        """The number of warm-up steps of each rank."""

    def _first_steps(self) -> defaultdict[int | None, list[tuple[int, int]]]:
        step = self._step
        few = step.filter(step.position <= MOST_WARM_UP)
        rows = few.order_by([ascending(few.rank), few.position]).select("rank", "start_ns", "ns")
        first: defaultdict[int | None, list[tuple[int, int]]] = defaultdict(list)
        for rank, start_ns, ns in self._engine.rows(rows):
            first[rank].append((start_ns, ns))
        return first

    def steady(self) -> Table:
        """Return the steps after the warm-up."""
        return self._step.filter(~self._is_warm_up())

    def block_medians(self) -> list[float] | None:
        """Return the median step of each tenth of the run, like `comparison.block_medians`."""
        counts = [each.times - self.warm_up[rank] for rank, each in self.figures.items()]
        if not counts or min(counts) < MIN_STEPS:
            return None
        steady = self.steady()
        steady = steady.select(
            "ns",
            place=ibis.row_number().over(
                ibis.window(group_by=steady.rank, order_by=[steady.position])
            ),
            count=steady.count().over(ibis.window(group_by=steady.rank)),
        )
        block = ((steady.place + 1) * BLOCKS - 1) // steady["count"]
        medians = medians_of(self._engine, steady.select("ns", block=block), ["block"])
        return [medians[number,] for number in range(BLOCKS)]

    def _is_warm_up(self) -> Any:
        step = self._step
        ranks: defaultdict[int, list[int | None]] = defaultdict(list)
        for rank, warm_up in self.warm_up.items():
            if warm_up:
                ranks[warm_up].append(rank)
        is_warm_up = FALSE
        for warm_up, some in ranks.items():
            is_one = step.rank.isin([rank for rank in some if rank is not None]).fill_null(FALSE)
            if None in some:
                is_one = is_one | step.rank.isnull()
            is_warm_up = is_warm_up | (is_one & (step.position < warm_up))
        return is_warm_up
