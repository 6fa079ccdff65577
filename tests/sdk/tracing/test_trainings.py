"""`ci.training`: steps have the number of their training, and the session a mark for each."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import cirron_otel as ci
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.clock import now
from cirron_otel.sdk.tracing.trainings import Training, Trainings, trainings
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.conftest import OpenSession

Rows = tuple[list[Any], list[Any]]


def steps(number: int = 2) -> None:
    """Manual steps, with and without a number."""
    for index in range(number - 1):
        with ci.scope("step", index), ci.scope("forward"):
            pass
    with ci.scope("step"):
        pass


def numbers(rows: list[Any], name: str = "step") -> list[int | None]:
    return [row.attrs.get("training") for row in rows if row.name == name]


def marks_of(marks: list[Any], session: OpenSession) -> list[tuple[int, Any]]:
    found = [mark for mark in marks if mark.name == "training"]
    assert {(mark.span_id, mark.value_type, mark.kind) for mark in found} <= {
        (session.scope.id, "int", "point")
    }
    return [(mark.value, mark.attrs.get("name")) for mark in found]


def test_no_training_is_named(session: OpenSession) -> None:
    for _ in ci.epochs(range(2)):
        steps()
    rows, marks = session.rows()
    assert not any("training" in row.attrs for row in rows)
    assert marks_of(marks, session) == []


def _calls() -> None:
    ci.training("fold 0")
    steps()
    ci.training("fold 1")
    steps()
    ci.training()
    steps()


def _blocks() -> None:
    for fold in range(2):
        with ci.training(f"fold {fold}"):
            steps()


def _steps_between_blocks() -> None:
    steps()
    with ci.training("fold 0"):
        steps()
    steps()
    with ci.training("fold 1"):
        steps()
    steps()


def _nothing_ahead_of_a_name() -> None:
    with ci.scope("setup"):
        ci.mark("size", 3)
    ci.training("only")
    steps()


def _inner_block() -> None:
    with ci.training("outer"):
        steps()
        with ci.training("inner"):
            steps()
        steps()
    steps()


def _block_after_a_bare_call_in_a_block() -> None:
    with ci.training("a"):
        steps()
        ci.training("b")
        steps()
        with ci.training("c"):
            steps()
        steps()


def _without_steps() -> None:
    with ci.training("failed"):
        pass
    with ci.training("next"):
        steps()


def _ended_by_an_exception() -> None:
    def fold() -> None:
        with ci.training("broken"):
            steps()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fold()
    steps()


@pytest.mark.parametrize(
    ("program", "expected", "begun"),
    [
        (_calls, [None, None, 1, 1, 2, 2], [(0, "fold 0"), (1, "fold 1"), (2, None)]),
        (_blocks, [None, None, 1, 1], [(0, "fold 0"), (1, "fold 1")]),
        (
            _steps_between_blocks,
            [None, None, 1, 1, 2, 2, 3, 3, 4, 4],
            [(1, "fold 0"), (2, None), (3, "fold 1"), (4, None)],
        ),
        (_nothing_ahead_of_a_name, [None, None], [(0, "only")]),
        (
            _inner_block,
            [None, None, 1, 1, None, None, 2, 2],
            [(0, "outer"), (1, "inner"), (2, None)],
        ),
        (
            _block_after_a_bare_call_in_a_block,
            [None, None, 1, 1, 2, 2, None, None],
            [(0, "a"), (1, "b"), (2, "c")],
        ),
        (_without_steps, [1, 1], [(0, "failed"), (1, "next")]),
        (_ended_by_an_exception, [None, None, 1, 1], [(0, "broken"), (1, None)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flushes", [False, True])
def test_steps_have_the_number_of_their_training(
    program: Callable[[], None], expected: Any, begun: Any, flushes: bool, session: OpenSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rows: list[Any] = []
    marks: list[Any] = []

    def flush() -> None:
        spans, points = session.rows()
        rows.extend(spans)
        marks.extend(points)

    if flushes:  # after all steps of each part, and between a step and the next call
        original = steps

        def flushed(number: int = 2) -> None:
            original(number)
            flush()

        monkeypatch.setitem(globals(), "steps", flushed)
    program()
    flush()
    assert numbers(rows) == expected
    assert marks_of(marks, session) == begun
    assert numbers(rows, "forward") == [None] * (len(expected) // 2)
    assert not any(errors.counts.values())


def test_epochs_have_the_number(session: OpenSession) -> None:
    for number in range(2):
        with ci.training(f"fold {number}"):
            for _ in ci.epochs(range(2)):
                for _ in ci.batches(range(2), name="batch"):
                    pass
    rows, _ = session.rows()
    assert numbers(rows, "epoch") == [None, None, 1, 1]
    assert numbers(rows, "batch") == [None] * 4 + [1] * 4
    places = [(row.attrs["epoch"], row.attrs["global_step"]) for row in rows if row.name == "batch"]
    assert places == [(0, 0), (0, 1), (1, 2), (1, 3), (0, 4), (0, 5), (1, 6), (1, 7)]


def test_a_call_in_a_step_counts_from_the_next_step(session: OpenSession) -> None:
    for index in ci.batches(range(4)):
        if index == 1:
            ci.training("second half")
    rows, _ = session.rows()
    assert numbers(rows) == [None, None, 1, 1]


def test_the_attribute_of_the_program_stays(session: OpenSession) -> None:
    steps()
    ci.training()
    with ci.scope("step", 0, training="mine"):
        pass
    assert numbers(session.rows()[0]) == [None, None, "mine"]


def test_each_thread_has_its_trainings(session: OpenSession) -> None:
    barrier = threading.Barrier(2)

    def fold(name: str) -> int:
        with ci.training(name):
            barrier.wait()
            steps()
            barrier.wait()
        return threading.get_ident()

    with ThreadPoolExecutor(2) as pool:
        threads = list(pool.map(fold, ("a", "b")))
    rows, marks = session.rows()
    names = {name: value or None for value, name in marks_of(marks, session)}
    assert {names["a"], names["b"]} == {None, 1}
    for name, thread in zip(("a", "b"), threads, strict=True):
        mine = [row for row in rows if row.thread_id == thread]
        assert numbers(mine) == [names[name]] * 2


def test_calls_of_one_thread_count_for_a_thread_without_calls(session: OpenSession) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            ci.training()
            pool.submit(steps).result()
    assert numbers(session.rows()[0]) == [None, None, 1, 1]


def test_the_first_call_of_a_thread_does_not_renumber_its_earlier_steps(
    session: OpenSession,
) -> None:
    ci.training("a")
    steps()
    ci.training("b")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(steps).result()
        pool.submit(ci.training, "c").result()
        pool.submit(steps).result()
    rows, marks = session.rows()
    assert numbers(rows) == [None, None, 1, 1, 2, 2]
    assert marks_of(marks, session) == [(0, "a"), (1, "b"), (2, "c")]


def _in_thread(work: Callable[[], None], ident: int | None = None) -> int:
    """Run a function in a new thread whose id is `ident`, that of a thread that has ended."""
    ran: list[int] = []

    def run() -> None:
        if ident in (None, threading.get_ident()):
            work()
            ran.append(threading.get_ident())

    for _ in range(1_000):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if ran:
            return ran[0]
    raise AssertionError("no other thread got the id of the thread that has ended")


@pytest.mark.parametrize("calls", [False, True])
def test_a_thread_is_in_no_training_of_an_ended_thread_with_its_id(
    calls: bool, session: OpenSession
) -> None:
    def first() -> None:
        ci.training("warm")
        steps()

    def second() -> None:
        steps()
        if calls:
            ci.training("own")
            steps()

    ident = _in_thread(first)
    ci.training("main")
    _in_thread(second, ident)
    rows, marks = session.rows()
    assert numbers(rows) == [None, None, 1, 1, *([2, 2] if calls else [])]
    assert marks_of(marks, session)[:2] == [(0, "warm"), (1, "main")]


def test_a_call_while_the_thread_makes_another_one_returns(session: OpenSession) -> None:
    """A signal handler may make the inner call."""

    def call() -> None:
        with trainings._lock:
            ci.training("inner")

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert marks_of(session.rows()[1], session) == [(0, "inner")]


def test_a_block_ends_in_a_child_that_is_forked_during_a_call(tmp_path: Path) -> None:
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with trainings._lock:
            is_held.set()
            is_over.wait()

    with ci.profile(output_dir=tmp_path, exporters="none", sample_interval=None):
        block = ci.training("parent").__enter__()
        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()
        end = partial(block.__exit__, None, None, None)
        child = multiprocessing.get_context("fork").Process(target=end)
        child.start()
        is_over.set()
        child.join(30)
        child.kill()  # only if it hangs
        child.join()
        thread.join()
    assert child.exitcode == 0


def test_a_step_spared_by_a_full_buffer_precedes_the_first_call(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers.limits, "scopes", 10)
    with ci.scope("step", 0):
        for _ in range(2_000):
            with ci.scope("part"):
                pass
    assert buffers.spared_scopes
    ci.training("second")
    rows, marks = session.rows()
    assert numbers(rows) == [None]
    assert marks_of(marks, session) == [(1, "second")]


@pytest.mark.parametrize("creates", ["record", "mark"])
@pytest.mark.parametrize("line", range(10))
def test_a_number_in_a_record_is_not_used_again(
    creates: str, line: int, session: OpenSession
) -> None:
    """While the flush thread creates a record, at each of its lines, another training replaces the
    one of the record, and a further one begins."""
    thread, begun = threading.get_ident(), now()
    epoch = SimpleNamespace(_start=begun, _id=1)
    scope: Any = SimpleNamespace(_thread=thread, _start=begun, _name="step")
    replaced = trainings.begin_in(epoch, thread)
    later: list[Training] = []

    def replace(*, blocking: bool) -> None:
        replaced.instead = trainings.first
        if trainings._lock.acquire(blocking=blocking):
            later.append(trainings.begin_in(SimpleNamespace(_start=now(), _id=2), thread))
            trainings._lock.release()

    def other_thread() -> None:
        other = threading.Thread(target=replace, kwargs={"blocking": False})
        other.start()
        other.join()

    code = (Trainings.recorded if creates == "record" else Trainings.marks_of).__code__
    with interrupted(code, line, other_thread):
        if creates == "record":
            found = trainings.recorded(scope).get("training", 0)
        else:
            entries = trainings.marks_of([scope], session.scope)
            found = entries[0][2] if entries else 0
    if not later:
        replace(blocking=True)
    assert found == 0 or later[0].number != found


@contextmanager
def interrupted(code: CodeType, number: int, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` ahead of a line, counted from 0, that this thread executes in a function."""
    lines = count()

    def of_line(_frame: Any, event: str, _value: Any) -> Any:
        if event == "line" and next(lines) == number:
            action()
        return of_line

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _value: of_line if frame.f_code is code else None)
    try:
        yield
    finally:
        sys.settrace(before)


