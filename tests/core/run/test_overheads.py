"""The time of tracing itself, which the marks of scopes inside each other contain repeatedly."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.records.rows import IndexedSpan
from cirron_otel.core.run.load import columns
from cirron_otel.core.run.load.errors import NotReducibleError
from cirron_otel.core.run.load.lanes import LaneSums
from cirron_otel.core.run.load.overheads import Overheads
from cirron_otel.core.run.load.reducer import Reducer
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import Texts
from tests.kit.spools.made import encoded, made, mark, span

from .spools import Files, written

SESSION, EPOCH, STEP, PHASE, LATER = 1, 2, 3, 4, 5
NAMES = {SESSION: "cirron.session", EPOCH: "epoch", STEP: "step", PHASE: "forward", LATER: "step"}
PARENTS = {SESSION: None, EPOCH: SESSION, STEP: EPOCH, PHASE: STEP, LATER: EPOCH}


def recording(batches: list[list[int]], times: dict[int, int]) -> Files:
    """Batches of scopes, each with the time of tracing that its mark contains."""
    files = []
    for number, scopes in enumerate(batches):
        spans: list[dict[str, Any]] = []
        marks = []
        for each in scopes:
            if each in times:
                marks.append(
                    mark(100 + each, each, name="cirron.overhead_ns", value=times[each],
                         value_type="int", kind="summary")
                )  # fmt: skip
            spans.append(
                span(each, PARENTS[each], name=NAMES[each], rank=0, start_ns=each * 10,
                     end_ns=each * 10 + 5, mark_ids=[m["id"] for m in marks[-1:] if each in times])
            )  # fmt: skip
        batch = made(number, spans=spans, marks=marks, created_ns=1000 + number)
        files.append((f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)))
    return files


@pytest.mark.parametrize(
    ("batches", "times", "expected"),
    [
        ([[PHASE, STEP, LATER, EPOCH, SESSION]], {PHASE: 3, STEP: 7, LATER: 5, EPOCH: 20}, 20),
        ([[PHASE, STEP], [LATER, EPOCH]], {STEP: 7, LATER: 5, EPOCH: 20}, 20),
        ([[PHASE, STEP, LATER]], {PHASE: 3, STEP: 7, LATER: 5}, 12),  # the epoch is still open
        ([[PHASE, STEP, LATER, EPOCH]], {PHASE: 3, LATER: 5}, 8),
        ([[STEP, EPOCH, SESSION]], {STEP: 7, EPOCH: 20, SESSION: 4}, 24),
    ],
)
def test_time_inside_nested_scopes_counts_once(
    batches: list[list[int]], times: dict[int, int], expected: int, tmp_path: Path
) -> None:
    reader = written(tmp_path, recording(batches, times))
    for in_columns in (False, True):
        with open_run(reader, reader, in_columns=in_columns) as run:
            assert run.recording.sums.ranks[0].overhead_ns == expected


def test_child_in_a_later_batch_than_its_parent_counts_once(tmp_path: Path) -> None:
    reader = written(tmp_path, recording([[STEP, EPOCH], [LATER]], {EPOCH: 20, LATER: 5}))
    for in_columns in (False, True):
        with open_run(reader, reader, in_columns=in_columns) as run:
            assert run.recording.sums.ranks[0].overhead_ns == 20


@pytest.mark.parametrize("spans", [[span(LATER, EPOCH, name="step", rank=0)], []])
def test_mark_in_another_batch_than_its_scope_is_not_reduced_in_one_pass(
    spans: list[dict[str, Any]], tmp_path: Path
) -> None:
    files = recording([[STEP]], {})
    batch = made(
        1, spans=spans,
        marks=[mark(99, STEP, name="cirron.overhead_ns", value=3, value_type="int")],
    )  # fmt: skip
    files.append((f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)))
    reducer = Reducer(Texts())
    first, second = written(tmp_path, files)
    reducer.add_batch(first)
    with pytest.raises(NotReducibleError, match="a time of tracing"):
        reducer.add_batch(second)


def test_times_inside_scopes_without_marks_need_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `overhead_marks=N`, most scopes with a marked child have no mark themselves."""
    monkeypatch.setattr(columns, "_UNSEALED", 16)
    monkeypatch.setattr(columns, "_IN_MEMORY", 4096)
    overheads, sizes = Overheads(), []
    tracemalloc.start()
    try:
        for step in range(4_000):
            if step in (1_000, 3_999):
                sizes.append(tracemalloc.get_traced_memory()[0])
            rank = None if step % 2 else 0
            phase = IndexedSpan(id=f"p{step}", parent_id=f"s{step}", name="forward", rank=rank)
            overheads.add([phase], {phase.id: 10})
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 30_000
    for step in range(0, 4_000, 4):  # the mark of a step in a later batch has the times inside it
        overheads.add([IndexedSpan(id=f"s{step}", parent_id="e", name="step")], {f"s{step}": 11})
    sums = LaneSums()
    overheads.finish(sums)
    assert {rank: each.overhead_ns for rank, each in sums.ranks.items()} == {
        None: 2_000 * 10 + 1_000 * 11, 0: 1_000 * 10,
    }  # fmt: skip
