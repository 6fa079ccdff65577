"""The tools that can trace a loop, each with the same two methods."""

# ruff: noqa: ARG002 (methods have the parameters of what they stand for)

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tests.kit import references

from .loops import Loop


class Tool(Protocol):
    """A tool that traces what runs between `open` and `close`."""

    def open(self, directory: Path) -> Any:
        """Begin to trace into `directory`; the module that a loop gets."""

    def close(self) -> list[str]:
        """End it; what the tool complains about."""


@dataclass
class Outcome:
    """What a loop came to in one process."""

    result: str = ""
    """What it returned, as text."""
    marks: list[str] = field(default_factory=list)
    """The names of the marks that it made."""
    complaints: list[str] = field(default_factory=list)
    """What the tool that traced it had to say."""
    error: str = ""
    """What it raised."""

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self)


class Counting:
    """An SDK module that takes down the marks that are made."""

    def __init__(self, sdk: Any, marks: list[str]) -> None:
        self._sdk = sdk
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sdk, name)

    def mark(self, name: str, value: Any, **more: Any) -> None:
        self._marks.append(name)
        self._sdk.mark(name, value, **more)


def run(loop: Loop, tool: Tool, directory: Path) -> Outcome:
    """Run a loop in this process, traced by `tool`."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()  # what the loop compiles is compiled now
    outcome = Outcome()
    sdk = tool.open(directory)
    try:
        outcome.result = repr(loop.run(Counting(sdk, outcome.marks)))
    except BaseException as error:
        outcome.error = f"{type(error).__name__}: {error}"
    finally:
        outcome.complaints = tool.close()
    return outcome


def run_untraced(loop: Loop, directory: Path) -> Outcome:
    """Return the stored outcome of a loop of `loops` without a tool, or run it and store that."""
    here = Path(__file__)
    key = references.key_of(
        [here, *here.with_name("loops").glob("*.py")], loop.name, str(torch.get_num_threads())
    )
    if (stored := references.load(key)) is not None:
        return Outcome(**stored)
    outcome = run(loop, Untraced(), directory)
    if not outcome.error:
        references.store(key, outcome.as_json())
    return outcome


class Untraced:
    """No tool: the loop as it is."""

    def open(self, directory: Path) -> Any:
        return _Nothing()

    def close(self) -> list[str]:
        return []


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class Ours:
    """cirron-otel, with the hooks for torch and no exporter."""

    def open(self, directory: Path) -> Any:
        self.sdk: Any = importlib.import_module("cirron_otel")
        self.warnings = _Warnings()
        logging.getLogger("cirron_otel").addHandler(self.warnings)
        self.before = self.sdk.health()["swallowed_errors"]
        self.profiler = self.sdk.profile(
            output_dir=str(directory), frameworks=["torch"], exporters="none", join="none",
            handle_signals=False,
        )  # fmt: skip
        return self.sdk

    def close(self) -> list[str]:
        # In the order in which they must hold: the session is open until here.
        complaints = [] if self.profiler.enabled else ["the session is not open"]
        self.sdk.shutdown()
        logging.getLogger("cirron_otel").removeHandler(self.warnings)
        health = self.profiler.health()
        complaints += [f"warning: {text}" for text in self.warnings.said]
        for cause, count in health["swallowed_errors"].items():
            if count != self.before.get(cause, 0):
                complaints.append(f"error in {cause}: {health['last_errors'].get(cause)}")
        drops = {cause: count for cause, count in health["drops"].items() if count}
        return complaints + ([f"dropped: {drops}"] if drops else [])


class _CirronSdk:
    """cirron-sdk as the loops use an SDK: its `batches` is always called batch."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def batches(self, iterable: Any, name: str = "batch") -> Any:
        return self._module.batches(iterable)


class CirronSdk:
    """cirron-sdk, with its hooks for torch; its spool is below `directory/.cirron`."""

    def open(self, directory: Path) -> Any:
        self.folder = contextlib.chdir(directory)
        self.folder.__enter__()
        self.module: Any = importlib.import_module("cirron")
        self.module.profile(frameworks=["torch"])
        return _CirronSdk(self.module)

    def close(self) -> list[str]:
        self.module.shutdown()
        self.folder.__exit__(None, None, None)
        return []


class TraceML:
    """traceml-ai, started once in a process; `TRACEML` names the run and where its server listens.

    With `MARKED`, `trace_step(model)` stands around each usual step, as its documentation says; a
    loop has no place for it otherwise.
    """

    is_started = False
    trace_step: Any = None
    marked = 0
    """Steps that `trace_step` stood around."""

    def open(self, directory: Path) -> Any:
        if not TraceML.is_started:
            traceml: Any = importlib.import_module("traceml_ai")
            run_name, port = os.environ["TRACEML"].split(":")
            traceml.init(
                mode="auto", on_missing_aggregator="raise", aggregator_host="127.0.0.1",
                aggregator_port=int(port), session_id=run_name, connect_timeout_sec=60.0,
            )  # fmt: skip
            TraceML.trace_step = staticmethod(traceml.trace_step)
            if "MARKED" in os.environ:
                _mark_steps(traceml.trace_step)
            TraceML.is_started = True
        return _Nothing()

    def empty_step(self) -> None:
        """A step with nothing in it, if steps are marked: it takes what was left outside of any."""
        if "MARKED" in os.environ:
            with TraceML.trace_step(nn.Identity()):
                pass

    def close(self) -> list[str]:
        return []


def _mark_steps(trace_step: Callable[[Any], Any]) -> None:
    from .loops.parts import Training

    step = Training.step

    def marked(training: Training, batch: Any) -> None:
        TraceML.marked += 1
        with trace_step(training.model):
            step(training, batch)

    Training.step = marked  # type: ignore[method-assign]


class _Nothing:
    """An SDK for loops whose tool has no scopes of the user's own."""

    def mark(self, name: str, value: Any, **more: Any) -> None: ...

    @contextlib.contextmanager
    def scope(self, name: str, index: int | None = None, **attrs: Any) -> Any:
        yield

    def epochs(self, iterable: Any, name: str = "") -> Any:
        return iter(iterable)

    batches = epochs


TOOLS: dict[str, Callable[[], Tool]] = {
    "untraced": Untraced,
    "cirron-otel": Ours,
    "cirron-sdk": CirronSdk,
    "traceml-ai": TraceML,
}
