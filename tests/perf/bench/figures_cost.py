"""The cost of the figures of many ranks, from synthetic blocks of units: time a row, and memory.

A row is one of the relations `unit` and `part`: a unit of four phases is five rows. The blocks are
created as they are read, and the time of that does not count. Each size is measured in a process of
its own, for its peak of memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.analysis.verdicts.window_keys import WindowKeys
from cirron_otel.core.analysis.verdicts.window_sums import WindowSums
from cirron_otel.core.run.figures.breakdowns import RankFold
from cirron_otel.core.run.figures.ledger_fold import LedgerFold
from cirron_otel.core.run.figures.outside import OutsideScopes
from cirron_otel.core.run.figures.slowest import SlowestFold
from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.core.run.load.lanes import RankSums
from cirron_otel.core.run.load.tree import ScopeTree
from cirron_otel.core.run.relations import ABSENT, UNIT, Block, Texts
from tests.kit.wheels import ROOT

ROW_BAR_NS, MEMORY_BAR_MB = 200, 300
_AT_ONCE = 1 << 13
_START = 10**18
_BACKWARD_END = 6 * 10**6
_SLOW_RANK = 99
_PHASES = ("data_load", "forward", "backward", "optimizer_step")


@dataclass(frozen=True)
class FigureSizes:
    """How much is measured: ranks, and units of each."""

    sizes: tuple[tuple[int, int], ...] = ((1, 1_000_000), (1_000, 1_000), (10_000, 1_000))


TINY = FigureSizes(((3, 100), (100, 10)))
"""Enough to see that everything runs."""


def section(sizes: FigureSizes = FigureSizes()) -> None:
    """Print the time a row and the peak of memory of each size."""
    print(f"figures of synthetic units (bars {ROW_BAR_NS} ns a row, {MEMORY_BAR_MB} MB)")
    for ranks, units in sizes.sizes:
        command = [sys.executable, "-m", __spec__.name, str(ranks), str(units)]
        subprocess.run(command, cwd=ROOT, check=True)


def blocks(texts: Texts, ranks: int, units: int) -> Iterator[tuple[Block, Block]]:
    """Yield units of four phases by rank and start, in blocks."""
    tokens, random = [texts.token(name) for name in _PHASES], np.random.default_rng(1)
    for first in range(0, ranks * units, _AT_ONCE):
        at = np.arange(first, min(first + _AT_ONCE, ranks * units))
        count, rank, number = len(at), at // units, at % units
        rows = {name: np.full(count, ABSENT, np.int64) for name in UNIT} | {
            "no": at * 5, "id_high": at, "id_low": at, "parent": np.full(count, -1), "rank": rank,
            "pid": rank, "idx": number, "start_ns": _START + number * 10**7,
            "ns": random.integers(8_000_000, 10**7, count), "error": np.full(count, -1),
            "flags": np.zeros(count, np.int64), "parts": np.full(count, len(tokens)),
        }  # fmt: skip
        phases = random.integers(10**6, 2 * 10**6, (count, len(tokens)))
        # All ranks end the backward pass together: each one waits there for the slowest.
        phases[rank % _SLOW_RANK == 0, 1] += 10**6
        phases[:, 2] = _BACKWARD_END - phases[:, :2].sum(axis=1)
        ahead = np.cumsum(phases, axis=1) - phases
        yield (
            rows,
            {
                "unit": np.repeat(rows["no"], len(tokens)),
                "no": (rows["no"][:, None] + np.arange(1, len(tokens) + 1)).ravel(),
                "name": np.tile(tokens, count),
                "ns": phases.ravel(),
                "gpu_ns": np.full(count * len(tokens), ABSENT, np.int64),
                "start_ns": (rows["start_ns"][:, None] + ahead).ravel(),
                "wall_ns": phases.ravel(),
            },
        )


class _Clock:
    """Adds up the CPU time of calls."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def __call__(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.process_time()
        result = call(*arguments)
        self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - begun
        return result


def measure(ranks: int, units: int) -> None:
    """Print the cost of all figures of so many units."""
    texts, clock = Texts(), _Clock()
    spans = RankSums(5 * units, _START, _START + units * 10**7)
    of_ranks = RankFold(texts)
    outside = OutsideScopes(ScopeTree({}), (), texts)
    ledger = LedgerFold(texts, dict.fromkeys(range(ranks), spans), outside, lambda _: None)
    slowest = SlowestFold(texts, 10)
    keys = WindowKeys(texts, lambda token: token, thresholds_of("run"))
    for rows, parts in blocks(texts, ranks, units):
        clock("ranks", of_ranks.add, rows, parts)
        clock("ledger", ledger.add, rows, parts)
        clock("slowest", slowest.add, rows, parts)
        clock("window", keys.add, rows)
    clock("ranks", of_ranks.finish)
    found = clock("ledger", ledger.finish)
    clock("conclude", conclude, Facts(ledger=found))
    chosen = clock("window", keys.choose)
    window = WindowSums(texts, chosen, lambda block: np.zeros(len(block["no"]), np.int64))
    for rows, parts in blocks(texts, ranks, units):
        clock("sums", window.add, rows, parts)
    clock("sums", window.finish)
    clock("sums", window.ranks)
    count, total = ranks * units, sum(clock.spent.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    each = ", ".join(f"{name} {spent / count * 1e9:.0f}" for name, spent in clock.spent.items())
    unit_ns, rows = total / count * 1e9, 1 + len(_PHASES)
    row_ns = unit_ns / rows
    above = ", ABOVE" if row_ns > ROW_BAR_NS or peak > MEMORY_BAR_MB else ""
    print(
        f"  {ranks:>6,} ranks x {units:>9,} units, {row_ns:4.0f} ns a row, {unit_ns:5.0f} ns a unit"
        f" of {rows} rows ({each}), {peak:4.0f} MB{above}"
    )


if __name__ == "__main__":
    measure(*map(int, sys.argv[1:]))
