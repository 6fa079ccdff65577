"""Records that no SDK writes: repeated, without ids, with numbers at the limits, damaged times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.analysis.verdicts.run_window import diagnose_batches
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.run.load.reducer import Reducer
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.semconv import JOB, SESSION
from tests.kit.spools.made import EPOCH_NS, encoded, made, mark, span
from tests.kit.spools.reports import reported

from .spools import written

Records = list[dict[str, Any]]
MS = 1_000_000
LEAST = -(2**63)


def spool(folder: Path, *batches: tuple[Records, Records]) -> SpoolReader:
    return written(folder, [
        (f"{EPOCH_NS + number:020d}-{number:032x}.json",
         encoded(made(number, spans=spans, marks=marks)))
        for number, (spans, marks) in enumerate(batches, 1)
    ])  # fmt: skip


def report(folder: Path, *batches: tuple[Records, Records]) -> RunReport:
    reader = spool(folder, *batches)
    return reported(reader, reader)


def steps(count: int = 5, first: int = 1, **changes: Any) -> Records:
    """Steps of 10 ms, one after the other."""
    return [
        span(number, None, index=number - first, start_ns=EPOCH_NS + number * 10 * MS,
             end_ns=EPOCH_NS + number * 10 * MS + 10 * MS, **changes)
        for number in range(first, first + count)
    ]  # fmt: skip


def test_a_repeated_mark_counts_once(tmp_path: Path) -> None:
    """A forked child inherits its parent's marks, and writes them with spans of its own."""
    marks = [mark(900, 1, name="loss", value=1.5), mark(901, 2, name="loss", value=0.5)]
    found = report(tmp_path, (steps(), marks), (steps(3, 100), marks))
    assert [(each.name, each.count) for each in found.marks] == [("loss", 2)]


@pytest.mark.parametrize("ts_ns", [2**63 - 1, 2**63, 2**70, LEAST, -(2**70)])
def test_times_of_marks(ts_ns: int, tmp_path: Path) -> None:
    marks = [mark(900, 1, name="loss", value=1.5, ts_ns=ts_ns)]
    assert report(tmp_path, (steps(), marks)).marks[0].count == 1


LIMITS = (2**63 - 1, 2**63, 2**70, LEAST, LEAST + 1, -(2**70))
FIELDS = ("start_ns", "end_ns", "rank", "pid", "thread_id", "gpu_ns", "memory_peak_bytes")


@pytest.mark.parametrize(
    ("field", "value"),
    # The rank -2**63 is the missing rank of a relation.
    [(field, each) for field in FIELDS for each in LIMITS if (field, each) != ("rank", LEAST)],
)
def test_numbers_at_the_limits(field: str, value: int, tmp_path: Path) -> None:
    """In a step, in a phase, and in a scope outside of steps."""
    odd = {field: value}
    spans = [
        *steps(), span(50, 1, name="forward", **odd), span(51, None, name="mine", **odd),
        span(52, None, index=9, **odd),
    ]  # fmt: skip
    assert report(tmp_path, (spans, [])).spans == 8


def test_times_that_do_not_fit_together(tmp_path: Path) -> None:
    """Each forward pass begins in 1970, because of a damaged clock."""
    spans = steps(60)
    spans += [
        span(1000 + number, number, name="forward", start_ns=0, end_ns=EPOCH_NS + number * 10 * MS)
        for number in range(1, 61)
    ]
    found = report(tmp_path, (spans, []))
    [rank] = found.ranks
    [forward] = rank.steps.phases
    assert forward.total_ns == sum(EPOCH_NS + number * 10 * MS for number in range(1, 61))
    assert rank.steps.unattributed.total_ns == 60 * 10 * MS - forward.total_ns


def test_many_phases_that_begin_in_1970(tmp_path: Path) -> None:
    """Together, the phases of a step have more nanoseconds than 64 bits."""
    spans = [*steps(1), *(span(n, 1, name="forward", start_ns=0) for n in range(2, 12))]
    [rank] = report(tmp_path, (spans, [])).ranks
    [forward] = rank.steps.phases
    assert forward.total_ns > 2**63
    assert rank.steps.unattributed.total_ns == 10 * MS - forward.total_ns


def test_rank_minus_one_is_no_missing_rank(tmp_path: Path) -> None:
    spans = [*steps(60, rank=-1), *steps(60, 100, rank=None)]
    reader = spool(tmp_path, (spans, []))
    found = reported(reader, reader)
    assert [each.rank for each in found.ranks] == [None, -1]
    assert diagnose_batches(reader, thresholds_of("run")).ranks == [None, -1]


def test_a_mark_without_a_scope_is_not_that_of_a_step_without_an_id(tmp_path: Path) -> None:
    spans = [*steps(2, rank=0), span(7, None, index=3, rank=0) | {"id": None}]
    marks = [mark(900, 1, name="loss", value=1.5) | {"span_id": None}]
    assert [each.rank for each in report(tmp_path, (spans, marks)).marks] == [None]


def test_empty_ids_are_ids(tmp_path: Path) -> None:
    spans = [*steps(3), *(span(n, None, name="mine") | {"id": ""} for n in (10, 11))]
    assert report(tmp_path, (spans, [])).spans == 4


def test_processes_with_the_same_id_are_read_in_one_pass(tmp_path: Path) -> None:
    """In containers, all ranks have the same process id; a step may end with its last phase."""
    batches: list[tuple[Records, Records]] = []
    for turn in range(3):
        for rank in (0, 1):
            first = 1000 * (rank + 1) + 10 * turn
            spans = steps(3, first, rank=rank, pid=1)
            if turn:
                spans.insert(0, span(first + 500, first - 8, name="optimizer_step", rank=rank,
                                     pid=1))  # fmt: skip
            batches.append((spans, []))
    reader = spool(tmp_path, *batches)
    with open_run(reader) as run:
        assert isinstance(run.recording, Reducer)
        assert [len(each.steps.phases) for each in run.ranks] == [1, 1]
    reported(reader, reader)


@pytest.mark.parametrize("ended", [True, False])
def test_the_last_step_of_a_job_may_be_inside_another_one(ended: bool, tmp_path: Path) -> None:
    """Of a job that ends with an exit code; its sessions have closed, or a step has no end."""
    at = EPOCH_NS
    otel = {"status": {"code": 2, "message": "exit code 1"}}
    times = {"start_ns": at, "end_ns": at + 100 * MS, "pid": 2, "rank": None, "otel": otel}
    jobs = [span(1, None, name=SESSION, **times), span(2, 1, name=JOB, **times)]
    inner = [
        span(10 + number, 9 + number, index=number, start_ns=at + number * MS,
             end_ns=at + 50 * MS - number * MS)
        for number in range(1, 3)
    ]  # fmt: skip
    if not ended:
        inner[-1]["end_ns"] = None
    outer = span(10, None, index=0, start_ns=at, end_ns=at + 60 * MS)
    reader = spool(tmp_path, ([*inner, outer, *jobs], []))
    [failure] = reported(reader, reader).failures
    assert (failure.scope, failure.step) == (JOB, "2")
