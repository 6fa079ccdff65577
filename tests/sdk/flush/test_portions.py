"""A backlog is sealed in portions, each with complete spans."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.sdk.flush import drain
from cirron_otel.sdk.tracing.detail_sampling import DetailSampler
from tests.sdk.conftest import OpenSession


def test_a_backlog_is_taken_in_portions_the_oldest_first(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "PORTION", 10)

    def work(own: str) -> None:
        with ci.scope(own):
            for number in range(40):
                with ci.scope("step", number):
                    ci.mark("loss", number)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    work("main")
    told = []
    while drain.waiting() > 10:
        before = drain.waiting()
        with session.owned():
            found = session.collector.collect(is_portion=True)
        told.append([batch.rows() for batch in found.batches])
        assert drain.waiting() < before
    assert len(told) > 3
    told.append([batch.rows() for batch in session.collect().batches])
    spans = [row for some in told for rows, _ in some for row in rows]
    marks = [row for some in told for _, rows in some for row in rows]
    assert len({span.id for span in spans}) == len(spans) == 4 * 41
    users = {mark.id for mark in marks if mark.name == "loss"}
    own = {mark.id for mark in marks} - users
    listed = [mark_id for span in spans for mark_id in span.mark_ids]
    assert len(users) == 4 * 40
    assert sorted(listed) == sorted(users | own)
    for some in told:
        for rows, others in some:
            assert rows == sorted(rows, key=lambda row: (row.end_ns, row.id))
            assert others == sorted(others, key=lambda row: (row.ts_ns, row.id))


def test_a_span_lists_all_marks_if_it_ends_after_the_portion_that_is_taken(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "PORTION", 10)
    with ci.scope("long"):
        ci.mark("loss", 0)
        batches = session.collect().batches
        for number in range(30):
            with ci.scope("step", number):
                ci.mark("loss", number)
        ci.mark("loss", 30)
    names = []
    for is_portion in (True, True, False):
        with session.owned():
            result = session.collector.collect(is_portion=is_portion)
        names.append({row.name for batch in result.batches for row in batch.rows()[0]})
        batches = [*batches, *result.batches]
    assert names[0] == {"step"}
    rows = [batch.rows() for batch in batches]
    listed = [mark_id for spans, _ in rows for span in spans for mark_id in span.mark_ids]
    assert sorted(listed) == sorted(mark.id for _, marks in rows for mark in marks)
    (span,) = [span for spans, _ in rows for span in spans if span.name == "long"]
    assert len(span.mark_ids) >= 2


def test_marks_without_scopes_are_taken_in_portions(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "PORTION", 10)
    with ci.scope("long"):
        session.collect()
        for number in range(50):
            ci.mark("loss", number)
    batches = []
    while (waiting := drain.waiting()) > 10:
        with session.owned():
            batches += session.collector.collect(is_portion=True).batches
        assert waiting - 12 <= drain.waiting() < waiting
    batches += session.collect().batches
    rows = [batch.rows() for batch in batches]
    marks = [mark for _, marks in rows for mark in marks if mark.name == "loss"]
    assert [mark.value for mark in marks] == list(range(50))
    (span,) = [span for spans, _ in rows for span in spans]
    assert {mark.id for mark in marks} <= set(span.mark_ids)


class _Random:
    """Records nested scopes and marks at random, and flushes portions or everything in between."""

    def __init__(self, session: OpenSession, seed: int) -> None:
        self.session, self.chance = session, random.Random(seed)
        self.batches: list[Any] = []
        self.marks = 0

    def flush(self) -> None:
        if self.chance.random() < 0.1:
            with self.session.owned():
                is_portion = self.chance.random() < 0.9
                result = self.session.collector.collect(is_portion=is_portion)
            self.batches += result.batches

    def mark(self) -> None:
        for _ in range(self.chance.choice((0, 0, 1, 3))):
            ci.mark("loss", self.marks)
            self.marks += 1
            self.flush()

    def nest(self, names: tuple[str, ...]) -> None:
        for _ in range(self.chance.randint(1, 6)):
            with ci.scope(names[0]) as scope:
                self.mark()
                if len(names) > 1:
                    self.nest(names[1:])
                if self.chance.random() < 0.2:
                    scope.end()  # earlier than its last mark, as the step of a loop
                    for _ in range(3):
                        ci.mark("loss", self.marks)
                        self.marks += 1
                else:
                    self.mark()
            self.flush()
            self.mark()


@pytest.mark.parametrize("every", [None, 1, 3])
@pytest.mark.parametrize("seed", range(40))
def test_each_mark_is_listed_by_the_span_that_it_refers_to(
    seed: int,
    every: int | None,
    session_with: Callable[..., OpenSession],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "PORTION", 5)
    session = session_with(thinner=DetailSampler(every, 100.0) if every else None)
    program = _Random(session, seed)
    program.nest(("epoch", "step", "part", "inner"))
    batches = [*program.batches, *session.collect(is_last=True).batches]
    rows = [batch.rows() for batch in batches]
    refers = {mark.id: mark.span_id for _, marks in rows for mark in marks}
    listed = {mark_id: span.id for spans, _ in rows for span in spans for mark_id in span.mark_ids}
    assert listed == refers
    assert sum(mark.name == "loss" for _, marks in rows for mark in marks) == program.marks


@pytest.mark.usefixtures("session")
def test_a_step_that_waits_for_a_later_portion_is_not_overdue() -> None:
    sampler = DetailSampler(2, 100.0)
    steps, parts = [], []
    for number in range(2):
        with ci.scope("step", number) as step, ci.scope("part") as part:
            pass
        steps.append(step)
        parts.append(part)
    assert sampler.filter([parts[0], steps[0]], [], False)[0] == [steps[0], parts[0]]
    assert sampler.filter([parts[1]], [], False)[0] == []  # the step ended, and is not taken yet
    assert sampler.filter([], [], False, {steps[1]})[0] == []
    assert sampler.filter([steps[1]], [], False)[0] == [steps[1]]


def test_spans_that_wait_for_a_later_portion_outlast_a_failure(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "PORTION", 5)
    with ci.scope("long"):
        for number in range(20):
            with ci.scope("step", number):
                ci.mark("loss", number)

    def fail(*_: Any) -> None:
        raise ValueError("no batches")

    with monkeypatch.context() as context, session.owned():
        context.setattr(session.collector, "_assemble", fail)
        for _ in range(2):
            with pytest.raises(ValueError, match="no batches"):
                session.collector.collect(is_portion=True)
    spans, _ = session.rows()
    assert "long" in {span.name for span in spans}
    assert len(spans) + session.collector.spans_lost == 21
