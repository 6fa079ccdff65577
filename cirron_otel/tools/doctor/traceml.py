"""Check the receiver of TraceML's frames to which a job's processes send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from .check import Check, Deadline, Problem, failed, unreachable, warning
from .network import Connector, EndpointAddress, EndpointSettings, check_connection

HOST, PORT, DISABLED = "TRACEML_AGGREGATOR_HOST", "TRACEML_AGGREGATOR_PORT", "TRACEML_DISABLED"
"""The variables of TraceML. `traceml run` sets them for its processes."""
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", "29765"
_CLOSES_WITHIN_S: Final = 0.5
_MAX_PORT: Final = 65_535


def examine_traceml(environ: Mapping[str, str], timeout: float) -> Iterator[Check]:
    """Yield the checks of the receiver if a variable names it; `timeout` is in seconds.

    The receiver is the collector's, or TraceML's own aggregator. No frame is sent.
    """
    if not environ.get(HOST) and not environ.get(PORT):
        return
    if environ.get(DISABLED) == "1":
        yield warning(
            "traceml settings",
            f"{DISABLED} is 1: TraceML's processes send nothing",
            "unset it to send their steps",
        )
        return
    port = environ.get(PORT) or DEFAULT_PORT
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _MAX_PORT):
        yield failed(
            "traceml settings",
            f"{PORT} is {port!a}: expected a port from 1 to {_MAX_PORT}",
            "correct it",
        )
        return
    words = EndpointSettings(f"{HOST} and {PORT}", "")
    place = EndpointAddress(environ.get(HOST) or DEFAULT_HOST, int(port), is_tls=False, words=words)
    checks, connector = check_connection("traceml", place, Deadline(timeout))
    problem = None if connector is None else _closed(connector)
    yield from checks if problem is None else checks[:-1]
    if problem is not None:
        yield unreachable("traceml tcp", problem)


def _closed(connector: Connector) -> Problem | None:
    """Return the problem if the receiver closes a connection at once.

    An open connection receives nothing, because the protocol has no answers.
    """
    try:
        with connector.open() as sock:
            sock.settimeout(connector.deadline.left(_CLOSES_WITHIN_S))
            is_closed = not sock.recv(1)
    except TimeoutError:
        return None
    except Problem as problem:
        return problem
    except OSError:
        is_closed = True
    if not is_closed:
        return Problem(
            f"{connector.place.shown} sends data, which a receiver of TraceML's frames does not",
            f"check {HOST} and {PORT}",
        )
    return Problem(
        f"{connector.place.shown} closes connections at once",
        "add this machine's network to receivers.traceml.allow of the collector, or see its log",
    )
