"""The interface of a tracing backend, and a complete search in time ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .client import ResponseTooLongError


@dataclass(slots=True)
class BackendTrace:
    """A trace from a backend."""

    data: TracesData
    notes: list[str] = field(default_factory=list)
    """One line for each known loss or change."""


class Backend(Protocol):
    """Returns traces by id, and searches for traces."""

    @property
    def not_kept(self) -> tuple[str, ...]:
        """The kinds of data that this backend never returns, even if they were sent to it."""

    def trace(self, trace_id: bytes) -> BackendTrace | None:
        """Return a trace; None if the backend has no span of the trace.

        Raises EndpointError, and InputError if the response is not valid.
        """

    def with_service(self, service: str, start_ns: int, end_ns: int) -> Iterator[bytes]:
        """Yield the ids of the traces in which a service has a span in a time range.

        Raises the errors of `trace`.
        """

    def with_session(
        self, session: str, start_ns: int, end_ns: int, service: str | None = None
    ) -> Iterator[bytes]:
        """Yield the ids of the traces in which a Cirron session has a span in a time range.

        `service` is the session's service name, if it is known. Raises the errors of `trace`.
        """


SEARCH_TRACES = 200
"""The maximum number of results of one search; if a search finds that many traces, its time range
is halved."""
_SHORTEST_NS = 1_000_000_000

Search = Callable[[int, int], set[bytes]]
"""Returns the ids of the traces with a span that started in a time range, at most
`SEARCH_TRACES`."""


def all_between(search: Search, start_ns: int, end_ns: int, longest_ns: int) -> Iterator[bytes]:
    """Yield each trace id in a time range once, latest range first, however many there are.

    No single search covers more than `longest_ns`. If one second contains more traces than one
    search returns, that second is not searched completely.
    """
    seen: set[bytes] = set()
    windows = _pieces(start_ns, end_ns, longest_ns)
    while windows:
        start, end = windows.pop()
        middle = (start + end) // 2
        can_be_cut = end - start > _SHORTEST_NS
        try:
            trace_ids = search(start, end)
        except ResponseTooLongError:
            if not can_be_cut:
                raise
            windows += [(start, middle), (middle, end)]
            continue
        new = trace_ids - seen
        seen |= new
        yield from sorted(new)
        if len(trace_ids) >= SEARCH_TRACES and can_be_cut:
            windows += [(start, middle), (middle, end)]


def _pieces(start_ns: int, end_ns: int, longest_ns: int) -> list[tuple[int, int]]:
    count = max(1, -(-(end_ns - start_ns) // longest_ns))
    edges = [start_ns + (end_ns - start_ns) * n // count for n in range(count + 1)]
    return list(pairwise(edges))
