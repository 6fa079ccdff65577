"""The document of a job whose batches are read while it runs equals one that is read later."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from cirron_otel.core.run.load import reducer
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.reader import BatchFile, SpoolReader
from cirron_otel.errors import InputError
from cirron_otel.tools.cli import job_report
from cirron_otel.tools.cli.job_report import JobReport
from cirron_otel.tools.cli.run_summary import RunBatches, conclusion_of
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import random_spool, training
from tests.kit.spools.deliveries import until

Files = list[tuple[str, bytes]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_report, "_POLL_S", 0.01)


def batches_of(folder: Path) -> RunBatches:
    """All batches of a spool: the ids of made records have 16 zeros."""
    (folder / "spool").mkdir(parents=True)
    return RunBatches(SpoolPaths.under(folder), frozenset(), "0" * 32, "no owner")


def write(batches: RunBatches, files: Files) -> None:
    for name, data in files:
        (batches.paths.spool / f"{name}.part").write_bytes(data)
        (batches.paths.spool / f"{name}.part").rename(batches.paths.spool / name)


def check(folder: Path, files: Files) -> JobReport:
    """Write half of the files, the others when these were read, and compare the reports."""
    batches = batches_of(folder)
    report = JobReport(batches)
    half = files[: len(files) // 2]
    write(batches, half)
    count = sum(name.endswith(".json") for name, _ in half)
    until(lambda: report._has_failed or len(report._seen) == count)
    write(batches, files[len(half) :])
    assert report.result().document.to_json() == conclusion_of(batches).document.to_json()
    assert not report._thread.is_alive()
    return report


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11])
def test_runs(seed: int, tmp_path: Path) -> None:
    check(tmp_path, sorted(dict(run_spool(seed)).items()))


def test_a_training_is_read_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read again at the end."""

    def again(_: RunBatches) -> None:
        raise AssertionError("all batches are read again")

    monkeypatch.setattr("cirron_otel.tools.cli.run_summary.conclusion_of", again)
    check(tmp_path, sorted(training(3, 60)))


def test_without_a_thread_all_is_read_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because the number of processes is limited."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    batches = batches_of(tmp_path)
    write(batches, sorted(training(1, 30)))
    monkeypatch.setattr(threading.Thread, "start", start)
    assert (
        JobReport(batches).result().document.to_json() == conclusion_of(batches).document.to_json()
    )


def test_a_batch_that_cannot_be_read_for_a_while_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, files = batches_of(tmp_path), sorted(training(1, 30))
    write(batches, files)
    read, refused = SpoolReader.read, set[str]()

    def once_refused(self: SpoolReader, name: str, **options: bool) -> BatchFile | None:
        if name not in refused:
            refused.add(name)
            return None
        return read(self, name, **options)

    monkeypatch.setattr(SpoolReader, "read", once_refused)
    report = JobReport(batches)
    until(lambda: len(report._seen) == len(files))
    assert report.result().document.to_json() == conclusion_of(batches).document.to_json()


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_trees_that_need_a_database(seed: int, tmp_path: Path) -> None:
    check(tmp_path, sorted(random_spool(seed)))


def test_after_an_error_all_batches_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = reducer.Reducer.add_batch
    calls = []

    def failing(self: reducer.Reducer, batch: object) -> None:
        calls.append(batch)
        if len(calls) == 2:
            raise OSError("no room")
        added(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(reducer.Reducer, "add_batch", failing)
    assert check(tmp_path, sorted(training(1, 60)))._has_failed


def test_a_spool_that_is_removed(tmp_path: Path) -> None:
    batches = batches_of(tmp_path)
    report = JobReport(batches)
    shutil.rmtree(batches.paths.spool)
    with pytest.raises(InputError, match="contains no spool"):
        report.result()
    assert not report._thread.is_alive()


def test_the_thread_has_the_lowest_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def read(_: JobReport, *, is_last: bool) -> None:
        if not is_last:
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    monkeypatch.setattr(JobReport, "_read", read)
    report = JobReport(batches_of(tmp_path))
    until(lambda: bool(found))
    report._stop.set()
    report._thread.join()
    assert found[0] == 19
    assert os.getpriority(os.PRIO_PROCESS, 0) < 19
