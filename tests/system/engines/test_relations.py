"""The relations of an engine are equal to those of Python, row by row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.core.engines.unsupported import NeedsPythonError
from cirron_otel.core.run.engines.columns import halves, tokens
from cirron_otel.core.run.files import RunFiles
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import UNIT, Texts
from cirron_otel.core.run.report import report_of
from cirron_otel.core.run.run import Run
from cirron_otel.semconv import OVERHEAD_NS, SESSION
from tests.core.columns.helpers import TINY, add, add_with_killed_compaction
from tests.kit.examples import examples
from tests.kit.generators.cpu_waits import with_cpu_waits
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trainings import with_trainings
from tests.kit.generators.trees import hostile, random_spool, training
from tests.kit.spools.made import encoded, made, mark, span

from .relations import (
    FEW,
    Files,
    engine_recording,
    has_other_units,
    in_columns,
    in_engine,
    in_one_pass,
    reader_of,
    storable,
)  # fmt: skip
from .test_report import RECORDINGS, files_of

MANY = 40


def assert_equal(files: Files, folder: Path, limits: WriterLimits = TINY) -> dict[str, Any]:
    """The relations of DuckDB equal those of an index, and of one pass if that is possible."""
    expected = in_columns(files, folder / "s")
    add(folder / "c", files, limits)
    assert in_engine(folder / "c") == expected
    reduced = in_one_pass(files, folder / "s")
    assert reduced is None or reduced == expected
    return expected


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings(name: str, tmp_path: Path) -> None:
    assert_equal(files_of(RECORDINGS[name]), tmp_path)


RUNS = (0, 1, 2, 3, 4, 5, 6, 7)
"""One seed for each producer of `run_spool`."""
TREES = (0, 1, 5, 9)
"""Random trees with repeated spans, step summaries, odd records, and steps inside each other."""


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", [*RUNS, *range(len(RUNS), len(RUNS) + examples(MANY, 0))])
def test_runs(seed: int, tmp_path: Path) -> None:
    files = storable(with_cpu_waits(seed, with_trainings(seed, run_spool(seed))))
    if has_other_units(files):
        add(tmp_path / "c", files, TINY)
        with pytest.raises(NeedsPythonError):
            in_engine(tmp_path / "c")
    else:
        assert_equal(files, tmp_path)


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", [*TREES, *range(100, 100 + examples(MANY, 0))])
def test_random_trees(seed: int, tmp_path: Path) -> None:
    assert_equal(with_cpu_waits(seed, with_trainings(seed, random_spool(seed))), tmp_path)


NUMBERS: list[tuple[Any, int]] = [
    (2, 2), (-1, -1), (-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1), (2**63, 0), (1.0, 0), (2.5, 0),
    ("1", 0), (True, 0), (None, 0), ([1], 0),
]  # fmt: skip


def test_the_training_of_a_unit_is_an_integer_attribute_or_0(tmp_path: Path) -> None:
    spans = [span(number, attrs={"training": value}) for number, (value, _) in enumerate(NUMBERS)]
    spans.append(span(99, attrs={"note": "training", "nested": {"training": 1}}))
    batch = made(0, spans=spans)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    found = assert_equal(files, tmp_path)
    place = list(UNIT).index("training") - len(UNIT)
    assert [row[place] for row in found["units"]] == [*(number for _, number in NUMBERS), 0]


def test_marks_of_evaluations_around_and_inside_units(tmp_path: Path) -> None:
    scopes = {
        2: (None, "eval"), 3: (2, "step"), 4: (3, "forward"),
        5: (None, "step"), 6: (5, "eval"), 7: (6, "mine"), 8: (7, "mine"), 9: (8, "loss"),
        10: (5, "mine"), 11: (10, "step"), 12: (11, "eval"), 13: (12, "loss"), 14: (11, "loss"),
    }  # fmt: skip
    spans = [span(number, parent, name=name) for number, (parent, name) in scopes.items()]
    marks = [mark(number, number, name="loss", value=number) for number in scopes]
    batch = made(0, spans=spans, marks=marks)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    found = assert_equal(files, tmp_path)
    # The value, whether it is of an evaluation, and whether that is inside the unit.
    assert [(row[7], row[3], row[11]) for row in found["marks"]] == [
        (2, 1, 0), (3, 1, 0), (4, 1, 0), (5, 0, 0), (6, 1, 1), (7, 1, 1), (8, 1, 1), (9, 0, 1),
        (10, 0, 0), (11, 0, 0), (12, 1, 1), (13, 1, 1), (14, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("length", range(1, 6))
def test_evaluations_in_a_unit_whose_parents_are_in_a_cycle(length: int, tmp_path: Path) -> None:
    """Scopes 2, 3, ... are in the cycle; the unit 20 is inside, with scopes in each other."""
    ring = range(2, 2 + length)
    scopes: dict[int, tuple[int, str]] = {
        number: (ring[place - 1], "eval" if place == 0 else "mine")
        for place, number in enumerate(ring)
    }
    scopes |= {20: (2, "step"), 30: (20, "eval"), 21: (20, "mine")}
    scopes |= {number: (number - 1, "mine") for number in (*range(31, 39), *range(22, 30))}
    spans = [span(number, parent, name=name) for number, (parent, name) in scopes.items()]
    marks = [mark(number, number, name="loss", value=number) for number in sorted(scopes)]
    batch = made(0, spans=spans, marks=marks)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    found = assert_equal(files, tmp_path)
    assert {row[7] for row in found["marks"] if row[11]} == set(range(30, 39))


def test_overhead_marks_count_if_their_value_is_not_finite(tmp_path: Path) -> None:
    """A text such as "nan" is a value, and no figure needs those of overhead marks."""
    values: list[dict[str, Any]] = [
        {"value": 7, "value_type": "int"}, {"value": "nan", "value_type": "string"},
        {"value": None, "value_nonfinite": "nan", "value_type": "float"},
    ]  # fmt: skip
    marks = [mark(number, 1, name=OVERHEAD_NS, **each) for number, each in enumerate(values, 2)]
    batch = made(0, spans=[span(1, name="step")], marks=marks)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    assert len(assert_equal(files, tmp_path)["marks"]) == 1


def test_texts_that_are_hard_to_quote(tmp_path: Path) -> None:
    found = assert_equal(hostile(), tmp_path)
    assert found["units"]
    assert found["marks"]


def test_batches_in_two_groups_count_once(tmp_path: Path) -> None:
    files = training(ranks=2, steps=20, seed=1)
    add_with_killed_compaction(tmp_path / "c", files)
    assert in_engine(tmp_path / "c") == in_columns(files, tmp_path / "s")


def test_a_recording_without_records(tmp_path: Path) -> None:
    found = assert_equal([], tmp_path)
    assert not found["units"]


def test_blocks_are_as_small_as_asked_for(tmp_path: Path) -> None:
    add(tmp_path, training(ranks=2, steps=20))
    with engine_recording(tmp_path) as recording:
        sizes = [(len(units["no"]), len(parts["no"])) for units, parts in recording.unit_blocks()]
        marks = [len(block["no"]) for block in recording.mark_blocks()]
        whole = [len(units["no"]) for units, _ in engine_blocks(tmp_path)]
    assert max(units for units, _ in sizes) == FEW
    assert sum(units for units, _ in sizes) == sum(whole) == 80
    assert len(whole) == 1
    assert max(marks) == FEW


@pytest.mark.parametrize("seed", [0, 3, None], ids=str)
def test_reports_of_these_relations_are_equal(seed: int | None, tmp_path: Path) -> None:
    files = training(ranks=3, steps=40) if seed is None else storable(run_spool(seed))
    reader = reader_of(files, tmp_path / "s")
    with open_run(reader, reader) as run:
        expected = report_of(run).to_json()
    add(tmp_path / "c", files)
    with engine_recording(tmp_path / "c") as recording:
        assert report_of(Run(recording, RunFiles.of(reader))).to_json() == expected


def engine_blocks(folder: Path) -> list[Any]:
    """All blocks of units and parts, of the usual size."""
    with engine_recording(folder, size=1 << 16) as recording:
        return list(recording.unit_blocks())


def test_units_whose_session_depends_on_their_time(tmp_path: Path) -> None:
    """Two sessions of one process, and steps of a scope that was not recorded."""
    second = 1_000_000_000
    spans = [
        span(number, None, name=SESSION, index=None, start_ns=at * second,
             end_ns=(at + 10) * second)
        for number, at in ((1, 100), (2, 200))
    ]  # fmt: skip
    for number, at in ((10, 101), (11, 202), (12, 102), (13, 900)):
        spans.append(span(number, 99, index=number, start_ns=at * second,
                          end_ns=at * second + 500))  # fmt: skip
        spans.append(span(number + 10, number, name="forward", start_ns=at * second,
                          end_ns=at * second + 300))  # fmt: skip
    batch = made(0, spans=spans, marks=[mark(0, 20, name="loss")])
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    found = assert_equal(files, tmp_path)
    assert found["unit_sessions"] == [0, 0, 1, 2]
    assert [each.spans for each in found["sessions"]] == [5, 3, 2]


def test_a_step_that_ends_before_its_start_has_the_extent_of_its_phases(tmp_path: Path) -> None:
    start = 10**18
    spans = [
        span(1, 9, start_ns=start, end_ns=start - 1),
        span(2, 1, name="forward", start_ns=start, end_ns=start),
    ]
    batch = made(0, spans=spans)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    found = assert_equal(files, tmp_path)
    ((spans, first_ns, last_ns, *_),) = found["extents"].values()
    assert (spans, first_ns, last_ns) == (2, start, start)


def test_tokens_and_ids_of_a_column_are_those_of_each_text() -> None:
    texts, ids = Texts(), ["0", "00", "17", "9" * 17, "9" * 18, None, "-1", "a", "é\0", "", "a"]
    found = tokens(pa.array(ids), texts).tolist()
    assert [texts.text(each) for each in found] == ids
    assert found == [texts.token(each) for each in ids]
    some = ["00" * 16, "f" * 32, "F" * 32, "80" + "0" * 30, None, "x", "0" * 31 + "é", "1" * 31]
    column = pa.array(["skipped", *some])[1:]
    high, low = halves(column, texts)
    assert [*zip(high.tolist(), low.tolist(), strict=True)] == [texts.halves(id_) for id_ in some]
    assert [texts.id_of(*pair) for pair in zip(high.tolist(), low.tolist(), strict=True)] == some
    assert halves(pa.array([], pa.string()), texts)[0].dtype == np.int64


_PROGRAM = """
import sys
from pathlib import Path
from cirron_otel.core.engines.duckdb_engine import DuckDBEngine
from tests.system.engines.relations import engine_recording
opened = DuckDBEngine.put
def put(engine, *arguments):
    bar = engine._connection.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    print(bar[0])
    return opened(engine, *arguments)
DuckDBEngine.put = put
with engine_recording(Path(sys.argv[1])):
    pass
"""


def test_no_progress_bar_is_printed_in_an_interactive_interpreter(tmp_path: Path) -> None:
    """A program without a file is interactive for DuckDB, which prints the bar to stdout."""
    add(tmp_path, training(ranks=1, steps=2))
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"False"}
