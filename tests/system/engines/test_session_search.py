"""The runs of batches that do not name their session are the same in tables and in a spool."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.runs import SpoolRuns, read_runs
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.source import opened_tables
from cirron_otel.core.spool.reader import SpoolReader
from tests.core.columns.helpers import TINY, add, of_run
from tests.kit.generators.trees import SESSION, random_spool, training
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    mark,
    span,
)
from tests.kit.spools.recorded import NAMES, SPOOLS

from .documents import Files
from .test_report import files_of


def both(files: Files, folder: Path) -> tuple[SpoolRuns, SpoolRuns]:
    """The runs by DuckDB and by Python."""
    (folder / "s" / "spool").mkdir(parents=True)
    for name, data in files:
        (folder / "s" / "spool" / name).write_bytes(data)
    add(folder / "c", files, TINY)
    reader = SpoolReader(folder / "s")
    with opened_tables(ColumnarBatches(folder / "c"), reader) as tables:
        return tables.runs, read_runs(reader)


def see_same(files: Files, folder: Path) -> SpoolRuns:
    found, expected = both(files, folder)
    assert asdict(found) == asdict(expected)
    return found


def written(batches: Iterable[dict[str, Any]]) -> Files:
    return [
        (f"{each['created_ns']:020d}-{each['batch_id']}.json", encoded(each)) for each in batches
    ]


@pytest.mark.parametrize("name", NAMES)
def test_recordings(name: str, tmp_path: Path) -> None:
    assert see_same(files_of(SPOOLS / name), tmp_path).runs


@pytest.mark.parametrize("seed", range(24))
def test_random_trees(seed: int, tmp_path: Path) -> None:
    """With small numbers of spans as well: then most are topmost, or in no session."""
    files = random_spool(seed, size=(120, 12, 40)[seed % 3])
    runs = see_same(files, tmp_path)
    assert runs.runs or runs.unassigned


@pytest.mark.parametrize("seed", range(12))
def test_random_processes(seed: int, tmp_path: Path) -> None:
    """Sessions of several ranks and processes, of which ends, epochs and whole batches are lost."""
    chance = random.Random(seed)
    spans: list[dict[str, Any]] = []
    marks = []
    number = 0
    for process in range(chance.randint(1, 6)):
        fields = {"rank": chance.choice([process % 3, None]), "pid": chance.choice([1, process])}
        begun = EPOCH_NS + chance.randrange(5) * 1000
        session = number
        for epoch in range(number + 1, number + 1 + 4 * chance.randint(1, 3), 4):
            kind = chance.choice(["epoch", "epoch", "request"])
            spans.append(
                span(epoch, session, name=kind, start_ns=begun, end_ns=begun + 400, **fields)
            )
            for inner in range(1, 4):
                parent = chance.choice([epoch, epoch + inner - 1])
                name = chance.choice(["step", "batch", "forward"])
                spans.append(
                    span(epoch + inner, parent, name=name, start_ns=begun + inner, **fields)
                )
                marks.append(mark(1000 + epoch + inner, epoch + inner))
            number = epoch + 3
        end = chance.choice([{}, {"otel": SESSION}, {"otel": _ended("INCOMPLETE: x")}])
        spans.append(span(session, name="cirron.session", start_ns=begun, end_ns=begun + 900,
                          **fields, **end))  # fmt: skip
        number += 1
    spans = [each for each in spans if chance.random() < 0.85]
    chance.shuffle(spans)
    count = chance.randint(2, 6)
    batches = [made(n, spans=spans[n::count]) for n in range(count)]
    batches += [made(count, marks=marks[::2]), made(count + 1, marks=[mark(5000, 4999)])]
    batches[0]["marks"] = marks[1::2]
    found = see_same(written(batches), tmp_path)
    assert made(count + 1)["batch_id"] in {name[21:53] for name in found.unassigned}


def _ended(message: str) -> dict[str, Any]:
    return {"status": {"code": 2, "message": message}}


def test_runs_that_name_their_session_beside_others(tmp_path: Path) -> None:
    files = [of_run(1, "first", records=30), of_run(2, "second", records=30)]
    found = see_same([*files, *training(ranks=2, steps=5)], tmp_path)
    assert [run.is_recorded for run in found.runs].count(False) == 1
    assert len(found.runs) == 3


def test_an_id_in_two_sessions(tmp_path: Path) -> None:
    spans = [
        span(0, name="cirron.session", pid=1), span(1, name="cirron.session", pid=2),
        span(2, 0, name="epoch", pid=1), span(2, 1, name="epoch", pid=2),
        span(3, 2, name="step"), span(4, 3, name="forward"),
    ]  # fmt: skip
    see_same(written([made(0, spans=spans[:3]), made(1, spans=spans[3:])]), tmp_path)


def test_a_circle_belongs_to_no_session(tmp_path: Path) -> None:
    spans = [span(1, 2), span(2, 1), span(3, 3), span(4, 3), span(5, name="cirron.session")]
    files = written([made(0, spans=spans[:4]), made(1, spans=spans[4:])])
    found = see_same(files, tmp_path)
    assert found.unassigned == {files[0][0]}


def test_odd_batches(tmp_path: Path) -> None:
    spans = [span(number, 0, index=index) for number, index in ((1, 1), (2, "two"), (3, "three"))]
    see_same(written(made(n, spans=[each]) for n, each in enumerate(spans)), tmp_path)


def test_deep_levels(tmp_path: Path) -> None:
    spans = [span(0, name="cirron.session")]
    spans += [span(number, number - 1, name="mine") for number in range(1, 100)]
    see_same(written([made(0, spans=spans)]), tmp_path)


@pytest.mark.parametrize("place", ["id", "parent_id"])
def test_an_id_that_is_not_valid_text(place: str, tmp_path: Path) -> None:
    """Half of a surrogate pair: the batch is expanded, and DuckDB cannot store the id."""
    odd = span(2, 1) | {place: "\ud800"}
    batches = [made(0, spans=[span(1, name="cirron.session")]), made(1, spans=[odd])]
    files = [
        (f"{each['created_ns']:020d}-{each['batch_id']}.json", json.dumps(each).encode())
        for each in batches
    ]
    see_same(files, tmp_path)
