"""Programs that train with a framework as people write them, each with the tree that it must give.

A module of `tests.system.frameworks.programs` holds the programs of one framework. The tree of a
program is written before the hooks are run, from docs/frameworks.md and the page of the framework.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Run = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Program:
    """One program."""

    name: str
    run: Run
    """Trains, and returns results that must be the same with and without tracing, as JSON values:
    weights, predictions, the framework's own logs. `logs`, if present, is a list of [name, value]
    pairs: the spool must hold exactly these marks, in this order for each name."""
    tree: str
    """The expected tree, in the form of `tests.sdk.instrumentation.torch.loops.Loop.tree`."""
    ranks: int = 1
    """Processes that run it together (gloo on loopback)."""
    error: str = ""
    """The exception that leaves it, as `TypeError: message`; empty if none does."""
    slow: bool = False
    """Takes more than about ten seconds."""
    framework: str = ""
    """The module of `tests.system.frameworks.programs` that holds it."""

    @property
    def title(self) -> str:
        """The first line of the function's documentation."""
        return (self.run.__doc__ or self.name).strip().splitlines()[0]


def program(
    tree: str, *, ranks: int = 1, error: str = "", slow: bool = False
) -> Callable[[Run], Run]:
    """Make a function one of its module's programs, with its expected tree."""

    def register(run: Run) -> Run:
        programs = importlib.import_module(run.__module__).__dict__.setdefault("PROGRAMS", {})
        if run.__name__ in programs:
            raise ValueError(f"two programs are called {run.__name__}")
        framework = run.__module__.rpartition(".")[2]
        programs[run.__name__] = Program(run.__name__, run, tree, ranks, error, slow, framework)
        return run

    return register


def programs_of(framework: str) -> dict[str, Program]:
    """Return the programs of a module of `tests.system.frameworks.programs`, by their names.

    Such a module imports its framework inside its functions, so that tests can list its programs
    without the framework.
    """
    module = importlib.import_module(f"tests.system.frameworks.programs.{framework}")
    programs: dict[str, Program] = module.PROGRAMS
    return programs


def use_one_thread() -> None:
    """Let torch, if it is imported, compute in one thread; call this in each forked process.

    The first such call after a fork replaces torch's pool of threads. Without it, threads of the
    backward pass do so, and two at the same time abort the process ("Invalid thread pool!").
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
