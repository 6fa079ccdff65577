"""The views say what can be counted in the spool."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.made import (
    made,
    mark,
    span,
    span_id,
)
from tests.kit.spools.recorded import batch_files

from .helpers import files, sealed

RECORDINGS = ("01_torch_basic", "07_ranks")


class Spool:
    """What batch files hold, read without the storage."""

    def __init__(self, paths: Iterable[Path]) -> None:
        batches = [exactjson.loads(path.read_bytes()) for path in paths]
        self.spans = [span for batch in batches for span in batch["spans"]]
        self.marks = [mark for batch in batches for mark in batch["marks"]]
        self.by_id = {span["id"]: span for span in self.spans}

    def run_of(self, some_id: str) -> str:
        span = self.by_id.get(some_id)
        above = span and span["parent_id"]
        return self.run_of(above) if above else some_id

    def durations(self, name: str | None = None) -> dict[tuple[str, int], list[int]]:
        """By (run, rank), those of the scopes of a name, or of the phases of steps."""
        found = defaultdict(list)
        for one in self.spans:
            above = self.by_id.get(one["parent_id"] or "", {"name": ""})["name"]
            if one["name"] == name or (name is None and above == "step"):
                key = (self.run_of(one["id"]), one["rank"])
                found[key if name else (*key, one["name"])].append(one["end_ns"] - one["start_ns"])
        return dict(found)


@pytest.fixture(params=RECORDINGS)
def recording(request: pytest.FixtureRequest, storage: Storage) -> Spool:
    paths = batch_files(request.param)
    storage.write(files(paths))
    return Spool(paths)


def rows(storage: Storage, view: str, order: str) -> list[dict[str, Any]]:
    names = list(COLUMNS[view])
    quoted = ", ".join(f'"{name}"' for name in names)
    found = storage.database.rows(f'SELECT {quoted} FROM "{view}" ORDER BY {order}')
    return [dict(zip(names, row, strict=True)) for row in found]


COLUMNS = {
    "TraceRun": (
        "workspaceId", "runId", "pipelineId", "deploymentId", "modelId", "sessions",
        "endedSessions", "ranks", "epochs", "steps", "spans", "startNs", "endNs",
    ),
    "TraceStep": (
        "workspaceId", "runId", "traceId", "rank", "epoch", "step", "id", "startNs", "endNs",
        "durationNs",
    ),
    "TraceStepByRank": (
        "workspaceId", "runId", "rank", "steps", "totalNs", "meanNs", "minNs", "p50Ns", "p95Ns",
        "maxNs",
    ),
    "TraceSlowestStep": (
        "workspaceId", "runId", "place", "rank", "epoch", "step", "durationNs", "timesMedian",
        "startNs", "id", "traceId",
    ),
    "TracePhaseByRank": (
        "workspaceId", "runId", "rank", "phase", "count", "totalNs", "meanNs", "maxNs",
        "shareOfSteps",
    ),
    "TraceMarkSeries": (
        "workspaceId", "runId", "rank", "name", "kind", "tsNs", "value", "valueString",
        "valueType", "spanId", "scope", "scopeIndex", "id",
    ),
}  # fmt: skip


def percentile(values: list[int], share: float) -> int:
    """The nearest rank."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def test_runs(storage: Storage, recording: Spool) -> None:
    of_run = defaultdict(list)
    for one in recording.spans:
        of_run[recording.run_of(one["id"])].append(one)
    found = rows(storage, "TraceRun", '"runId"')
    assert [row["runId"] for row in found] == sorted(of_run)
    for row in found:
        spans = of_run[row["runId"]]
        names = [one["name"] for one in spans]
        assert row == {
            "workspaceId": "default", "runId": row["runId"], "pipelineId": None,
            "deploymentId": None, "modelId": None, "sessions": 1,
            "endedSessions": names.count("cirron.session"),
            "ranks": len({one["rank"] for one in spans}), "epochs": names.count("epoch"),
            "steps": names.count("step"), "spans": len(spans),
            "startNs": min(one["start_ns"] for one in spans),
            "endNs": max(one["end_ns"] for one in spans),
        }  # fmt: skip


