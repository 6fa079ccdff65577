"""The marks of the sampler: on the scope that was open in the training thread, once, and listed."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.sdk.tracing import buffers as buf
from cirron_otel.sdk.tracing.open_scopes import TrainingThread, pinned
from cirron_otel.sdk.tracing.state import state
from tests.kit.sessions.processes import until
from tests.kit.sessions.spool_trees import Spool, read_spool

NAMES = ("memory", "process.cpu.utilization")
SLACK_NS = 1_000_000_000


@pytest.fixture
def often() -> Iterator[None]:
    """Threads switch as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def record(directory: Path, work: Callable[[], object], **options: Any) -> Spool:
    """Trace `work` with a sample every 10 ms."""
    ci.profile(
        output_dir=directory, exporters="none", join="none", handle_signals=False, frameworks=[],
        **{"sample_interval": 0.01, "flush_interval": 0.005, **options},
    )  # fmt: skip
    try:
        work()
        assert ci.health()["swallowed_errors"] == {}
    finally:
        ci.shutdown()
    assert ci.health()["drops"]["marks_without_value_or_scope"] == 0
    return read_spool(directory)


def samples(spool: Spool) -> list[dict[str, Any]]:
    return [mark for mark in spool.marks if mark["name"] in NAMES]


def sampled(count: int) -> Callable[[], bool]:
    """Whether so many samples have been taken since this call."""
    before = ci.health()["sampling"]["samples"]
    return lambda: ci.health()["sampling"]["samples"] >= before + count


def train(count: int = 80, seen: Callable[[], object] = lambda: None) -> None:
    """Steps of four short phases, until so many samples have been taken."""
    is_over = sampled(count)
    for _ in ci.epochs(range(2)):
        for _ in ci.batches(iter(lambda: not is_over(), False)):
            for name in ("data_load", "forward", "backward", "optimizer_step"):
                with ci.scope(name):
                    seen()


@pytest.mark.parametrize("options", [{}, {"detail_every": 3}, {"flush_interval": 60}])
def test_each_mark_is_on_its_scope_and_listed(
    tmp_path: Path, often: None, options: dict[str, Any]
) -> None:
    # With empty phases, most samples are taken in the step around them.
    spool = record(tmp_path, lambda: train(seen=lambda: sum(range(10_000))), **options)
    marks = samples(spool)
    assert len(marks) > 40
    assert spool.lost == spool.outside == []
    spans = {span["id"]: span for span in spool.spans}
    assert len(spans) == len(spool.spans)
    for mark in marks:
        span = spans[mark["span_id"]]
        assert mark["id"] in span["mark_ids"]
        assert span["start_ns"] <= mark["ts_ns"]
        # A flush may find a scope open whose end has been determined, and is not stored yet.
        assert mark["ts_ns"] <= span["end_ns"] + SLACK_NS
    assert {spans[mark["span_id"]]["name"] for mark in marks} & {"forward", "backward"}
    assert list(verify_spool(SpoolReader(tmp_path))) == []
    assert spool.session.find("epoch")


def test_the_scope_is_the_innermost_one(tmp_path: Path) -> None:
    spool = record(tmp_path, lambda: train(150, lambda: time.sleep(0.003)))
    spans = {span["id"]: span for span in spool.spans}
    marks = samples(spool)
    on_phases = 0
    for mark in marks:
        inside = [
            span
            for span in spool.spans
            if span["parent_id"] == mark["span_id"]
            and span["start_ns"] < mark["ts_ns"] < span["end_ns"]
        ]
        on_phases += not inside and spans[mark["span_id"]]["name"] not in ("step", "epoch")
    # The threads may switch at the beginning and the end of a scope.
    assert on_phases > 0.8 * len(marks)


def test_a_long_scope_gets_the_samples_although_the_flush_has_taken_it(tmp_path: Path) -> None:
    def work() -> None:
        with ci.scope("outer"), ci.scope("inner"):
            until(sampled(15))

    spool = record(tmp_path, work)
    inner = spool.session.one("inner")
    assert len([mark for mark in inner.marks if mark["name"] == "memory"]) > 10


def test_after_a_scope_its_parent_gets_them(tmp_path: Path) -> None:
    def work() -> None:
        with ci.scope("outer"):
            for _ in range(3):
                with ci.scope("inner"):
                    pass
            ci.flush()
            until(sampled(15))
        ci.flush()
        until(sampled(15))

    spool = record(tmp_path, work)
    outer = spool.session.one("outer")
    for node in (outer, spool.session):
        assert len([mark for mark in node.marks if mark["name"] == "memory"]) > 10


def test_sampler_does_not_keep_scopes_alive(tmp_path: Path) -> None:
    """The last samples are kept for the record of an out-of-memory error, without their scopes."""
    scopes: list[weakref.ref[Any]] = []
    before: list[int] = []

    def work() -> None:
        with ci.scope("inner") as inner:
            scopes.append(weakref.ref(inner))
            before.append(ci.health()["sampling"]["samples"])
            until(lambda: ci.health()["sampling"]["samples"] > before[0] + 2)
        del inner
        with ci.scope("later"):
            ci.flush()
            ci.flush()
            gc.collect()
            until(lambda: scopes[0]() is None)
            assert ci.health()["sampling"]["samples"] < before[0] + 100

    record(tmp_path, work, sample_interval=0.2)


