"""Any division of relations into blocks, and any order of ranks in a block, gives the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.analysis.verdicts.run_window import step_window
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.run.figures import breakdowns, durations
from cirron_otel.core.run.figures.durations import Durations
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import Block
from cirron_otel.core.run.report import report_of
from cirron_otel.core.run.run import Run
from cirron_otel.core.run.step_table import StepTable
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import training
from tests.kit.phase_times import PhaseTimes

from .spools import written

Blocks = Callable[[], Iterator[tuple[Block, Block]]]
LIMITS = thresholds_of("run", ("window.steps=7", "memory.steps=2"))


def rows_of(block: Block, places: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[places] for name, column in block.items()}


def with_peaks(units: Block) -> Block:
    """The units with a peak of device memory each, which the generated ones lack."""
    return {**units, "device_peak": 1000 + units["no"] % 97}


def divided(run: Run, chance: random.Random) -> Iterator[tuple[Block, Block]]:
    """The units in blocks of random sizes; in each block, the ranks are in a random order."""
    for units, parts in list(run.recording.unit_blocks()):
        counts = units["parts"]
        firsts, first = np.cumsum(counts) - counts, 0
        while first < len(counts):
            last = min(first + chance.randint(1, 5), len(counts))
            ranks = np.unique(units["rank"][first:last]).tolist()
            chance.shuffle(ranks)
            places = [p for rank in ranks for p in range(first, last) if units["rank"][p] == rank]
            inside = [at for p in places for at in range(firsts[p], firsts[p] + counts[p])]
            yield rows_of(units, np.array(places)), rows_of(parts, np.array(inside, np.int64))
            first = last


def marks_divided(run: Run, chance: random.Random) -> Iterator[Block]:
    """The marks in blocks of random sizes, which are in a random order."""
    blocks = []
    for block in run.recording.mark_blocks():
        first = 0
        while first < len(block["no"]):
            last = min(first + chance.randint(1, 5), len(block["no"]))
            blocks.append(rows_of(block, np.arange(first, last)))
            first = last
    chance.shuffle(blocks)
    yield from blocks


def figures(run: Run) -> dict[str, Any]:
    report = report_of(run)
    assert report.together is not None
    table = StepTable(run.recording, {})
    return {
        "report": report.to_json(),
        "together": report.together.to_json(),
        "window": step_window(run, LIMITS),
        "device": run.device_ns,
        "columns": table.columns,
        "rows": sorted(map(repr, table.rows())),
        "points": [run.unit_points(each.rank, 3) for each in run.ranks],
        "times": [(rank, start.tolist(), ns.tolist()) for rank, start, ns in run.unit_times()],
    }


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(200, 40)))
def test_runs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(run_spool(seed), seed, tmp_path, monkeypatch)


def test_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(training(3, 30), 0, tmp_path, monkeypatch)


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(100, 20)))
def test_ranges(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations are counted in ranges, and the times of units are read again."""
    monkeypatch.setattr(durations, "EXACT", seed % 4)
    monkeypatch.setattr(durations, "_AT_ONCE", 1 + seed % 3)
    monkeypatch.setattr(breakdowns, "_MOST_TIMES", seed % 2)
    check(run_spool(seed), seed, tmp_path, monkeypatch)
    (tmp_path / "ranks").mkdir()
    check(training(3, 30), seed, tmp_path / "ranks", monkeypatch)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**33), st.integers(0, 2**32 - 1), st.integers(-(2**62), 2**62)),
        max_size=60,
    )
)
def test_figures_of_a_table_are_exact(rows: list[tuple[int, int, int]]) -> None:
    """For each pair of columns: those of 32 bits, and longer or negative ones."""
    columns = dict(zip("abc", zip(*rows, strict=True) if rows else [(), (), ()], strict=True))
    for names in ("ab", "b", "bc", "abc"):
        table = np.array([columns[name] for name in names], np.int64)
        expected = [PhaseTimes(name, list(columns[name])).figures() for name in names]
        assert durations.table_figures(names, table) == expected


@given(st.lists(st.integers(-(2**62), 2**62) | st.integers(-300, 300), min_size=1, max_size=200))
def test_ranges_are_close(values: list[int]) -> None:
    """Medians and percentiles differ by half a percent at most, the other figures not at all."""
    expected = PhaseTimes("step", values).figures()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durations, "EXACT", 0)
        patch.setattr(durations, "_AT_ONCE", 7)
        counted = Durations()
        for first in range(0, len(values), 3):
            counted.add(np.array(values[first : first + 3]))
        found = counted.figures("step")
    assert replace(found, median_ns=0, percentiles={}) == replace(
        expected, median_ns=0, percentiles={}
    )
    for name, ns in expected.percentiles.items():
        assert abs(found.percentiles[name] - ns) <= abs(ns) * 0.005
    if len(values) % 2:  # else the median is a mean, of numbers that may nearly cancel out
        assert abs(found.median_ns - expected.median_ns) <= abs(expected.median_ns) * 0.005


def check(files: Any, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, chance = written(folder, files), random.Random(seed)
    with open_run(reader, reader) as run:
        complete = [(with_peaks(units), parts) for units, parts in run.recording.unit_blocks()]
        monkeypatch.setattr(run.recording, "unit_blocks", lambda **_: iter(complete))
        expected = figures(run)
    with open_run(reader, reader) as run:
        units, marks = list(divided(run, chance)), list(marks_divided(run, chance))
        units = [(with_peaks(some), parts) for some, parts in units]
        monkeypatch.setattr(run.recording, "unit_blocks", lambda **_: iter(units))
        monkeypatch.setattr(run.recording, "mark_blocks", lambda: iter(marks))
        assert figures(run) == expected
