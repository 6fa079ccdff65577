"""What is asked of a backend, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .client import ResponseTooLongError


@dataclass(slots=True)
class BackendTrace:
    """A trace as a backend has it."""

    data: TracesData
    notes: list[str] = field(default_factory=list)
    """What is known to be missing or changed in it, a line each."""


class Backend(Protocol):
    """Answers by trace id, and finds traces."""

    @property
    def not_kept(self) -> tuple[str, ...]:
        """What this backend never gives back, whatever it was sent."""

    def trace(self, trace_id: bytes) -> BackendTrace | None:
        """The trace; None where the backend has none of it.

        Raises EndpointError, and InputError where the answer is not what it should be.
        """

    def with_service(self, service: str, start_ns: int, end_ns: int) -> Iterator[bytes]:
        """The ids of the traces in which a service of that name has a span, in that time.

        Raises as `trace` does.
        """

    def with_session(
        self, session: str, start_ns: int, end_ns: int, service: str | None = None
    ) -> Iterator[bytes]:
        """The ids of the traces in which a Cirron session has a span, in that time.

        `service` is the name it is known to go by. Raises as `trace` does.
        """


SEARCH_TRACES = 200
"""How many traces one search asks for; where that many come, its time is cut in two."""
_SHORTEST_NS = 1_000_000_000

Search = Callable[[int, int], set[bytes]]
"""The traces with a span that started from one time to another, `SEARCH_TRACES` at most."""


def all_between(search: Search, start_ns: int, end_ns: int, longest_ns: int) -> Iterator[bytes]:
    """Every trace id that `search` finds, each once, however many there are: latest first.

    No search is over more than `longest_ns`. Where a second holds more than one search gives, or
    more than an answer may be long, that second is not searched to its end.
    """
    seen: set[bytes] = set()
    windows = _pieces(start_ns, end_ns, longest_ns)
    while windows:
        start, end = windows.pop()
        middle = (start + end) // 2
        can_be_cut = end - start > _SHORTEST_NS
        try:
            found = search(start, end)
        except ResponseTooLongError:
            if not can_be_cut:
                raise
            windows += [(start, middle), (middle, end)]
            continue
        new = found - seen
        seen |= new
        yield from sorted(new)
        if len(found) >= SEARCH_TRACES and can_be_cut:
            windows += [(start, middle), (middle, end)]


def _pieces(start_ns: int, end_ns: int, longest_ns: int) -> list[tuple[int, int]]:
    count = max(1, -(-(end_ns - start_ns) // longest_ns))
    edges = [start_ns + (end_ns - start_ns) * n // count for n in range(count + 1)]
    return list(pairwise(edges))