class TestTrainingThread:
    """Several threads have open scopes."""

    @pytest.fixture(autouse=True)
    def session(self, tmp_path: Path) -> Iterator[None]:
        ci.profile(
            output_dir=tmp_path, exporters="none", join="none", handle_signals=False,
            frameworks=[], sample_interval=None, flush_interval=600,
        )  # fmt: skip
        yield
        ci.shutdown()

    def other(self, *names: str) -> tuple[threading.Thread, threading.Event]:
        """A thread with open scopes, which it leaves when the event is set."""
        ready, over = threading.Event(), threading.Event()

        def run() -> None:
            scopes = [ci.scope(name) for name in names]
            for scope in scopes:
                scope.__enter__()
            ready.set()
            over.wait(60)
            for scope in reversed(scopes):
                scope.__exit__(None, None, None)

        thread = threading.Thread(target=run)
        thread.start()
        assert ready.wait(60)
        return thread, over

    def test_without_a_scope_it_is_the_session(self) -> None:
        assert TrainingThread(threading.get_ident()).innermost() is state.session

    @pytest.mark.parametrize("is_taken", [False, True])
    def test_a_step_takes_precedence_over_other_scopes(self, is_taken: bool) -> None:
        training = TrainingThread(threading.get_ident())
        with ci.scope("serving"):
            assert training.innermost()._name == "serving"
            thread, over = self.other("step", "forward")
            if is_taken:
                ci.flush()
            assert training.innermost()._name == "forward"
            over.set()
            thread.join()
            assert training.innermost()._name == "serving"

    def test_chosen_thread_is_retained_while_it_is_as_good(self) -> None:
        training = TrainingThread(threading.get_ident())
        thread, over = self.other("step")
        assert training.innermost()._thread == thread.ident
        with ci.scope("step"):
            assert training.innermost()._thread == thread.ident
            over.set()
            thread.join()
            assert training.innermost()._thread == threading.get_ident()

    def test_a_thread_that_ended_inside_a_scope_does_not_count(self) -> None:
        def leave_open() -> None:
            ci.scope("step").__enter__()

        thread = threading.Thread(target=leave_open)
        thread.start()
        thread.join()
        with ci.scope("evaluation"):
            assert TrainingThread(threading.get_ident()).innermost()._name == "evaluation"

    def test_a_scope_is_left_while_its_exception_is_recorded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        training = TrainingThread(threading.get_ident())
        found = []
        monkeypatch.setattr(state, "failed", lambda *_: found.append(training.pin()[0]._name))
        with ci.scope("step"), contextlib.suppress(ValueError), ci.scope("forward"):
            assert training.pin()[0]._name == "forward"
            raise ValueError
        assert found == ["step"]

    def test_a_scope_of_another_thread_is_not_this_threads(self) -> None:
        """A worker with the context of the training thread has no open scope of its own."""
        training = TrainingThread(threading.get_ident())
        with ci.scope("step") as step:
            thread, over = self.other()
            assert training.innermost() is step
            over.set()
            thread.join()

    def test_a_pinned_scope_is_not_sealed(self, tmp_path: Path) -> None:
        training = TrainingThread(threading.get_ident())
        with ci.scope("outer"):
            with ci.scope("inner"):
                scope, at = training.pin()
            assert scope._name == "inner"
            assert scope._start <= at <= scope._end
        ci.flush()
        assert read_spool(tmp_path).spans == []
        buf.local.b.marks.append((scope, "late", 1, at, "point", None))
        pinned.scope = None
        ci.flush()
        spool = read_spool(tmp_path)
        (inner,) = (span for span in spool.spans if span["name"] == "inner")
        (mark,) = (mark for mark in spool.marks if mark["name"] == "late")
        assert mark["span_id"] == inner["id"]
        assert mark["id"] in inner["mark_ids"]
        assert {span["name"] for span in spool.spans} == {"inner", "outer"}


def test_user_marks_with_sampler_names_are_not_taken_for_samples(tmp_path: Path) -> None:
    """Only marks that the sampler made are no gauges."""
    from cirron_otel.sdk.flush.measures import Measures
    from cirron_otel.sdk.tracing.mark import SampleAttributes

    measures = Measures()
    measures._take_marks(
        [
            (state.session, "memory", 5, 1, "point", SampleAttributes(device_id=-1)),
            (state.session, "memory.used", 6, 1, "point", None),
        ]
    )
    assert measures.marks() == {"memory.used": 6.0}
    measures._take_marks([(state.session, "memory", 7, 1, "point", {"device_id": -1})])
    assert measures.marks()["memory"] == 7.0


def test_exported_points_are_in_order_of_time(tmp_path: Path) -> None:
    """Marks may wait for their scopes, so that a later mark is sealed first."""
    from cirron_otel.sdk.flush.measures import Measures
    from cirron_otel.sdk.tracing.mark import SampleAttributes

    measures = Measures()
    attributes = SampleAttributes(device_id=-1, backend="cpu")
    for at in (30, 10, 20, 10):
        entry = (state.session, "memory", 5 * at, at, "point", attributes)
        measures._take_marks([entry])
    assert [point.value for point in measures.points()] == [50, 100, 150]
