"""Programs that nest scopes, foreign spans, threads, tasks and generators at random.

A program is a list of `(what, *bodies)`. Running one records it, and says which parents it must
have been recorded with: a small model of what "current" means in Python.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import Tracer

import cirron_otel as ci
from tests.kit.sessions.reading import SESSION

Body = list[Any]

SYNC = (
    "scope", "foreign", "use", "loop", "left loop", "error", "decorated", "reused", "twice",
    "generator", "left generator", "dropped generator", "thrown generator", "threads",
    "carried thread", "copied context", "out of order",
)  # fmt: skip
ASYNC = (
    "scope", "foreign", "use", "loop", "error", "decorated", "generator", "left generator",
    "dropped generator", "thrown generator", "tasks", "gather", "to_thread", "executor",
    "cancelled",
)  # fmt: skip


def _nodes(names: tuple[str, ...], inner: Any) -> Any:
    body = st.lists(inner, max_size=3)
    return st.tuples(st.sampled_from(names), body, body)


PROGRAMS: st.SearchStrategy[Body] = st.lists(
    st.recursive(
        st.just(("mark", [], [])),
        lambda inner: _nodes((*SYNC, "asyncio"), inner),
        max_leaves=14,
    ),
    max_size=4,
)


class Place(NamedTuple):
    """What is current: the nearest span, and the nearest scope."""

    span: str
    scope: str


START = Place(SESSION, SESSION)


class LeaveError(Exception):
    """Raised and caught by the programs."""


class Run:
    """Runs programs, and collects what must be recorded."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.edges: dict[str, str] = {}
        self.marks: dict[str, str] = {}
        self.wrong: list[str] = []
        self._lock = threading.Lock()
        self._count = 0

    def new(self, what: str, at: Place, *, is_scope: bool = True) -> tuple[str, Place]:
        """A name that nobody has, below `at`, and the place inside of it."""
        with self._lock:
            self._count += 1
            name = f"{what} {self._count}"
            self.edges[name] = at.span
        return name, Place(name, name if is_scope else at.scope)

    def check(self, at: Place) -> None:
        """What OpenTelemetry calls current is what the model does."""
        current = trace.get_current_span()
        if isinstance(current, trace.NonRecordingSpan) and current.get_span_context().is_valid:
            return  # it stands for a span that cannot be had any more: what is below it tells
        name = getattr(current, "name", "nothing")
        if name != at.span and not (name == "nothing" and at == START):
            self.wrong.append(f"{name} is current and not {at.span}")

    def mark(self, at: Place) -> None:
        """A mark hangs on the nearest scope."""
        with self._lock:
            self._count += 1
            name = f"mark {self._count}"
            self.marks[name] = at.scope
        ci.mark(name, 1)

    # --- threads --------------------------------------------------------------------------------

    def run(self, body: Body, at: Place) -> None:
        """Run a body where `at` is current."""
        for what, one, two in body:
            self.check(at)
            if what == "mark":
                self.mark(at)
            elif what == "asyncio":
                asyncio.run(self.run_async([("scope", one, []), ("tasks", two, one)], at))
            else:
                getattr(self, "_" + what.replace(" ", "_"))(one, two, at)
            self.check(at)

    def _scope(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("scope", at)
        with ci.scope(name):
            self.run(one, inside)
        self.run(two, at)

    def _foreign(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("foreign", at, is_scope=False)
        with self.tracer.start_as_current_span(name):
            self.run(one, inside)
        self.run(two, at)

    def _use(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("used", at, is_scope=False)
        span = self.tracer.start_span(name)
        self.run(two, at)
        with trace.use_span(span, end_on_exit=True):
            self.run(one, inside)

    def _loop(self, one: Body, two: Body, at: Place) -> None:
        # One name a pass: both passes are below `at`.
        for body in ci.batches([one, two], name="pass"):
            name, inside = self.new("pass", at)
            trace.get_current_span().update_name(name)
            self.run(body, inside)

    def _left_loop(self, one: Body, two: Body, at: Place) -> None:
        for _ in ci.epochs(iter(range(3))):
            name, inside = self.new("pass", at)
            trace.get_current_span().update_name(name)
            self.run(one, inside)
            break
        self.run(two, at)

    def _error(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("failed", at)
        try:
            with ci.scope(name):
                self.run(one, inside)
                raise LeaveError
        except LeaveError:
            self.run(two, at)

    def _decorated(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("function", at)

        @ci.scope(name)
        def function() -> int:
            self.run(one, inside)
            return 1

        assert function() == 1
        self.run(two, at)

    def _reused(self, one: Body, two: Body, at: Place) -> None:
        scope = ci.scope("again")
        for body in (one, two):
            with scope:
                name, inside = self.new("again", at)
                trace.get_current_span().update_name(name)
                self.run(body, inside)

    def _twice(self, one: Body, two: Body, at: Place) -> None:
        scope = ci.scope("nested")
        with scope:
            outer, inside = self.new("nested", at)
            trace.get_current_span().update_name(outer)
            with scope:
                inner, deep = self.new("nested", inside)
                trace.get_current_span().update_name(inner)
                self.run(one, deep)
            self.run(two, inside)

    def _generator(
        self, one: Body, two: Body, at: Place, items: int = 9, end: str = "close"
    ) -> None:
        name, inside = self.new("generator", at)

        @ci.scope(name)
        def generator() -> Iterator[int]:
            for number in range(2):
                self.run(one, inside)
                try:
                    yield number
                except LeaveError:
                    self.run(one, inside)

        made = generator()
        for number in made:
            self.run(two, at)
            if end == "throw" and number == 0:
                made.throw(LeaveError)  # type: ignore[attr-defined]
            if number + 1 == items:
                break
        if end == "close":
            made.close()  # type: ignore[attr-defined]
        del made

    def _left_generator(self, one: Body, two: Body, at: Place) -> None:
        self._generator(one, two, at, 1)

    def _dropped_generator(self, one: Body, two: Body, at: Place) -> None:
        self._generator(one, two, at, 1, "drop")

    def _thrown_generator(self, one: Body, two: Body, at: Place) -> None:
        self._generator(one, two, at, 9, "throw")

    def _threads(self, one: Body, two: Body, _: Place) -> None:
        # A thread begins with an empty context: below the session.
        self._in_threads([lambda: self.run(one, START), lambda: self.run(two, START)])

    def _carried_thread(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("carried", at)
        with ci.scope(name) as scope:

            def work() -> None:
                with trace.use_span(scope):
                    child, below = self.new("child", inside)
                    with ci.scope(child):
                        self.run(one, below)

            self._in_threads([work, lambda: self.run(two, START)])

    def _copied_context(self, one: Body, two: Body, at: Place) -> None:
        copies = [contextvars.copy_context() for _ in range(2)]
        self._in_threads([lambda: copies[0].run(self.run, one, at)])
        copies[1].run(self.run, two, at)

    def _in_threads(self, work: list[Any]) -> None:
        with ThreadPoolExecutor(len(work)) as pool:
            for done in [pool.submit(each) for each in work]:
                done.result()

    def _out_of_order(self, one: Body, two: Body, at: Place) -> None:
        outer, inside = self.new("outer", at)
        inner, deep = self.new("inner", inside)
        a, b = ci.scope(outer), ci.scope(inner)
        a.__enter__()
        b.__enter__()
        self.run(one, deep)
        a.__exit__(None, None, None)
        b.__exit__(None, None, None)
        self.run(two, at)

    # --- asyncio --------------------------------------------------------------------------------

    async def run_async(self, body: Body, at: Place) -> None:
        """Run a body in a task where `at` is current."""
        for what, one, two in body:
            self.check(at)
            if what == "mark":
                self.mark(at)
            else:
                own = what if what in ASYNC else ASYNC[SYNC.index(what) % len(ASYNC)] \
                    if what in SYNC else "gather"  # fmt: skip
                await getattr(self, "_async_" + own.replace(" ", "_"))(one, two, at)
            await asyncio.sleep(0)
            self.check(at)

    async def _async_scope(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("async scope", at)
        async with ci.scope(name):
            await self.run_async(one, inside)
        await self.run_async(two, at)

    async def _async_foreign(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("async foreign", at, is_scope=False)
        with self.tracer.start_as_current_span(name):
            await self.run_async(one, inside)
        await self.run_async(two, at)

    async def _async_use(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("async used", at, is_scope=False)
        span = self.tracer.start_span(name)
        await self.run_async(two, at)
        with trace.use_span(span, end_on_exit=True):
            await self.run_async(one, inside)

    async def _async_loop(self, one: Body, two: Body, at: Place) -> None:
        for body in ci.batches([one, two], name="async pass"):
            name, inside = self.new("async pass", at)
            trace.get_current_span().update_name(name)
            await self.run_async(body, inside)

    async def _async_error(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("async failed", at)
        try:
            async with ci.scope(name):
                await self.run_async(one, inside)
                raise LeaveError
        except LeaveError:
            await self.run_async(two, at)

    async def _async_decorated(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("coroutine", at)

        @ci.scope(name)
        async def function() -> int:
            await self.run_async(one, inside)
            return 1

        assert await function() == 1
        await self.run_async(two, at)

    async def _async_generator(
        self, one: Body, two: Body, at: Place, items: int = 9, end: str = "close"
    ) -> None:
        name, inside = self.new("async generator", at)

        @ci.scope(name)
        async def generator() -> AsyncIterator[int]:
            for number in range(2):
                await self.run_async(one, inside)
                try:
                    yield number
                except LeaveError:
                    await self.run_async(one, inside)

        made = generator()
        async for number in made:
            await self.run_async(two, at)
            if end == "throw" and number == 0:
                await made.athrow(LeaveError)  # type: ignore[attr-defined]
            if number + 1 == items:
                break
        if end == "close":
            await made.aclose()  # type: ignore[attr-defined]
        del made

    async def _async_left_generator(self, one: Body, two: Body, at: Place) -> None:
        await self._async_generator(one, two, at, 1)

    async def _async_dropped_generator(self, one: Body, two: Body, at: Place) -> None:
        await self._async_generator(one, two, at, 1, "drop")

    async def _async_thrown_generator(self, one: Body, two: Body, at: Place) -> None:
        await self._async_generator(one, two, at, 9, "throw")

    async def _async_tasks(self, one: Body, two: Body, at: Place) -> None:
        # Tasks made inside of a scope, which outlive it.
        name, inside = self.new("maker", at)
        with ci.scope(name):
            tasks = [asyncio.create_task(self.run_async(body, inside)) for body in (one, two)]
        for task in tasks:
            await task

    async def _async_gather(self, one: Body, two: Body, at: Place) -> None:
        await asyncio.gather(self.run_async(one, at), self.run_async(two, at))

    async def _async_to_thread(self, one: Body, two: Body, at: Place) -> None:
        await asyncio.gather(
            asyncio.to_thread(self.run, one, at), asyncio.to_thread(self.run, two, at)
        )

    async def _async_executor(self, one: Body, two: Body, at: Place) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.run, one, START)
        await loop.run_in_executor(None, contextvars.copy_context().run, self.run, two, at)

    async def _async_cancelled(self, one: Body, two: Body, at: Place) -> None:
        name, inside = self.new("cancelled", at)
        waiting = asyncio.Event()

        async def work() -> None:
            async with ci.scope(name):
                await self.run_async(one, inside)
                waiting.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await waiting.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.run_async(two, at)
