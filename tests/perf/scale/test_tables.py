"""The tables of exported summaries, compared with those of the complete batches."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import cirron_otel as ci
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.exported_part import exported_part
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.tools.convert.convert import ConvertRequest, convert

from .ranks import Job, SimulatedRank
from .test_export_budget import exported

Rows = list[dict[str, Any]]
JOB = Job.of(16, 20, 7, 2)


def spool_of(batches: Iterable[SealedBatch], directory: Path) -> str:
    writer = SpoolWriter(directory, durable=False)
    for batch in batches:
        writer.write(batch.data, batch.name)
    return str(directory)


def steps_of(source: str) -> Rows:
    with ci.read(source) as recording:
        rows: Rows = recording.steps().to_arrow().to_pylist()
        assert recording.findings == []
    return sorted(rows, key=lambda row: (row["start_ns"], row["span_id"]))


@pytest.fixture(scope="module")
def complete() -> list[SealedBatch]:
    return [each.batch for rank in JOB.present for each in SimulatedRank(JOB, rank).batches()]


@pytest.fixture(scope="module")
def parts(complete: list[SealedBatch]) -> list[SealedBatch]:
    return [exported_part(batch) for batch in complete]


@pytest.fixture(scope="module")
def expected(complete: list[SealedBatch], tmp_path_factory: pytest.TempPathFactory) -> Rows:
    rows = steps_of(spool_of(complete, tmp_path_factory.mktemp("complete")))
    assert len(rows) > 15 * 80
    assert {"phase_forward_ns", "mark_loss"} <= rows[0].keys()
    return rows


def test_steps_of_a_store(parts: list[SealedBatch], expected: Rows, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with Storage.open(url) as storage:
        storage.write(parts)
    assert steps_of(url) == expected


def test_steps_of_parquet(parts: list[SealedBatch], expected: Rows, tmp_path: Path) -> None:
    spool = spool_of(parts, tmp_path / "parts")
    target = f"parquet:{tmp_path / 'columns'}"
    assert convert(ConvertRequest(source=spool, target=target)).exit_code == 0
    assert steps_of(target) == expected


def test_steps_as_csv(parts: list[SealedBatch], expected: Rows, tmp_path: Path) -> None:
    spool = spool_of(parts, tmp_path / "parts")
    target = tmp_path / "steps.csv"
    assert convert(ConvertRequest(source=spool, target=str(target))).exit_code == 0
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(expected)
    durations = {row["span_id"]: row["phase_forward_ns"] for row in rows}
    assert durations == {row["span_id"]: str(row["phase_forward_ns"]) for row in expected}


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_any_shape(seed: int, tmp_path: Path) -> None:
    _, some = exported([(seed % 7 + 3, 20, 10, 0)] * 12, 1 + seed % 5 * 3, seed)
    complete = spool_of([batch for _, batch, *_ in some], tmp_path / "complete")
    assert steps_of(spool_of([part for _, _, part, _ in some], tmp_path / "parts")) == steps_of(
        complete
    )


def test_the_views_of_the_docs_have_every_step_and_phase(
    complete: list[SealedBatch], parts: list[SealedBatch], tmp_path: Path
) -> None:
    """Some batches arrive as summaries, some completely, and some in both ways."""
    text = (Path(__file__).parents[3] / "docs" / "columns.md").read_text()
    views = re.findall(r"^CREATE VIEW (?:spans|steps|phases) .*?;$", text, re.DOTALL | re.MULTILINE)
    assert len(views) == 3

    def rows_of(batches: list[SealedBatch], name: str) -> tuple[list[Any], list[Any]]:
        spool = spool_of(batches, tmp_path / name)
        convert(ConvertRequest(source=spool, target=f"parquet:{tmp_path}/{name}/columns"))
        with duckdb.connect() as connection:
            for view in views:
                connection.execute(view.replace("'columns/", f"'{tmp_path}/{name}/columns/"))
            fields = "id, run_id, session_id, rank, index, start_ns, end_ns"
            steps = connection.execute(f"SELECT {fields} FROM steps ORDER BY ALL").fetchall()
            return steps, connection.execute("SELECT * FROM phases ORDER BY ALL").fetchall()

    steps, phases = rows_of(complete, "complete")
    assert len(phases) == 4 * len(steps) > 4 * 15 * 80
    assert rows_of(parts, "parts") == (steps, phases)
    assert rows_of([*parts, *complete[::3]], "both") == (steps, phases)