def test_step_time_by_rank(storage: Storage, recording: Spool) -> None:
    expected = recording.durations("step")
    found = rows(storage, "TraceStepByRank", '"runId", "rank"')
    assert [(row["runId"], row["rank"]) for row in found] == sorted(expected)
    for row in found:
        values = expected[row["runId"], row["rank"]]
        assert row["steps"] == len(values)
        assert (row["minNs"], row["maxNs"]) == (min(values), max(values))
        assert row["p50Ns"] == percentile(values, 0.5)
        assert row["p95Ns"] == percentile(values, 0.95)
        assert row["totalNs"] == pytest.approx(sum(values))
        assert row["meanNs"] == pytest.approx(sum(values) / len(values))


def test_steps_know_their_epoch(storage: Storage, recording: Spool) -> None:
    steps = [one for one in recording.spans if one["name"] == "step"]
    found = {row["id"]: row for row in rows(storage, "TraceStep", '"startNs"')}
    assert len(found) == len(steps)
    for one in steps:
        row, parent = found[one["id"]], recording.by_id.get(one["parent_id"])
        is_epoch = parent is not None and parent["name"] == "epoch"
        assert row["epoch"] == (parent["index"] if is_epoch else None)
        assert (row["step"], row["rank"]) == (one["index"], one["rank"])
        assert row["durationNs"] == one["end_ns"] - one["start_ns"]


def test_slowest_steps(storage: Storage, recording: Spool) -> None:
    by_rank = recording.durations("step")
    found = rows(storage, "TraceSlowestStep", '"runId", "place"')
    assert len(found) == sum(map(len, by_rank.values()))
    for run in {run for run, _ in by_rank}:
        places = [row for row in found if row["runId"] == run]
        slowest = sorted(
            (v for (r, _), vs in by_rank.items() if r == run for v in vs), reverse=True
        )
        assert [row["durationNs"] for row in places] == slowest
        assert [row["place"] for row in places] == list(range(1, len(places) + 1))
        for row in places:
            median = percentile(by_rank[run, row["rank"]], 0.5)
            assert row["timesMedian"] == pytest.approx(row["durationNs"] / median)


def test_phases_by_rank(storage: Storage, recording: Spool) -> None:
    expected, steps = recording.durations(), recording.durations("step")
    found = rows(storage, "TracePhaseByRank", '"runId", "rank", "phase"')
    assert [(row["runId"], row["rank"], row["phase"]) for row in found] == sorted(expected)
    for row in found:
        values = expected[row["runId"], row["rank"], row["phase"]]
        assert (row["count"], row["maxNs"]) == (len(values), max(values))
        assert row["totalNs"] == pytest.approx(sum(values))
        whole = sum(steps[row["runId"], row["rank"]])
        assert row["shareOfSteps"] == pytest.approx(sum(values) / whole)


def test_phases_of_several_ranks(storage: Storage) -> None:
    def steps(rank: int) -> list[dict[str, Any]]:
        first = 100 * rank
        return [
            span(first, 1, rank=rank, start_ns=0, end_ns=100),
            span(first + 1, first, rank=rank, name="forward", start_ns=0, end_ns=10 * rank),
            span(first + 2, first, rank=rank, name="forward", start_ns=50, end_ns=60),
            span(first + 3, first, rank=rank, name="backward", start_ns=60, end_ns=80),
            span(first + 4, first + 3, rank=rank, name="inside", start_ns=60, end_ns=80),
        ]

    run = {"otel": {"resource": {"attributes": {"cirron.run.id": "r"}}}}
    for rank in (1, 2):
        storage.write([sealed(made(rank, spans=steps(rank)[1:], **run))])
        storage.write([sealed(made(10 + rank, spans=steps(rank)[:1], **run))])
    found = rows(storage, "TracePhaseByRank", '"rank", "phase"')
    assert [tuple(row.values()) for row in found] == [
        ("default", "r", 1, "backward", 1, 20.0, 20.0, 20, 0.2),
        ("default", "r", 1, "forward", 2, 20.0, 10.0, 10, 0.2),
        ("default", "r", 2, "backward", 1, 20.0, 20.0, 20, 0.2),
        ("default", "r", 2, "forward", 2, 30.0, 15.0, 20, 0.3),
    ]
    assert [row["ranks"] for row in rows(storage, "TraceRun", "1")] == [2]


