"""The processes in which a test runs the programs of a framework, without and with tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.running import Worker

Workers = tuple[Worker, Worker]
"""The process without tracing, and the one that cirron-otel traces."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment; leave the test out if it cannot be made."""
    try:
        return ENVIRONMENTS[name].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))


@contextmanager
def workers_of(
    framework: str, modules: Sequence[str], environment: str | None = None
) -> Iterator[Workers]:
    """Yield the processes that run the programs of a module, once they have imported `modules`.

    Without the name of an environment they are in that of the tests.
    """
    python = None if environment is None else python_of(environment)
    with (
        Worker(framework, "untraced", modules, python) as untraced,
        Worker(framework, "cirron-otel", modules, python) as traced,
    ):
        yield untraced, traced
