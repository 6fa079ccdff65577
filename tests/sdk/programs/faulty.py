"""Trains with one step of the SDK broken at a time: `faulty.py DIRECTORY PARTS`.

Forks PARTS processes that share the faults. Each writes `reports-<part>.txt`, with a JSON line for
each fault: how often it struck, what escaped into the training code, whether the training's own
results are those of a run without the SDK, and whether the SDK reported an error.

A function that an intact run does not call gives an intact run when it is broken. All of these
functions are broken at once; those that are called nevertheless are then broken one at a time.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from fault_attempts import Attempts, Fault, in_child, new_provider, train

from cirron_otel.sdk.tracing import buffers

EXTRA = (
    "cirron_otel.core.delivery.delivery",
    "cirron_otel.core.delivery.backlog",
    "cirron_otel.core.delivery.engine",
    "cirron_otel.core.delivery.attempts",
    "cirron_otel.core.delivery.resubmission",
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
    "cirron_otel.sdk.tracing.trainings:training",
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
# Methods of the Span that a scope is, of the objects that `inference()` and `training()` give, and
# of the streams of the first: user code calls them, too. And the words for what went wrong.
OWNED = (
    "RecordedScope", "Inference", "Request", "Stream", "AsyncStream", "_Wrapped", "Opened",
    "TrainingBlock",
)  # fmt: skip
NO_FAULTS = ("cirron_otel.sdk.session.errors", "cirron_otel.sdk.tracing.decorators")
MADE = ("__repr__", "__eq__", "__hash__", "__del__", "__getstate__", "__setstate__",
        "__setattr__", "__delattr__", "__getnewargs__", "_replace", "_asdict",
        "__subclasshook__", "__new__", "_make")  # fmt: skip
"""Methods that dataclasses and tuples are given."""


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


def code_of(fault: Fault) -> CodeType | None:
    """The code of the function that a fault replaces; None for the clocks."""
    owner, attribute = fault[1][0]
    value = vars(owner)[attribute]
    function = inspect.unwrap(getattr(value, "__func__", value))
    return getattr(function, "__code__", None)


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