def test_an_open_step_in_the_journal_has_the_number(session: OpenSession) -> None:
    steps()
    ci.training()
    with ci.scope("epoch", 0), ci.scope("step", 0):
        found = session.collect()
    assert sorted((row.name, row.attrs.get("training")) for row in found.open) == [
        ("cirron.session", None), ("epoch", 1), ("step", 1)
    ]  # fmt: skip


class _Hostile(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("name", "expected"), [(3, "3"), ("", ""), (_Hostile("a"), "a"), (object, str(object))]
)
def test_any_name_is_accepted(name: Any, expected: str, session: OpenSession) -> None:
    ci.training(name)
    assert marks_of(session.rows()[1], session) == [(0, expected)]
    assert not any(errors.counts.values())


def test_without_a_session_nothing_is_recorded() -> None:
    with ci.training("early"):
        pass
    assert not trainings.is_used
    assert not any(errors.counts.values())


def test_a_session_begins_with_training_0(tmp_path: Path) -> None:
    for run in ("one", "two"):
        with ci.profile(output_dir=tmp_path / run, exporters="none", sample_interval=None):
            for _ in range(2):
                with ci.training(run):
                    steps()
        spool = read_spool(tmp_path / run)
        found = [s["attrs"].get("training") for s in spool.spans if s["name"] == "step"]
        assert found == [None, None, 1, 1]


