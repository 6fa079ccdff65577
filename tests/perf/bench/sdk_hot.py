"""The hot path: what the training thread pays, beside the stock SDK and cirron-sdk.

All three in one process, a block of each in turn. Ours and cirron-sdk have their spool and flush
thread on. A quiet block is made of spurts, before each of which everything is flushed, and which
are too short to wake our flush thread; the others share the interpreter with a flush throughout.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import cirron_otel as ci

from .measure import Case, against, interleave
from .sdk_flush import kept

SCOPE_BAR, MARK_BAR, LOOP_BAR = 0.18, 0.25, 0.11
DEPTH = 4
MARKS = 1000
"""Marks of one scope, events of one span: the scope around them costs nothing to speak of."""

Work = Callable[[int], None]


# --- the stock SDK --------------------------------------------------------------------------------


def _provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanProcessor())  # its methods do nothing
    return provider


class Stock:
    """OpenTelemetry's own SDK, in a context without any session of ours."""

    def __init__(self) -> None:
        self._tracer = _provider().get_tracer("bench")

    def span(self, number: int) -> None:
        """Spans below an open one, as scopes lie below the session."""
        contextvars.Context().run(self._spans, number)

    def _spans(self, number: int) -> None:
        tracer = self._tracer
        with tracer.start_as_current_span("session"):
            for _ in range(number):
                with tracer.start_as_current_span("x"):
                    pass

    def add_event(self, number: int) -> None:
        """Events, `MARKS` of a span."""
        marks = min(number, MARKS)
        for _ in range(number // marks):
            span = self._tracer.start_span("x")
            for _ in range(marks):
                span.add_event("loss", {"value": 0.5})
            span.end()


# --- ours and cirron-sdk: the same calls ----------------------------------------------------------


@dataclass
class Subject:
    """An SDK with the API of Cirron, its session open; its spool lies in `spool`."""

    label: str
    sdk: Any
    spool: Path

    def scope(self, number: int) -> None:
        """Scopes directly below the session."""
        sdk = self.sdk
        for _ in range(number):
            with sdk.scope("x"):
                pass

    def deep_scope(self, number: int) -> None:
        """Scopes at depth 4."""
        with contextlib.ExitStack() as around:
            for name in "abc"[: DEPTH - 1]:
                around.enter_context(self.sdk.scope(name))
            self.scope(number)

    def mark(self, number: int) -> None:
        """Marks, `MARKS` of a scope."""
        sdk, marks = self.sdk, min(number, MARKS)
        for _ in range(number // marks):
            with sdk.scope("x"):
                for _ in range(marks):
                    sdk.mark("loss", 0.5)

    def loop(self, number: int) -> None:
        """Iterations over a range: no code of the user's runs between two of them."""
        for _ in self.sdk.batches(range(number)):
            pass

    def loop_over_generator(self, number: int) -> None:
        """Iterations over a generator: fetching an item runs outside of every step."""
        for _ in self.sdk.batches(_items(number)):
            pass

    def settle(self) -> None:
        """Nothing waits, and the spool is empty."""
        self.sdk.flush()
        for path in self.spool.glob("*.json"):
            path.unlink(missing_ok=True)


def _items(number: int) -> Iterator[int]:
    yield from range(number)


METHODS: tuple[tuple[str, str, str, float], ...] = (
    ("scope", "scope, depth 1", "span", SCOPE_BAR),
    ("deep_scope", f"scope, depth {DEPTH}", "span", SCOPE_BAR),
    ("mark", "mark", "add_event", MARK_BAR),
    ("loop", "loop iteration, range", "span", LOOP_BAR),
    ("loop_over_generator", "loop iteration, generator", "span", LOOP_BAR),
)
"""Method of Subject, what it is called, method of Stock that it is measured by, bar."""

SPURT = 4000
"""Fewer records than wake the flush thread before its time (`buffers.EARLY_FLUSH`)."""
WHILE_FLUSHING = ("scope", "mark", "loop")
FLUSHED = ("scope", "mark")
"""Whose flush is timed itself."""


class _Flushing:
    """A case whose blocks share the interpreter with a flush of as many records."""

    def __init__(self, subject: Subject, work: Work, items: int) -> None:
        self._subject, self._work, self._items = subject, work, items
        self._thread = threading.Thread()

    def prepare(self) -> None:
        self._subject.settle()
        self._work(self._items)
        self._thread = threading.Thread(target=self._subject.sdk.flush)

    def work(self, number: int) -> None:
        self._thread.start()
        self._work(number)

    def after(self) -> None:
        self._thread.join()


def cases(subjects: list[Subject], stock: Stock, items: int) -> dict[str, Case]:
    """Every case by its key: `stock.span`, `<label>.<method>`.

    With `+` it is done while a flush runs; with `!` the flush is what is timed.
    """

    def settle() -> None:  # nobody's records are flushed in a block of another
        for subject in subjects:
            subject.settle()

    def quiet(work: Work) -> Case:
        return Case(work.__name__, work, settle, spurt=SPURT)

    found = {f"stock.{name}": quiet(getattr(stock, name)) for name in ("span", "add_event")}
    for subject in subjects:
        for name, *_ in METHODS:
            work = getattr(subject, name)
            key = f"{subject.label}.{name}"
            found[key] = quiet(work)
            if name in WHILE_FLUSHING:
                found[f"{key}+"] = _flushing(subject, work, items, key)
            if name in FLUSHED:
                found[f"{key}!"] = _flush_itself(subject, work, items, key)
    return found


def _flushing(subject: Subject, work: Work, items: int, key: str) -> Case:
    beside = _Flushing(subject, work, items)
    return Case(f"{key}+", beside.work, beside.prepare, beside.after)


def _flush_itself(subject: Subject, work: Work, items: int, key: str) -> Case:
    def prepare() -> None:
        subject.settle()
        work(min(items, SPURT))

    return Case(f"{key}!", lambda _: subject.sdk.flush(), prepare, spurt=SPURT)


def report(found: dict[str, Case], labels: list[str], items: int) -> None:
    """The tables."""
    for floor in ("span", "add_event"):
        case = found[f"stock.{floor}"]
        print(
            f"  stock {floor:<22}{case.us(items):8.3f}, cpu {case.cpu_us(items):.3f}"
            f"  (half of its blocks lie within {case.spread():.0%})"
        )
    for label in labels:
        print(f"  {label}, quiet, / stock")
        for name, title, floor, bar in METHODS:
            case = found[f"{label}.{name}"]
            print(
                f"  {title:<28}{case.us(items):8.3f}  {against(case, found[f'stock.{floor}'], bar)}"
            )
    for label in labels:
        print(f"  {label}, {items:,} in a row while such records are flushed, / stock")
        for name, title, floor, _ in METHODS:
            if name in WHILE_FLUSHING:
                case = found[f"{label}.{name}+"]
                print(
                    f"  {title:<28}{case.us(items):8.3f}  {against(case, found[f'stock.{floor}'])}"
                )
        took = [f"{found[f'{label}.{name}!'].us(items):.3f} µs a {name}" for name in FLUSHED]
        print(f"  flush() of {min(items, SPURT):,} into the spool: {', '.join(took)}")


def compare(found: dict[str, Case], ours: str, other: str) -> None:
    """Whether each of ours is faster than its counterpart in the same run."""
    ratios = []
    for name, title, *_ in METHODS:
        mine, theirs = found[f"{ours}.{name}"], found[f"{other}.{name}"]
        by_cpu = mine.cpu_us(1) / theirs.cpu_us(1)
        slower = " SLOWER" if mine.us(1) >= theirs.us(1) else ""
        ratios.append(f"  {title:<28}{against(mine, theirs):>8}, cpu {by_cpu:.3f}{slower}")
    print(f"  {ours} / {other}, quiet", *ratios, sep="\n")


def start_ours() -> Subject:
    """A session as `profile()` opens it, but for the hooks."""
    ci.profile(frameworks=[], snapshots=None, output_dir="ours")
    return Subject("cirron-otel", ci, Path(ci.health()["spool_dir"]))


def hot_path(items: int, blocks: int, cirron: Any) -> None:
    """Scopes, marks and loops, and what each keeps in memory. `cirron` is None where it is not."""
    ours = start_ours()
    subjects = [ours]
    if cirron is not None:
        subjects.append(Subject("cirron-sdk", cirron, Path(".cirron/spool")))
    labels = [subject.label for subject in subjects]
    print(f"hot path, µs each: medians of {blocks} blocks of {items:,}, spool and flush thread on;")
    print("  `cpu`: the ratio of the thread's CPU times, for machines that have other work to do")
    found = cases(subjects, Stock(), items)
    for case in found.values():
        case.work(min(items, 1000))  # what is done once is done
        case.after()
    interleave(_with_floors_between(found), items, blocks)
    report(found, labels, items)
    if cirron is not None:
        compare(found, *labels)
    _drops(subjects)
    for subject in subjects:
        number = min(items, SPURT)
        scope, mark = (kept(work, subject.settle, number) for work in (subject.scope, subject.mark))
        print(
            f"  kept until flushed, {subject.label:<12}{scope:8.0f} B a scope, {mark:.0f} B a mark"
        )
    ci.shutdown()


def _with_floors_between(found: dict[str, Case]) -> list[Case]:
    """The cases of a round: the stock SDK's come again before every fourth of the others."""
    floors = [case for key, case in found.items() if key.startswith("stock.")]
    others = [case for case in found.values() if case not in floors]
    order: list[Case] = []
    for number, case in enumerate(others):
        order += [*(floors if number % 4 == 0 else []), case]
    return order


def _drops(subjects: list[Subject]) -> None:
    for subject in subjects:
        health = subject.sdk.health()
        print(
            f"  dropped by {subject.label}: {health['scope_drop_count']} scopes,"
            f" {health['mark_drop_count']} marks, {health['spool_drop_count']} batches;"
            f" {health['swallowed_error_count']} errors swallowed"
        )
