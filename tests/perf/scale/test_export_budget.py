"""Which steps an export budget summarises, and that the budget holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.records.step_summaries import INSIDE, STEPS, listed
from cirron_otel.core.targets.exported_part import exported_part
from cirron_otel.core.translator.translate import encode_own
from cirron_otel.sdk.flush.export_budget import BURST_S, ExportBudget

from .batches import GeneratedRank, stated
from .ranks import Job, SimulatedRank

SECOND = 1_000_000_000
Record = dict[str, Any]
_ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30),  # steps
        st.sampled_from([1, 20, 500]),  # ms a step
        st.integers(0, 12),  # scopes inside a step, at most
        st.sampled_from([0, 0, 3, 60]),  # seconds of silence
    ),
    min_size=1,
    max_size=25,
)


def exported(
    arrivals: Sequence[tuple[int, int, int, int]], rate: int, seed: int
) -> tuple[ExportBudget, list[tuple[int, SealedBatch, SealedBatch, int]]]:
    """Return a budget, and the time, the batch, its export, and the overdraft of each arrival."""
    rank, budget = GeneratedRank(seed), ExportBudget(rate, 2.0)
    out = []
    for steps, usual_ms, scopes, pause_s in arrivals:
        rank.at_ns += pause_s * SECOND
        batch = rank.batch(steps, usual_ms, scopes)
        before = budget.counts.over_budget
        value = budget.decide(batch.data, rank.at_ns)
        over = budget.counts.over_budget - before
        batch = stated(batch, value) if value else batch
        out.append((rank.at_ns, batch, exported_part(batch), over))
    return budget, out


def wire_spans(batch: SealedBatch) -> int:
    """Return the number of OTLP spans of a batch, the synthetic ones included."""
    message = TracesData.FromString(encode_own(batch.data, batch.name))
    return sum(
        len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans
    )


@settings(max_examples=60, deadline=None)
@given(_ARRIVALS, st.sampled_from([0.4, 1, 5, 20, 200]), st.integers(0, 10**6))
def test_it_holds_over_every_window(
    arrivals: list[tuple[int, int, int, int]], rate: float, seed: int
) -> None:
    budget, batches = exported(arrivals, rate, seed)
    sizes = [(at_ns, wire_spans(part), over) for at_ns, _, part, over in batches]
    for first in range(len(sizes)):
        for last in range(first, len(sizes)):
            seconds = (sizes[last][0] - sizes[first][0]) / SECOND
            allowed = rate * (seconds + BURST_S) + sum(o for *_, o in sizes[first : last + 1])
            assert sum(size for _, size, _ in sizes[first : last + 1]) <= allowed + 1e-6
    assert sum(size for _, size, _ in sizes) <= budget.counts.spans


@settings(max_examples=60, deadline=None)
@given(_ARRIVALS, st.sampled_from([1, 5, 20, 200]), st.integers(0, 10**6))
def test_only_steps_that_cannot_be_summarised_exceed_the_budget(
    arrivals: list[tuple[int, int, int, int]], rate: int, seed: int
) -> None:
    _, batches = exported(arrivals, rate, seed)
    outside: set[Any] = set()
    for _, batch, part, over in batches:
        full, left = json.loads(batch.data), json.loads(part.data)
        ids = {span["id"] for span in full["spans"]}
        pinned = {each["span_id"] for each in full["snapshots"]}
        refs = {s["parent_id"] for s in full["spans"]} | {m["span_id"] for m in full["marks"]}
        if over:
            for span in left["spans"]:
                if span["name"] != "step" or INSIDE in span["attrs"]:
                    continue
                inside = scopes_below(full["spans"], span["id"])
                some = [span, *inside]
                assert (
                    not inside
                    or any(set(each.get("otel", ())) - {"trace_id"} for each in some)
                    or any(each["id"] in pinned | outside for each in some)
                    or any(each["name"] == "eval" for each in some)
                    or scope_above(full["spans"], span) is not None
                )
        outside |= refs - ids


def scopes_below(spans: Sequence[Record], span_id: str) -> list[Record]:
    found = [span for span in spans if span["parent_id"] == span_id]
    return found + [below for each in found for below in scopes_below(spans, each["id"])]


def scope_above(spans: Sequence[Record], span: Record) -> Record | None:
    return next((each for each in spans if each["id"] == span["parent_id"]), None)


@settings(max_examples=60, deadline=None)
@given(_ARRIVALS, st.sampled_from([1, 5, 20, 200]), st.integers(0, 10**6))
def test_no_step_is_lost_and_no_parent_dangles(
    arrivals: list[tuple[int, int, int, int]], rate: int, seed: int
) -> None:
    _, batches = exported(arrivals, rate, seed)
    for _, batch, part, _ in batches:
        full, left = json.loads(batch.data), json.loads(part.data)
        complete = {span["id"]: span for span in full["spans"]}
        kept = {span["id"]: span for span in left["spans"]}
        # Failed spans, what is above them, and what is inside them, are complete.
        for span in full["spans"]:
            if "status" in span.get("otel", {}):
                above: Record | None = span
                while above is not None:
                    assert kept[above["id"]] == above
                    above = scope_above(full["spans"], above)
                for each in scopes_below(full["spans"], span["id"]):
                    assert kept[each["id"]] == each
        # Every parent that was in the batch is in the part, and every mark is on a span that is.
        for span in left["spans"]:
            assert span["parent_id"] in kept or span["parent_id"] not in complete
        grouped = {
            entry["id"]: entry
            for span in left["spans"]
            for entry in listed(span["attrs"].get(STEPS)) or ()
        }
        outermost = [
            span for span in full["spans"]
            if span["name"] == "step" and scope_above(full["spans"], span) is None
        ]  # fmt: skip
        for step in outermost:
            record = kept.get(step["id"]) or grouped[step["id"]]
            assert [record[key] for key in ("index", "start_ns", "end_ns")] == [
                step[key] for key in ("index", "start_ns", "end_ns")
            ]
            text = record["attrs"].get(INSIDE) if step["id"] in kept else None
            rows = listed(text) if step["id"] in kept else record["inside"]
            if rows is not None:
                assert sorted((name, ns) for name, _, _, ns, *_ in rows) == sorted(
                    (each["name"], each["end_ns"] - each["start_ns"])
                    for each in scopes_below(full["spans"], step["id"])
                )
        assert {mark["id"] for mark in left["marks"]} == {mark["id"] for mark in full["marks"]}
        for mark in left["marks"]:
            assert mark["span_id"] in kept or mark["span_id"] not in complete
            if mark["span_id"] in kept:
                assert mark["id"] in kept[mark["span_id"]]["mark_ids"]


@settings(max_examples=60, deadline=None)
@given(_ARRIVALS, st.sampled_from([1, 5, 20]), st.integers(0, 10**6))
def test_the_export_is_a_function_of_the_batch(
    arrivals: list[tuple[int, int, int, int]], rate: int, seed: int
) -> None:
    _, batches = exported(arrivals, rate, seed)
    for _, batch, part, _ in batches:
        assert exported_part(batch) == part
        assert exported_part(part) is part
        if part != batch:
            assert part.name != batch.name
            assert part.name[:33] == batch.name[:33]  # the time and the owner
            origin = json.loads(part.data)["otel"]["summary_of"]
            full, left = json.loads(batch.data), json.loads(part.data)
            assert origin == {
                "batch_id": full["batch_id"],
                "spans": len(full["spans"]) - len(left["spans"]),
                "marks": len(full["marks"]) - len(left["marks"]),
            }


def of_kind(part: SealedBatch, name: str) -> list[Record]:
    return [span for span in json.loads(part.data)["spans"] if span["name"] == name]


def test_detail_is_given_up_in_order() -> None:
    forms = {}
    for rate in (100, 8, 2):
        rank = SimulatedRank(Job.of(4, 60, 3, rate), 0)
        parts = [exported_part(each.batch) for each in rank.batches()]
        steps = sum(len(of_kind(part, "step")) for part in parts)
        forms[rate] = steps, sum(len(of_kind(part, "forward")) for part in parts)
    assert forms[100][0] == forms[100][1] > 200  # everything fits
    assert forms[8][0] == forms[100][0] > forms[8][1] > 0  # all steps, some with their scopes
    assert forms[2][0] < forms[8][0]  # groups of steps


def test_scopes_of_slow_steps_take_priority_over_spans_of_other_steps() -> None:
    job = Job.of(4, 120, 3, 4)
    slow = [number for number in range(500) if job.is_slow(number)]
    parts = [exported_part(e.batch) for e in SimulatedRank(job, job.straggler).batches()]
    loads = [span for part in parts for span in of_kind(part, "data_load")]
    complete = {span["index"]: span for part in parts for span in of_kind(part, "step")}
    assert slow
    for number in slow:
        if number < max(complete):
            assert any(load["parent_id"] == complete[number]["id"] for load in loads)
    assert any(of_kind(part, "steps") for part in parts) or len(loads) < len(complete)


def test_ranks_choose_the_same_steps_for_detail() -> None:
    """Steps with a number that 100 divides have their scopes on every rank."""
    job = Job.of(8, 120, 5, 7)
    due = []
    for rank in range(8):
        parts = [exported_part(each.batch) for each in SimulatedRank(job, rank).batches()]
        steps = {span["id"]: span for part in parts for span in of_kind(part, "step")}
        detailed = {
            steps[span["parent_id"]]["index"] for part in parts for span in of_kind(part, "forward")
        }
        due.append({number for number in detailed if number % 100 == 0})
    assert all(each == due[0] for each in due)
    assert len(due[0]) >= 3


@pytest.mark.parametrize(
    "data", [b"[]", b"{", b'{"spans":[{"start_ns":"x"}]}', b'{"spans":[{"name":"\\ud800"}]}']
)
def test_other_texts_are_exported_unchanged(data: bytes) -> None:
    assert ExportBudget(1, 2.0).decide(data, 10) == {}
    hinted = SealedBatch("x.json", b'{"otel":{"summarised":{}},"spans":3}')
    assert exported_part(hinted) == hinted


def test_a_long_flush_interval_does_not_leave_the_budget_unused() -> None:
    used = {}
    for flush_s in (1, 20):
        rank = SimulatedRank(Job.of(4, 200, 3, 6, flush_s=flush_s), 0)
        parts = [exported_part(each.batch) for each in rank.batches()]
        used[flush_s] = sum(map(wire_spans, parts))
        assert not any(of_kind(part, "steps") for part in parts)
    assert used[20] > used[1] / 2


def test_a_clock_that_goes_back_gives_nothing() -> None:
    budget, rank = ExportBudget(1, 2.0), GeneratedRank(1)
    batches = [rank.batch(20, 20, 0) for _ in range(3)]
    for batch in batches:
        budget.decide(batch.data, 10**18)
    before = budget.counts.spans
    assert budget.decide(batches[0].data, 10**18 - 10**12)
    assert budget.counts.spans > before
