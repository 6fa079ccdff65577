"""Any division of relations into blocks, and any order of ranks in a block, gives the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import Block
from cirron_otel.core.run.report import report_of
from cirron_otel.core.run.run import Run
from cirron_otel.core.run.step_table import StepTable
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import training

from .spools import written

Blocks = Callable[[], Iterator[tuple[Block, Block]]]
LIMITS = thresholds_of("run", ("window.steps=7", "memory.steps=2"))


def rows_of(block: Block, places: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[places] for name, column in block.items()}


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
        "window": run.window(LIMITS),
        "device": run.device_ns,
        "columns": table.columns,
        "rows": sorted(map(repr, table.rows())),
        "points": [run.unit_points(each.rank, 3) for each in run.ranks],
    }


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(200, 40)))
def test_runs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(run_spool(seed), seed, tmp_path, monkeypatch)


def test_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(training(3, 30), 0, tmp_path, monkeypatch)


def check(files: Any, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, chance = written(folder, files), random.Random(seed)
    with open_run(reader, reader) as run:
        expected = figures(run)
    with open_run(reader, reader) as run:
        units, marks = list(divided(run, chance)), list(marks_divided(run, chance))
        monkeypatch.setattr(run.recording, "unit_blocks", lambda **_: iter(units))
        monkeypatch.setattr(run.recording, "mark_blocks", lambda: iter(marks))
        assert figures(run) == expected
