"""Trains with one step of the SDK broken at a time: `faulty.py DIRECTORY PARTS`.

Forks PARTS processes that share the faults. Each writes `reports-<part>.txt`, with a JSON line for
each fault: how often it struck, what escaped into the training code, whether the training's own
results are those of a run without the SDK, and whether the SDK said that something was wrong.

A function that an intact run does not call gives an intact run when it is broken. All of these
functions are broken at once; those that are called nevertheless are then broken one at a time.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import os
import pkgutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
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

EXTRA = (
    "cirron_otel.core.delivery.delivery",
    "cirron_otel.core.delivery.backlog",
    "cirron_otel.core.delivery.engine",
    "cirron_otel.core.targets.otlp.target",
    "cirron_otel.core.targets.cirron.batches",
    "cirron_otel.core.spool.writer",
    "cirron_otel.core.spool.journal",
    "cirron_otel.core.spool.owner",
    "cirron_otel.core.spool.recovery",
    "cirron_otel.core.config.resolve",
    "cirron_otel.core.config.exporters",
)

# Modules of sdk.session that are the interface to the user: opening, closing, options, the CLI.
INTERFACE = {
    "api", "cirron", "closing_line", "configurator", "handle", "instrumentor", "job", "opening",
    "processor", "run_list", "waiting",
}  # fmt: skip
# What user code calls itself: to break it as a whole is no fault inside of it.
ENTRIES = {
    "cirron_otel.sdk.tracing.mark:mark",
    "cirron_otel.sdk.tracing.loops:epochs",
    "cirron_otel.sdk.tracing.loops:batches",
    "cirron_otel.sdk.tracing.loops:_numbered",
    "cirron_otel.sdk.tracing.inference:inference",
    "cirron_otel.sdk.session.joining:inject",
    "cirron_otel.sdk.snapshots.recorder:watch",
    "cirron_otel.sdk.tracing.scope:Scope.__init__",
    "cirron_otel.sdk.tracing.scope:Scope.__enter__",
    "cirron_otel.sdk.tracing.scope:Scope.__exit__",
    "cirron_otel.sdk.tracing.scope:Scope.__aenter__",
    "cirron_otel.sdk.tracing.scope:Scope.__aexit__",
    "cirron_otel.sdk.tracing.scope:Scope.__call__",
    "cirron_otel.sdk.tracing.span_processor:ForeignSpanProcessor.on_start",
    "cirron_otel.sdk.tracing.span_processor:ForeignSpanProcessor.on_end",
}
# What catches the errors of all the rest, or is a line of plain assignments in front of it.
GUARDS = {
    "cirron_otel.sdk.tracing.inference:_tell",
    "cirron_otel.sdk.tracing.inference:_count_item",
    "cirron_otel.sdk.tracing.inference:_result",
    "cirron_otel.sdk.tracing.loops:_leave",
    "cirron_otel.sdk.session.starting:Joining.__init__",
    "cirron_otel.sdk.tracing.scope:Scope.again",
    "cirron_otel.sdk.tracing.scope:Scope.suspend",
    "cirron_otel.sdk.tracing.scope:Scope.resume",
    "cirron_otel.sdk.tracing.span_extras:SpanExtras.__init__",
    "cirron_otel.core.delivery.delivery:Delivery._run",
}
# Methods of the Span that a scope is, of the object that `inference()` gives and of the streams
# that it hands out: user code calls them, too. And the words for what went wrong.
OWNED = ("RecordedScope", "Inference", "Request", "Stream", "AsyncStream", "_Wrapped", "Opened")
NO_FAULTS = ("cirron_otel.sdk.session.errors", "cirron_otel.sdk.tracing.decorators")
MADE = ("__repr__", "__eq__", "__hash__", "__del__", "__getstate__", "__setstate__",
        "__setattr__", "__delattr__", "__getnewargs__", "_replace", "_asdict",
        "__subclasshook__", "__new__", "_make")  # fmt: skip
"""Methods that dataclasses and tuples are given."""


class InjectedError(Exception):
    """The fault."""


class Server(BaseHTTPRequestHandler):
    """Accepts what it is sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(202 if "json" in self.headers.get("Content-Type", "") else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


Fault = tuple[str, list[tuple[Any, str]]]
"""A name, and the places where it is to be put in."""


def faults() -> Iterator[Fault]:
    names = []
    for package in ("tracing", "flush", "session"):
        path = importlib.import_module(f"cirron_otel.sdk.{package}").__path__
        names += [f"cirron_otel.sdk.{package}.{found.name}" for found in pkgutil.iter_modules(path)]
    names = [name for name in names if name.rpartition(".")[2] not in INTERFACE]
    names.append("cirron_otel.sdk.snapshots.recorder")
    for name in [*names, *EXTRA]:
        importlib.import_module(name)
    for name in [*names, *EXTRA]:
        if name not in NO_FAULTS:
            yield from _of_module(name)
    for name in ("now", "urandom"):
        places = [(m, name) for m in _ours() if name in vars(m)]
        if places:
            yield f"every {name}", places


def _ours() -> list[Any]:
    return [m for n, m in list(sys.modules.items()) if n.startswith("cirron_otel") and m]


def _of_module(module: str) -> Iterator[Fault]:
    for name, value in list(vars(sys.modules[module]).items()):
        label = f"{module}:{name}"
        if getattr(value, "__module__", None) != module or label in ENTRIES | GUARDS:
            continue
        if inspect.isfunction(value):
            places = [(m, n) for m in _ours() for n, v in list(vars(m).items()) if v is value]
            yield label, places
        elif inspect.isclass(value) and name not in OWNED and not name.endswith("Error"):
            for method, function in list(vars(value).items()):
                is_left_out = method in MADE or f"{label}.{method}" in ENTRIES | GUARDS
                inner = getattr(function, "__func__", function)
                if inspect.isfunction(inner) and not is_left_out:
                    yield f"{label}.{method}", [(value, method)]


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
    """Uses everything; what it computes depends on nothing of the SDK."""
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


def what_was_said() -> Any:
    return sorted(ci.health()["swallowed_errors"]) or len(said.records)


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
    said.records.clear()
    begun = time.monotonic()

    def put_in() -> None:
        for owner, attribute, function in places:
            setattr(owner, attribute, function)

    try:
        if when == "start":
            put_in()
        profiler = ci.profile(
            frameworks=[], output_dir=directory, flush_interval=0.01, provider=provider,
            exporters=["otlp", "cirron"], api_key="key", api_endpoint=url, cpu_time=True,
            memory_peak=True, detail_every=2, log_correlation=True, segment_records=10,
            output=["spool", "log"], handle_signals=True,
        )  # fmt: skip
        report["enabled"] = profiler.enabled
        put_in()
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
    report["said"] = what_was_said()
    for _ in range(3000):  # a thread of an exporter may be between the error and its report
        if report["said"] or not has_struck:
            break
        time.sleep(0.01)
        report["said"] = what_was_said()
    ci.shutdown(0.1)
    state.recording = True
    buffers.reset_after_fork()
    # Nothing that is broken is left in these.
    buffers.hooks.first = buffers.hooks.wake = lambda: None
    return [
        {"fault": name, "hits": each.hits, **report}
        for each, (name, _) in zip(broken, faults, strict=True)
    ]


class Said(logging.Handler):
    """What the SDK logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


said = Said()


class Attempts:
    """The attempts of one process, with a server of its own."""

    def __init__(self, directory: Path, truth: list[Any]) -> None:
        self._directory, self._truth = directory, truth
        directory.mkdir()
        logger = logging.getLogger("cirron_otel")
        logger.addHandler(said)
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


def code_of(fault: Fault) -> CodeType | None:
    """The code of the function that a fault replaces; None for the clocks."""
    owner, attribute = fault[1][0]
    value = vars(owner)[attribute]
    function = inspect.unwrap(getattr(value, "__func__", value))
    return getattr(function, "__code__", None)


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


def main() -> int:
    directory, parts = Path(sys.argv[1]), int(sys.argv[2])
    truth = train(new_provider())  # first: it imports modules that also have the functions
    buffers.reset_after_fork()
    everything = list(faults())

    def find_called() -> None:
        codes = Attempts(directory / "intact", truth).called()
        print(json.dumps([fault[0] for fault in everything if code_of(fault) in {None, *codes}]))

    def run_part(part: int) -> None:
        attempts = Attempts(directory / str(part), truth)
        own = everything[part::parts]
        for fault in own:
            if fault[0] in called:
                for report in attempts.single(fault):
                    print(json.dumps(report), flush=True)
        for report in attempts.together([fault for fault in own if fault[0] not in called]):
            print(json.dumps(report), flush=True)

    names = directory / "called.txt"
    if os.waitpid(in_child(find_called, names), 0)[1]:
        return 1
    # The SDK's own output is between the lines.
    called = set(json.loads(names.read_text().splitlines()[-1]))
    outputs = [directory / f"reports-{part}.txt" for part in range(parts)]
    pids = [in_child(partial(run_part, part), path) for part, path in enumerate(outputs)]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    return int(any(statuses))


sys.exit(main())
