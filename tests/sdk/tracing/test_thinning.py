"""detail_every: which insides of steps are recorded, and that no mark is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from cirron_otel.sdk.session.joining import inject
from cirron_otel.sdk.tracing import detail_sampling
from cirron_otel.sdk.tracing.detail_sampling import DetailSampler, note_references
from cirron_otel.sdk.tracing.foreign_spans import ForeignSpans
from cirron_otel.sdk.tracing.hook_costs import CLOCKED_PERCENT, unclocked_ns
from cirron_otel.sdk.tracing.loops import batches, epochs
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.rare_work import rare_work
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from tests.sdk.conftest import OpenSession

Open = Callable[..., OpenSession]
NEVER_SLOW = 1e9


def insides(spans: list[Any]) -> dict[int, list[str]]:
    """Names of the children of each step, by the step's index."""
    steps = {span.id: span.index for span in spans if span.name == "step"}
    found: dict[int, list[str]] = {index: [] for index in steps.values()}
    for span in spans:
        if span.parent_id in steps:
            found[steps[span.parent_id]].append(span.name)
    return found


def loss_of(marks: list[Any]) -> list[tuple[str, Any]]:
    return [(m.span_id, m.value) for m in marks if m.name == "loss"]


def test_every_third_step_keeps_its_inside_and_every_step_itself(session_with: Open) -> None:
    thinner = DetailSampler(3, NEVER_SLOW)
    here = session_with(thinner=thinner)
    for index in batches(range(7)):
        with Scope("forward"), Scope("attention"):
            mark("loss", index)
    spans, marks = here.rows()
    whole = ["forward"]
    assert insides(spans) == {0: whole, 1: [], 2: [], 3: whole, 4: [], 5: [], 6: whole}
    assert thinner.thinned == 8
    assert thinner.held == 0
    assert sorted(value for _, value in loss_of(marks)) == list(range(7))
    of = {span.id: span for span in spans}
    for span_id, value in loss_of(marks):
        assert of[span_id].name == ("attention" if value % 3 == 0 else "step")
        assert value % 3 == 0 or of[span_id].index == value


def test_a_mark_that_moved_is_named_by_its_step(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(100, NEVER_SLOW), overhead_every=0)
    for index in batches(range(2)):
        with Scope("forward"):
            mark("loss", index)
    spans, marks = here.rows()
    second = next(span for span in spans if span.name == "step" and span.index == 1)
    assert second.mark_ids == [m.id for m in marks if m.value == 1]


def test_the_inside_waits_until_its_step_has_ended(session_with: Open) -> None:
    thinner = DetailSampler(1, NEVER_SLOW)
    here = session_with(thinner=thinner)
    with Scope("step"):
        with Scope("forward"):
            mark("loss", 1.0)
        mark("seen", 2.0)
        spans, marks = here.rows()
        assert spans == []
        assert [m.name for m in marks] == ["seen"], "the step's own marks are live"
        assert thinner.held == 2
    spans, marks = here.rows()
    assert sorted(span.name for span in spans) == ["forward", "step"]
    assert [m.span_id for m in marks if m.name == "loss"] == [
        span.id for span in spans if span.name == "forward"
    ]