def test_marks_as_series(storage: Storage, recording: Spool) -> None:
    found = rows(storage, "TraceMarkSeries", '"name", "tsNs", "id"')
    marks = sorted(recording.marks, key=lambda one: (one["name"], one["ts_ns"], one["id"]))
    assert len(found) == len(marks) > 0
    for row, one in zip(found, marks, strict=True):
        owner = recording.by_id.get(one["span_id"])
        assert (row["name"], row["tsNs"], row["id"]) == (one["name"], one["ts_ns"], one["id"])
        assert row["runId"] == recording.run_of(one["span_id"])
        assert row["value"] == (one["value"] if one["value_type"] != "string" else None)
        assert row["scope"] == (owner["name"] if owner else None)
        assert row["rank"] is not None


def test_marks_of_scopes_that_are_not_stored_or_stored_twice(storage: Storage) -> None:
    run = {"otel": {"resource": {"attributes": {"cirron.run.id": "r"}}}}
    storage.write([sealed(made(1, spans=[span(2, 1, rank=3), span(2, 1, rank=4)]))])
    marks = [
        mark(1, 1), mark(2, 2), mark(3, 9), mark(4, 2, value_type="bool", value=True),
        mark(5, 2, value_type="int", value=7), mark(6, 2, value_type="string", value="x"),
    ]  # fmt: skip
    storage.write([sealed(made(2, marks=marks)), sealed(made(3, marks=[mark(7, "root")], **run))])
    found = rows(storage, "TraceMarkSeries", '"id"')
    assert [(row["runId"], row["rank"], row["value"], row["valueString"]) for row in found] == [
        (span_id(1), 3, 0.5, None), (span_id(1), 3, 0.5, None), (None, None, 0.5, None),
        (span_id(1), 3, 1.0, None), (span_id(1), 3, 7.0, None), (span_id(1), 3, None, "x"),
        ("r", None, 0.5, None),
    ]  # fmt: skip


def test_no_value_makes_a_view_fail(storage: Storage) -> None:
    low, high = -(2**63), 2**63 - 1
    odd = [
        span(1, 9, start_ns=low, end_ns=high), span(2, 1, start_ns=high, end_ns=low),
        span(3, 9, start_ns=0, end_ns=high), span(4, 3, start_ns=0, end_ns=high),
        span(5, 9, start_ns=0, end_ns=high), span(6, 9, start_ns=5, end_ns=5),
        span(7, 9, rank=5, start_ns=5, end_ns=5, index=2**31 - 1),
    ]  # fmt: skip
    marks = [
        mark(1, 1, value_type="int", value=low),
        mark(2, 1, value=1e308),
        mark(3, 1, ts_ns=low),
    ]
    storage.write([sealed(made(1, spans=odd, marks=marks))])
    counts = {view: len(rows(storage, view, "1")) for view in COLUMNS}
    assert counts == {
        "TraceRun": 1, "TraceStep": 5, "TraceStepByRank": 2, "TraceSlowestStep": 5,
        "TracePhaseByRank": 1, "TraceMarkSeries": 3,
    }  # fmt: skip
    storage.database.rows('SELECT * FROM "TraceStep" WHERE "durationNs" > 1')
