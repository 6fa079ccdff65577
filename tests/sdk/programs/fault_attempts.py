"""Attempts to train with faults in the SDK, and their reports (see faulty.py)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import cirron_otel as ci
from cirron_otel.sdk.flush import pipeline
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.state import state


class InjectedError(Exception):
    """The fault."""


class Server(BaseHTTPRequestHandler):
    """Accepts every request."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(202 if "json" in self.headers.get("Content-Type", "") else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


Fault = tuple[str, list[tuple[Any, str]]]
"""The name of a function, and the places that refer to it: an owner and an attribute."""


class Broken:
    """A function that raises, and counts how often.

    The name is in the error: a thread that is left from the fault before logs each cause once.
    """

    def __init__(self, name: str) -> None:
        self.name, self.hits = name, 0

    def function(self) -> Callable[..., Any]:
        def broken(*_: Any, **__: Any) -> Any:
            self.hits += 1
            raise InjectedError(f"injected into {self.name}")

        return broken


def train(provider: TracerProvider) -> list[Any]:
    """Call every public function; the results do not depend on the SDK."""
    tracer = provider.get_tracer("lib")
    results: list[Any] = []
    for epoch in ci.epochs(range(2)):
        for step in ci.batches(iter([1, 2, 3])):
            with ci.scope("forward", step, size=epoch) as scope:
                scope.set_attribute("more", 1)
                scope.add_event("event")
                ci.mark("loss", step / 7)
                ci.mark("count", step, kind="summary")
                with tracer.start_as_current_span("foreign"), ci.scope("inner"):
                    results.append(step * epoch)
            try:
                with ci.scope("backward"):
                    raise ValueError(step)
            except ValueError as error:
                results.append(str(error))
    results.append(dict(ci.inject()).keys() <= {"traceparent", "tracestate", "baggage"})
    results.append(ci.inference(lambda value: value + 1)(1))
    results.append(list(ci.inference(lambda: iter([1, 2]))()))
    results.append(list(ci.scope("generator")(numbers)()))
    results.append(asyncio.run(together()))
    ci.mark("outside", 1)
    ci.watch(None)
    again = ci.scope("again")
    for _ in range(2):
        with again:
            results.append("again")
    with ci.training("second"):
        results += ci.batches([3, 4])
    thread = threading.Thread(target=lambda: results.append(sum(ci.batches([1, 2]))))
    thread.start()
    thread.join()
    if ci.flush(0.1):
        ci.trace("dict")  # it waits for a flush, too
    ci.health()
    return results


def numbers() -> Iterator[int]:
    yield from (1, 2)


@ci.scope("task")
async def task(number: int) -> int:
    async with ci.scope("inside"):
        await asyncio.sleep(0)
    return number


async def together() -> list[int]:
    return await asyncio.gather(task(1), task(2))


def reported() -> Any:
    return sorted(ci.health()["swallowed_errors"]) or len(logged.records)


def new_provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return provider


def attempt(
    faults: list[Fault], when: str, directory: Path, url: str, truth: list[Any]
) -> list[dict[str, Any]]:
    """Train with faults; return a report for each."""
    broken = [Broken(f"{name} {when}") for name, _ in faults]
    places = [
        (owner, attribute, each.function())
        for each, (_, owners) in zip(broken, faults, strict=True)
        for owner, attribute in owners
    ]
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in places]
    provider = new_provider()
    report: dict[str, Any] = {"when": when, "escaped": None, "equal": False, "enabled": None}
    logged.records.clear()
    begun = time.monotonic()

    def inject() -> None:
        for owner, attribute, function in places:
            setattr(owner, attribute, function)

    try:
        if when == "start":
            inject()
        profiler = ci.profile(
            frameworks=[], output_dir=directory, flush_interval=0.01, provider=provider,
            exporters=["otlp", "cirron"], api_key="key", api_endpoint=url, cpu_time=True,
            memory_peak=True, detail_every=2, log_correlation=True, segment_records=10,
            output=["spool", "log"], handle_signals=True,
        )  # fmt: skip
        report["enabled"] = profiler.enabled
        inject()
        results = train(provider)
        ci.shutdown(0.1)
        report["equal"] = results == truth
        ci.health()
    except BaseException as error:
        report["escaped"] = f"{type(error).__name__}: {error}"
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)
    has_struck, report["took"] = any(each.hits for each in broken), time.monotonic() - begun
    report["said"] = reported()
    for _ in range(3000):  # a thread of an exporter may be between the error and its report
        if report["said"] or not has_struck:
            break
        time.sleep(0.01)
        report["said"] = reported()
    ci.shutdown(0.1)
    state.recording = True
    buffers.reset_after_fork()
    # Nothing that is broken is left in these.
    buffers.hooks.first = buffers.hooks.wake = lambda: None
    return [
        {"fault": name, "hits": each.hits, **report}
        for each, (name, _) in zip(broken, faults, strict=True)
    ]


class Logged(logging.Handler):
    """Keeps the warnings and errors of the SDK."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


logged = Logged()


class Attempts:
    """The attempts of one process, with a server of its own."""

    def __init__(self, directory: Path, truth: list[Any]) -> None:
        self._directory, self._truth = directory, truth
        directory.mkdir()
        logger = logging.getLogger("cirron_otel")
        logger.addHandler(logged)
        logger.propagate = False
        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._url = f"http://127.0.0.1:{server.server_port}"
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = self._url
        os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
        pipeline._BACKOFF_S = (0.0, 0.02, 0.1)
        self._count = 0

    def single(self, fault: Fault) -> Iterator[dict[str, Any]]:
        """Break a function from the start; if no session is opened then, also after the start."""
        place = self._place()
        for when in ("start", "run"):
            [report] = attempt([fault], when, place, self._url, self._truth)
            yield report
            if report["enabled"]:
                break

    def together(self, faults: list[Fault]) -> Iterator[dict[str, Any]]:
        """Break functions at once that are not expected to be called; break others singly."""
        while faults:
            reports = attempt(faults, "start", self._place(), self._url, self._truth)
            struck = {report["fault"] for report in reports if report["hits"]}
            if not struck:
                yield from reports
                break
            for fault in faults:
                if fault[0] in struck:
                    yield from self.single(fault)
            faults = [fault for fault in faults if fault[0] not in struck]

    def called(self) -> set[CodeType]:
        """The functions that intact runs call: the second one finds a spool."""
        codes: set[CodeType] = set()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                codes.add(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        place = self._place()
        for _ in range(2):
            attempt([], "start", place, self._url, self._truth)
        sys.setprofile(None)
        return codes

    def _place(self) -> Path:
        self._count += 1
        return self._directory / str(self._count)


def in_child(act: Callable[[], None], output: Path) -> int:
    """Call a function in a forked process, whose output goes to a file; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
