"""A report from an engine is equal to the one in Python, to the digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.index import run_index
from cirron_otel.core.analysis.run_report import report_run
from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.engine_report import report_of
from cirron_otel.core.engines.source import opened_run
from cirron_otel.core.engines.unsupported import NeedsPythonError
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.tools.cli.demo import RECORDING
from tests.columns.helpers import TINY, add
from tests.engines.generated import random_spool, training
from tests.spool.recorded import NAMES, SPOOLS

Files = list[tuple[str, bytes]]


def in_python(files: Files, folder: Path) -> dict[str, Any]:
    (folder / "spool").mkdir(parents=True)
    for name, data in files:
        (folder / "spool" / name).write_bytes(data)
    reader = SpoolReader(folder)
    with run_index(reader) as index:
        return report_run(index, 5, reader).to_json()


def in_duckdb(files: Files, folder: Path, limits: WriterLimits = TINY) -> dict[str, Any]:
    add(folder, files, limits)
    with opened_run(ColumnarBatches(folder)) as run:
        return report_of(run, 5).to_json()


def files_of(spool: Path) -> Files:
    return [(batch.name, batch.data) for batch in SpoolReader(spool)]


@pytest.mark.parametrize("name", NAMES)
def test_recordings(name: str, tmp_path: Path) -> None:
    files = files_of(SPOOLS / name)
    assert in_duckdb(files, tmp_path / "c") == in_python(files, tmp_path / "s")


def test_the_recording_of_the_demo(tmp_path: Path) -> None:
    files = files_of(RECORDING)
    assert in_duckdb(files, tmp_path / "c") == in_python(files, tmp_path / "s")


@pytest.mark.parametrize("seed", [*range(10), 13, 21])
def test_random_trees(seed: int, tmp_path: Path) -> None:
    files = random_spool(seed)
    expected = in_python(files, tmp_path / "s")
    assert expected["spans"] > 90
    assert in_duckdb(files, tmp_path / "c") == expected


def test_a_training_of_several_ranks_with_a_straggler(tmp_path: Path) -> None:
    files = training(ranks=3, steps=40)
    report = in_duckdb(files, tmp_path / "c", WriterLimits())
    assert report == in_python(files, tmp_path / "s")
    assert report["straggler"]["rank"] == 1
    assert report["primary_verdict"]["kind"] == "COMPUTE_STRAGGLER"
    assert [each["steps"]["times"] for each in report["ranks"]] == [80] * 3


def test_the_comparison_notices_a_changed_name(tmp_path: Path) -> None:
    files = training(ranks=1, steps=40)
    changed = [(name, data.replace(b'"name":"loss"', b'"name":"lost"')) for name, data in files]
    assert in_duckdb(changed, tmp_path / "c") != in_python(files, tmp_path / "s")


def test_a_recording_without_records(tmp_path: Path) -> None:
    assert in_duckdb([], tmp_path / "c") == in_python([], tmp_path / "s")


@pytest.mark.parametrize(
    "changes",
    [
        [(b'"name":"loss"', b'"name":"digest.loss"')],
        [(b'"rank":0', b'"rank":-1'), (b'"rank":1', b'"rank":null')],
        [(b'"gpu_ns":null', b'"gpu_ns":4611686018427387904')],
    ],
)
def test_records_that_only_python_reads_are_named(
    changes: list[tuple[bytes, bytes]], tmp_path: Path
) -> None:
    files = training(ranks=2, steps=2)
    for change in changes:
        files = [(name, data.replace(*change)) for name, data in files]
    add(tmp_path, files)
    with pytest.raises(NeedsPythonError), opened_run(ColumnarBatches(tmp_path)):
        pass