def test_time_of_discarded_scopes_is_one_entry_for_each_step(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    rare_work.clear()
    for _ in batches(range(300)):
        for name in ("forward", "backward", "optimizer_step"):
            with Scope(name):
                pass
    here.rows()
    assert not rare_work


def test_a_failed_step_keeps_its_inside(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    for index in batches(range(4)):
        with contextlib.suppress(ValueError), Scope("forward"):
            if index == 2:
                raise ValueError("loss is NaN")
        with Scope("backward"):
            pass
    spans, _ = here.rows()
    both = ["forward", "backward"]
    assert insides(spans) == {0: both, 1: [], 2: both, 3: []}


def test_a_step_with_an_error_status_keeps_its_inside(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    for index in range(3):
        with contextlib.suppress(ValueError), Scope("step", index):
            with Scope("forward"):
                pass
            if index == 1:
                raise ValueError
    assert insides(here.rows()[0]) == {0: ["forward"], 1: ["forward"], 2: []}


def test_a_slow_step_keeps_its_inside(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, 2.0))
    for index in range(12):
        step = Scope("step", index)
        with step, Scope("forward"):
            pass
        # Lengths are given, so that the test does not depend on the machine.
        step._end = step._start + (1000 if index != 9 else 2001)
    assert [index for index, inside in insides(here.rows()[0]).items() if inside] == [0, 9]


def test_no_step_counts_as_slow_until_five_steps_have_run(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, 2.0))
    for index, length in enumerate((1, 10, 100, 1000, 10_000, 100_000)):
        step = Scope("step", index)
        with step, Scope("forward"):
            pass
        step._end = step._start + length
    assert [index for index, inside in insides(here.rows()[0]).items() if inside] == [0, 5]


def test_scopes_outside_of_steps_stay(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    for _ in epochs(range(3)):
        with Scope("validate"), Scope("forward"):
            pass
        for _ in batches(range(2)):
            with Scope("forward"):
                pass
    spans, _ = here.rows()
    assert Counter(span.name for span in spans) == {
        "epoch": 3, "validate": 3, "step": 6, "forward": 3 + 1,
    }  # fmt: skip


def test_steps_inside_of_a_step_stay(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    for index in range(2):
        with Scope("step", index), Scope("micro"), Scope("step", 10 + index), Scope("forward"):
            pass
    spans, _ = here.rows()
    assert sorted(s.index for s in spans if s.name == "step") == [0, 1, 10, 11]
    of = {span.id: span for span in spans}
    inner = next(span for span in spans if span.index == 11)
    assert of[inner.parent_id].index == 1, "its parent is gone, so it hangs on the next above"


def test_a_late_child_follows_its_step(session_with: Open) -> None:
    thinner = DetailSampler(1000, NEVER_SLOW)
    here = session_with(thinner=thinner)

    async def main() -> None:
        release = asyncio.Event()

        async def late() -> None:
            with Scope("late"):
                await release.wait()
                mark("loss", 7)

        with Scope("step", 0):
            pass
        here.rows()
        with Scope("step", 1):
            task = asyncio.create_task(late())
            await asyncio.sleep(0)
        spans, _ = here.rows()
        assert [span.index for span in spans] == [1]
        step_id = spans[0].id
        release.set()
        await task
        spans, marks = here.rows()
        assert spans == []
        assert loss_of(marks) == [(step_id, 7)]
        assert thinner.thinned == 1

    asyncio.run(main())


def test_the_mark_of_an_open_scope_moves_when_its_step_is_decided(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    with Scope("step", 0):
        pass
    here.rows()
    step, inner = Scope("step", 1), Scope("left open")
    step.__enter__()
    inner.__enter__()
    mark("loss", 1)
    step.end()
    spans, marks = here.rows()
    assert [span.id for span in spans] == [step.id]
    assert loss_of(marks) == [(step.id, 1)]
    inner.end()
    assert here.rows()[0] == []


def test_referenced_scopes_are_recorded_despite_thinning(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(here.foreign))
    tracer = provider.get_tracer("client")
    carried = {}
    for index in batches(range(3)):
        with Scope("forward"), Scope("download"):
            if index == 1:
                with tracer.start_as_current_span("GET"):
                    pass
            if index == 2:
                carried = dict(inject())
    spans, _ = here.rows()
    of = {span.id: span for span in spans}
    client = next(span for span in spans if span.name == "GET")
    download = of[client.parent_id]
    assert download.name == "download"
    assert of[download.parent_id].index == 1
    sent = carried["traceparent"].split("-")[2]
    assert [span.name for span in spans if span.id.startswith(sent)] == ["download"]


def test_foreign_span_sealed_ahead_of_its_steps_end_keeps_its_parent(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(here.foreign))
    with Scope("step", 0):
        pass
    with Scope("step", 1), Scope("forward"):
        with provider.get_tracer("client").start_as_current_span("GET"):
            pass
        early, _ = here.rows()
    late, _ = here.rows()
    parent = next(span.parent_id for span in early if span.name == "GET")
    assert parent in {span.id for span in late if span.name == "forward"}


def test_context_requested_by_processors_at_the_end_is_not_a_reference(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    for index in range(2):
        with Scope("step", index):
            with Scope("forward") as inner:
                pass
            note_references(inner)
            assert inner.get_span_context().is_valid
    assert insides(here.rows()[0]) == {0: ["forward"], 1: []}


def test_overhead_of_omitted_scopes_is_added_to_their_step(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    for index in range(2):
        with Scope("step", index) as step, Scope("forward") as outer, Scope("inner") as inner:
            pass
        step._overhead, outer._overhead, inner._overhead = 1, 10, 100
    spans, marks = here.rows()
    said = {m.span_id: m.value for m in marks if m.name == "cirron.overhead_ns"}
    expected = pytest.approx(111 * CLOCKED_PERCENT / 100 + 2 * unclocked_ns()[1], abs=2)
    assert [said[span.id] for span in spans if span.name == "step"] == [expected, expected]


def test_too_much_held_back_lets_the_oldest_step_through(session_with: Open) -> None:
    thinner = DetailSampler(1000, NEVER_SLOW, most_held=10)
    here = session_with(thinner=thinner)
    with Scope("step", 0):
        pass
    here.rows()
    with Scope("step", 1):
        for _ in range(11):
            with Scope("forward"):
                pass
        spans, _ = here.rows()
        assert len(spans) == 11
        assert thinner.held == 0
        with Scope("forward"):
            pass
    assert sorted(span.name for span in here.rows()[0]) == ["forward", "step"]
    with Scope("step", 2), Scope("forward"):
        pass
    assert [span.name for span in here.rows()[0]] == ["step"]


def test_the_end_lets_everything_through(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    with Scope("step", 0):
        pass
    here.rows()
    Scope("step", 1).__enter__()
    with Scope("forward"):
        mark("loss", 3)
    spans, marks = here.rows(is_last=True)
    of = {span.id: span.name for span in spans}
    assert sorted(of.values()) == ["cirron.session", "forward", "step"]
    assert [of[span_id] for span_id, _ in loss_of(marks)] == ["forward"]


def test_a_dropped_step_does_not_hold_its_inside_for_ever(session_with: Open) -> None:
    thinner = DetailSampler(1000, NEVER_SLOW)
    here = session_with(thinner=thinner)
    with Scope("step", 0):
        pass
    with Scope("step", 1) as dropped, Scope("forward"):
        mark("loss", 1)
    dropped.drop()
    here.rows()
    spans, marks = here.rows()
    assert [span.name for span in spans] == ["forward"]
    assert spans[0].parent_id == here.scope.id
    assert loss_of(marks) == [(spans[0].id, 1)]
    assert thinner.held == 0


def test_verdicts_are_forgotten_in_time(
    session_with: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detail_sampling, "_REMEMBERED", 3)
    thinner = DetailSampler(1000, NEVER_SLOW)
    here = session_with(thinner=thinner)
    for _ in batches(range(50)):
        with Scope("forward"):
            pass
    here.rows()
    assert len(thinner._verdicts) == 3
    assert thinner.thinned == 49


def test_flushes_in_between_change_nothing(session_with: Open) -> None:
    thinner = DetailSampler(4, NEVER_SLOW)
    here = session_with(thinner=thinner, overhead_every=0)
    spans: list[Any] = []
    marks: list[Any] = []

    def flush() -> None:
        found = here.rows()
        spans.extend(found[0])
        marks.extend(found[1])

    for number, index in enumerate(batches(range(40))):
        with Scope("forward"):
            mark("loss", index)
            if number % 3 == 0:
                flush()
            with Scope("attention"):
                mark("loss", 1000 + index)
                if number % 5 == 0:
                    flush()
        if number % 7 == 0:
            flush()
    flush()
    assert Counter(span.name for span in spans) == {"step": 40, "forward": 10, "attention": 10}
    assert sorted(m.value for m in marks) == [*range(40), *range(1000, 1040)]
    ids = {span.id for span in spans}
    assert {m.span_id for m in marks} <= ids
    assert {span.parent_id for span in spans} <= ids | {here.scope.id}
    assert len({m.id for m in marks}) == 80
    assert thinner.thinned == 60


def test_foreign_spans_are_not_thinned(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(1000, NEVER_SLOW))
    assert isinstance(here.foreign, ForeignSpans)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(here.foreign))
    for _ in batches(range(3)):
        with provider.get_tracer("client").start_as_current_span("GET"):
            pass
    assert Counter(span.name for span in here.rows()[0]) == {"step": 3, "GET": 3}


def test_slow_is_measured_against_recent_steps_alone(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(10_000, 2.0))
    lengths = [1000] * 150 + [3000] * 60 + [6001, 3000]
    for index, length in enumerate(lengths):
        step = Scope("step", index)
        with step, Scope("forward"):
            pass
        step._end = step._start + length
    # The first by its number, then those that are slow until 3000 is the median, then one more.
    kept = [index for index, inside in insides(here.rows()[0]).items() if inside]
    assert kept == [0, *range(150, 201), 210]


def test_a_mark_waits_for_a_step_that_is_still_in_the_buffers(session_with: Open) -> None:
    """A portion of a backlog may contain the marks of scopes that later portions contain."""
    thinner = DetailSampler(1, NEVER_SLOW)
    session_with(thinner=thinner)
    with Scope("step") as step, Scope("forward") as forward:
        pass
    entry = (forward, "loss", 1, forward._end, "point", None)
    for entries in ([entry], [], []):
        assert thinner.filter([], entries, False, {step, forward}) == ([], [])
    assert thinner.filter([forward, step], [], False) == ([step, forward], [entry])
