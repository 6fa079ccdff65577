"""The time outside of steps by account: each nanosecond between steps is counted once."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from cirron_otel.sdk.flush.measures import Measures
from cirron_otel.sdk.tracing.loops import batches
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from tests.sdk.conftest import OpenSession


def measure(session: OpenSession, measures: Measures) -> None:
    session.collector.retains_records = True
    measures(session.collect())


def length(*scopes: Scope) -> float:
    return pytest.approx(sum(each._end - each._start for each in scopes) / 1e9)


def gap(before: Any, after: Any) -> int:
    return after._start - before._end


def step(*inside: str) -> Scope:
    with Scope("step", 0) as scope:
        for name in inside:
            with Scope(name):
                pass
    return scope


def test_time_between_steps_belongs_to_its_scopes_and_the_rest_to_the_gap(
    session: OpenSession,
) -> None:
    measures = Measures()
    with Scope("epoch", 0):
        first = step("forward")
        with Scope("eval") as evaluation, Scope("forward"):
            pass
        with Scope("save_checkpoint") as checkpoint:
            pass
        second = step()
    measure(session, measures)
    found = measures.outside()
    assert found.pop("start_up") == pytest.approx((first._start - session.scope._start) / 1e9)
    assert found.pop("evaluation") == length(evaluation)
    assert found.pop("checkpoint") == length(checkpoint)
    counted = sum(each._end - each._start for each in (evaluation, checkpoint))
    assert found == {"between_units": pytest.approx((gap(first, second) - counted) / 1e9)}


def test_innermost_account_counts(session: OpenSession) -> None:
    measures = Measures()
    step()
    with Scope("rollout") as rollout:
        with Scope("eval") as evaluation, Scope("log_metrics") as logging:
            pass
        with Scope("data_load") as load:
            pass
    step()
    measure(session, measures)
    found = measures.outside()
    inside = evaluation._end - evaluation._start, load._end - load._start
    rest = rollout._end - rollout._start - sum(inside)
    assert found["other_scopes"] == pytest.approx(rest / 1e9)
    assert found["input"] == length(load)
    assert found["logging"] == length(logging)
    assert found["evaluation"] == pytest.approx((inside[0] - (logging._end - logging._start)) / 1e9)


def test_scopes_before_the_first_step_are_start_up_unless_they_are_a_checkpoint(
    session: OpenSession,
) -> None:
    measures = Measures()
    with Scope("set_up"), Scope("load_checkpoint") as checkpoint:
        pass
    first = step()
    measure(session, measures)
    start_up = first._start - session.scope._start - (checkpoint._end - checkpoint._start)
    assert measures.outside() == {
        "start_up": pytest.approx(start_up / 1e9), "checkpoint": length(checkpoint)
    }  # fmt: skip


def test_scopes_of_other_threads_and_scopes_around_steps_do_not_count(
    session: OpenSession,
) -> None:
    measures = Measures()
    first = step()
    with Scope("training"):
        second = step()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        third = step()
    measure(session, measures)
    found = measures.outside()
    found.pop("start_up")
    assert found == {
        "between_units": pytest.approx((gap(first, second) + gap(second, third)) / 1e9)
    }


@pytest.mark.parametrize("seed", range(30))
def test_accounts_add_up_to_the_time_outside_of_steps(session: OpenSession, seed: int) -> None:
    """Random loops, measured at random moments: no time is counted twice, and none is missing."""
    chance = random.Random(seed)
    measures = Measures()
    names = ["eval", "checkpoint", "mine", "data_load", "log_x", "forward", "epoch"]
    found: list[Scope] = []

    def nest(depth: int) -> None:
        with Scope(chance.choice(names)):
            for _ in range(chance.randrange(3) if depth < 4 else 0):
                nest(depth + 1)
            if chance.random() < 0.1:
                measure(session, measures)

    for _ in range(chance.randrange(2, 8)):
        for _ in range(chance.randrange(3)):
            nest(0)
        around = Scope(chance.choice([*names[2:], "train"]))
        with around if chance.random() < 0.5 else nullcontext():
            for _ in range(chance.randrange(2)):
                nest(0)
            found.append(step("forward"))
        if chance.random() < 0.3:
            measure(session, measures)
    measure(session, measures)
    begun = found[0]._start - session.scope._start
    between = sum(gap(a, b) for a, b in pairwise(found))
    assert sum(measures.outside().values()) == pytest.approx((begun + between) / 1e9)


def test_the_end_of_the_session_counts_as_shut_down(session: OpenSession) -> None:
    measures = Measures()
    last = step()
    session.collector.retains_records = True
    measures(session.collect(is_last=True))
    assert measures.outside()["shut_down"] == pytest.approx((session.scope._end - last._end) / 1e9)


def test_units_and_the_current_place(session: OpenSession) -> None:
    measures = Measures()
    for epoch in range(2):
        with Scope("epoch", epoch):
            for _ in batches(range(3)):
                pass
    with Scope("request"):
        pass
    measure(session, measures)
    assert measures.units() == {"step": 6, "request": 1}
    assert measures.place() == {"epoch": 1, "global_step": 5}
    with Scope("step", 0, global_step=40):
        pass
    measure(session, measures)
    assert measures.place() == {"global_step": 40}


def test_start_up_begins_with_the_session_also_in_a_span_of_another_library(
    session: OpenSession,
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(session.foreign))
    measures = Measures()
    with provider.get_tracer("other").start_as_current_span("around"):
        first = step()
        with Scope("eval") as evaluation:
            pass
        second = step()
    measure(session, measures)
    between = gap(first, second) - (evaluation._end - evaluation._start)
    assert measures.outside() == {
        "start_up": pytest.approx((first._start - session.scope._start) / 1e9),
        "evaluation": length(evaluation),
        "between_units": pytest.approx(between / 1e9),
    }
