"""The work for deeply nested scopes is proportional to their number."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.delivery.indexed import FollowIndex
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.segments import SEGMENT_RECORDS
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.select import Selection
from tests.kit.spools.comparing import spans_of

from .test_hostile_values import LOWER

SIZE = 200
Shape = Callable[[int], list[dict[str, Any]]]


def span(number: int, parent: int | None, name: str = "step") -> dict[str, Any]:
    parent_id = f"{parent:016x}{LOWER}" if parent is not None else None
    return {
        "id": f"{number:016x}{LOWER}", "name": name, "parent_id": parent_id, "index": number,
        "start_ns": 10**6 + number, "end_ns": 2 * 10**6, "cpu_ns": None, "gpu_ns": None,
        "memory_peak_bytes": None, "thread_id": 7, "pid": 1, "rank": 0, "attrs": {}, "mark_ids": [],
    }  # fmt: skip


def parents_first(size: int) -> list[dict[str, Any]]:
    return [span(n, n - 1 if n > 1 else None) for n in range(1, size + 1)]


def children_first(size: int) -> list[dict[str, Any]]:
    return parents_first(size)[::-1]


def nested_epochs(size: int) -> list[dict[str, Any]]:
    return [span(n, n + 1, "epoch") for n in range(1, size + 1)]


def epochs_below_a_chain(size: int) -> list[dict[str, Any]]:
    half = size // 2
    chain = [span(n, n - 1 if n > 1 else 10**6) for n in range(1, half + 1)]
    return chain + [span(half + n, half, "epoch") for n in range(1, half + 1)]


def circle(size: int) -> list[dict[str, Any]]:
    """Return scopes whose parents form a cycle, which no SDK writes."""
    return [span(n, n % size + 1) for n in range(1, size + 1)]


def batches_of(spans: list[dict[str, Any]], at_once: int) -> list[bytes]:
    made = []
    for number, start in enumerate(range(0, len(spans), at_once)):
        some = spans[start : start + at_once]
        mark = {
            "id": f"{number:016x}{'f' * 16}", "span_id": spans[-1 - start]["id"], "name": "loss",
            "value_type": "int", "value": 1, "attrs": {}, "ts_ns": 10**6, "kind": "point",
        }  # fmt: skip
        batch = {
            "schema_version": 1, "sdk_version": "0.3.0", "batch_id": f"{number:032x}",
            "created_ns": number, "spans": some, "marks": [mark], "snapshots": [],
        }  # fmt: skip
        made.append(json.dumps(batch, separators=(",", ":")).encode())
    return made


def spool_of(folder: Path, made: list[bytes]) -> Path:
    (folder / "spool").mkdir(parents=True)
    for number, data in enumerate(made):
        (folder / "spool" / f"{number:020d}-{number:032x}.json").write_bytes(data)
    return folder


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of functions that `work` calls, those of C included."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("at_once", [10**6, 10])
@pytest.mark.parametrize(
    "shape", [parents_first, children_first, nested_epochs, epochs_below_a_chain, circle]
)
@pytest.mark.parametrize("select", [None, "epoch=1"])
def test_twice_the_scopes_are_twice_the_work(
    shape: Shape, at_once: int, select: str | None, tmp_path: Path
) -> None:
    calls = []
    for size in (SIZE, 2 * SIZE):
        source = spool_of(tmp_path / f"in{size}", batches_of(shape(size), at_once))
        request = ConvertRequest(
            str(source),
            str(tmp_path / f"out{size}.binpb"),
            select=Selection.parse([select]) if select else None,
            jobs=1,
        )
        calls.append(calls_of(lambda request=request: convert(request)))  # type: ignore[misc]
    assert calls[1] < 2.5 * calls[0]


@pytest.mark.parametrize("shape", [nested_epochs, epochs_below_a_chain])
def test_the_index_is_in_proportion_to_the_scopes(shape: Shape, tmp_path: Path) -> None:
    sizes = []
    for size in (SIZE, 2 * SIZE):
        path = tmp_path / f"{size}.sqlite"
        index = FollowIndex(path)
        batch = read_outline(batches_of(shape(size), 10**6)[0])
        index.observe_once("a.json", batch)
        calls = calls_of(lambda index=index, batch=batch: index.undecided(batch))  # type: ignore[misc]
        assert calls < 20 * size
        index.close()
        sizes.append(path.stat().st_size)
    assert sizes[1] < 2.5 * sizes[0]


def test_marks_are_in_the_trace_of_a_scope_in_another_batch(tmp_path: Path) -> None:
    """This includes a grandchild at which a new segment opens."""
    made = [span(n, 1) for n in range(2, SEGMENT_RECORDS + 10)]
    epoch = span(10**5, 1, "epoch")
    steps = [span(10**5 + n, 10**5) for n in range(1, 20)]
    batches = batches_of([*made, *steps, epoch, span(1, None, "forward")], 10**6)
    reference = json.loads(batches[0])
    reference["spans"], reference["batch_id"] = [], "f" * 32
    reference["marks"] = [
        reference["marks"][0] | {"id": f"{n:016x}{'e' * 16}", "span_id": step["id"]}
        for n, step in enumerate(steps)
    ]
    source = spool_of(tmp_path / "in", [*batches, json.dumps(reference).encode()])
    convert(ConvertRequest(str(source), str(tmp_path / "out.binpb"), jobs=1))
    spans = spans_of(tmp_path / "out.binpb")
    traces = {each.span_id: each.trace_id for each in spans if each.name == "step"}
    carriers = [each for each in spans if each.name == "cirron.marks" and each.parent_span_id]
    assert len(carriers) >= len(steps)
    assert len(set(traces.values())) > 1
    assert all(each.trace_id == traces[each.parent_span_id] for each in carriers)
