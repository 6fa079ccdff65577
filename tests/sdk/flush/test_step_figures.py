"""Each step's record has its loss, its length and the time it waited: a backend can filter them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import cirron_otel as ci
from cirron_otel.sdk.flush import step_figures as module
from cirron_otel.sdk.flush.rows import SpanRow
from cirron_otel.sdk.tracing.buffers import local
from cirron_otel.sdk.tracing.clock import now
from cirron_otel.sdk.tracing.coerce import Deferred
from cirron_otel.sdk.tracing.detail_sampling import DetailSampler
from cirron_otel.sdk.tracing.loops import batches
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from cirron_otel.semconv import LOSS, UNIT_NS, WAITING_NS
from tests.kit.sessions.whole import whole
from tests.sdk.conftest import OpenSession

Open = Callable[..., OpenSession]
NEVER_SLOW = math.inf


def steps(rows: list[SpanRow]) -> list[SpanRow]:
    return [row for row in rows if row.name == "step"]


def length(row: SpanRow) -> int:
    return row.end_ns - row.start_ns


def work(rows: list[SpanRow], step: SpanRow) -> int:
    """The time of a step's phases that are not `data_load`, those of micro steps included."""
    above = {step.id} | {r.id for r in rows if r.name == "micro_step" and r.parent_id == step.id}
    others = [row for row in rows if row.parent_id in above]
    return sum(length(row) for row in others if row.name not in ("data_load", "micro_step"))


def check(rows: list[SpanRow], losses: list[float | None]) -> None:
    """Every step has its length, the rest of its phases, and these losses."""
    found = steps(rows)
    for row in found:
        assert row.attrs[UNIT_NS] == length(row)
        assert row.attrs[WAITING_NS] == length(row) - work(rows, row)
    assert [row.attrs.get(LOSS) for row in found] == losses


def test_a_step_has_its_length_its_waiting_and_its_last_loss(session: OpenSession) -> None:
    for number in batches(range(3)):
        with Scope("data_load"):
            pass
        with Scope("forward"), Scope("attention"):
            mark("loss", 9.0)
            mark("Loss", 8.0)
            if number:
                mark("loss", number)
    check(session.rows()[0], [9.0, 1.0, 2.0])


def test_a_step_over_several_flushes(session: OpenSession) -> None:
    rows: list[SpanRow] = []
    for number in batches(range(2)):
        for name in ("forward", "backward"):
            with Scope(name):
                mark("loss", float(number))
            rows += session.rows()[0]
        mark("loss", number + 0.5)
        rows += session.rows()[0]
    rows += session.rows()[0]
    check(rows, [0.5, 1.5])


def test_phases_of_micro_steps_are_phases_of_the_step(session: OpenSession) -> None:
    for _ in batches(range(1)):
        for number in range(2):
            with Scope("micro_step", number):
                with Scope("data_load"):
                    pass
                with Scope("forward"):
                    mark("loss", number)
    check(session.rows()[0], [1.0])


@pytest.mark.parametrize(
    ("value", "loss"),
    [(1, 1.0), (Deferred(lambda: 0.25), 0.25), (math.nan, "nan"), (math.inf, "inf"), ("x", None),
     (True, None), (10**400, None), (Deferred(lambda: 1 / 0), None)],
)  # fmt: skip
def test_values_of_a_loss(session: OpenSession, value: Any, loss: Any) -> None:
    for _ in batches(range(1)):
        with Scope("forward") as scope:
            if type(value) is Deferred:  # a scalar on a device
                local.b.marks.append((scope, "loss", value, now(), "point", {}))
            else:
                mark("loss", value)
    check(session.rows()[0], [loss])


def test_marks_outside_of_a_step_are_not_its_loss(session: OpenSession) -> None:
    with Scope("epoch", 0):
        mark("loss", 1.0)
        for _ in batches(range(1)):
            with Scope("forward"):
                pass
        mark("loss", 2.0)
    check(session.rows()[0], [None])


def test_attributes_of_the_program_take_precedence(session: OpenSession) -> None:
    with Scope("step", 0, loss="low", **{UNIT_NS: 1}), Scope("forward"):
        mark("loss", 0.5)
    (step,) = steps(session.rows()[0])
    assert (step.attrs["loss"], step.attrs[UNIT_NS]) == ("low", 1)


def test_a_step_without_phases_has_no_waiting_time(session: OpenSession) -> None:
    for _ in batches(range(1)):
        pass
    (step,) = steps(session.rows()[0])
    assert step.attrs == {UNIT_NS: length(step), "global_step": 0}


def test_a_step_inside_another_one_is_part_of_it(session: OpenSession) -> None:
    with Scope("step", 0), Scope("forward"), Scope("step", 0), Scope("forward"):
        mark("loss", 0.5)
    inner, outer = steps(session.rows()[0])
    assert inner.attrs == {}
    assert outer.attrs.keys() == {UNIT_NS, WAITING_NS, "loss", "global_step"}


def test_waiting_is_unknown_if_phases_were_discarded(session_with: Open) -> None:
    here = session_with(thinner=DetailSampler(2, NEVER_SLOW))
    for number in batches(range(4)):
        with Scope("forward"):
            mark("loss", number)
        with Scope("sent") as sent:
            sent.get_span_context()  # the scope is retained in every step
    found = steps(here.rows()[0])
    assert [row.attrs["loss"] for row in found] == [0.0, 1.0, 2.0, 3.0]
    assert [WAITING_NS in row.attrs for row in found] == [True, False, True, False]


def test_scopes_that_end_after_their_step_are_forgotten(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 3)
    for number in range(20):
        late = Scope("late")
        with Scope("step", number):
            late.__enter__()
        session.rows()
        late.__exit__(None, None, None)
        session.rows()
    assert len(session.collector._figures._work) <= 4


def test_the_spool_has_the_figures_of_a_job(tmp_path: Path) -> None:
    ci.profile(frameworks=[], output_dir=str(tmp_path), flush_interval=0.001)
    for number in ci.batches(range(50)):
        with ci.scope("data_load"):
            pass
        with ci.scope("forward"):
            ci.mark("loss", float(number))
    ci.shutdown()
    found = [span for span in whole(tmp_path).spans.values() if span["name"] == "step"]
    assert sorted(span["attrs"]["loss"] for span in found) == list(map(float, range(50)))
    for span in found:
        assert span["attrs"][UNIT_NS] == span["end_ns"] - span["start_ns"]
        assert 0 <= span["attrs"][WAITING_NS] <= span["attrs"][UNIT_NS]


def test_spans_of_other_libraries_are_transparent(session: OpenSession) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    tracer = provider.get_tracer("other")
    with tracer.start_as_current_span("around"):
        for _ in batches(range(1)):
            with tracer.start_as_current_span("inside"), Scope("forward") as forward:
                mark("loss", 0.5)
    (step,) = steps(session.rows()[0])
    assert step.attrs["loss"] == 0.5
    assert step.attrs[WAITING_NS] == length(step) - (forward._end - forward._start)