def test_spans_of_the_application_have_the_number(tmp_path: Path) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ci.profile(output_dir=tmp_path, exporters="none", provider=provider):
        for _ in range(2):
            with ci.training():
                for _ in ci.epochs(range(1)):
                    steps()
    spans = [span for span in exporter.get_finished_spans() if span.name in ("step", "epoch")]
    assert [span.attributes.get("training") for span in spans if span.attributes is not None] == [
        None, None, None, 1, 1, 1,
    ]  # fmt: skip
    stored = [s["attrs"].get("training") for s in read_spool(tmp_path).spans if s["name"] == "step"]
    assert stored == [None, None, 1, 1]


def test_conversion_to_otlp_and_back_keeps_the_number(tmp_path: Path) -> None:
    with ci.profile(output_dir=tmp_path / "run", exporters="none", sample_interval=None):
        for name in ("a", "b"):
            with ci.training(name):
                for _ in ci.epochs(range(1)):
                    steps()
    traces, back = tmp_path / "traces.json", tmp_path / "back"
    convert(ConvertRequest(str(tmp_path / "run"), str(traces), target_format="otlp-json"))
    convert(ConvertRequest(str(traces), str(back), target_format="spool"))
    spans = [
        (span["name"], [each["value"] for each in span["attributes"] if each["key"] == "training"])
        for resource in json.loads(traces.read_text())["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    one = {"intValue": "1"}
    assert sorted((span for span in spans if span[0] in ("epoch", "step")), key=str) == [
        ("epoch", []), ("epoch", [one]), *[("step", [])] * 2, *[("step", [one])] * 2
    ]  # fmt: skip
    original, again = read_spool(tmp_path / "run"), read_spool(back)
    for name in ("spans", "marks"):
        records, others = getattr(original, name), getattr(again, name)
        assert {each["id"]: each["attrs"] for each in others} == {
            each["id"]: each["attrs"] for each in records
        }
