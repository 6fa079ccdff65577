"""The process from which a test runs the programs of a framework, without and with tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import leave_out
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.program_server import ProgramServer

from .environments import ENVIRONMENTS
from .running import Worker, server

Workers = tuple[Worker, Worker]
"""A framework's programs without tracing, and traced by cirron-otel."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment; leave the test out if it cannot be made."""
    try:
        return ENVIRONMENTS[name].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))


def both(process: ProgramServer, framework: str) -> Workers:
    """Return the two ways in which a server runs the programs of a module."""
    return Worker(process, framework, "untraced"), Worker(process, framework, "cirron-otel")


@contextmanager
def server_of(modules: Sequence[str], environment: str | None = None) -> Iterator[ProgramServer]:
    """Yield a process that has imported `modules` once, in which nothing else of a program runs.

    Without the name of an environment it is in that of the tests.
    """
    with server(modules, None if environment is None else python_of(environment)) as process:
        yield process


@contextmanager
def workers_of(
    framework: str, modules: Sequence[str], environment: str | None = None
) -> Iterator[Workers]:
    """`server_of` for the programs of one module, without and with tracing."""
    with server_of(modules, environment) as process:
        yield both(process, framework)
