"""Fetch all traces that an address requests, as OTLP messages, each preceded by its length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...core.otlp.wire import encode_varint
from ...errors import InputError, TargetError
from ...ids import trace_id_for
from .address import MOST_TRACES, QueryAddress
from .backend import Backend
from .chain import TraceChain, session_of
from .client import QueryClient
from .fetched import FetchReport
from .jaeger import Jaeger
from .tempo import Tempo

_AROUND_NS = 3600 * 10**9
_LONGEST_NS = 60 * 86400 * 10**9
"""The longest time range in which missing spans of a session are searched for."""

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes read so far, and the total if it is known."""


def fetch(address: QueryAddress, target: BinaryIO, progress: Progress | None = None) -> FetchReport:
    """Write the requested traces to `target`, one TracesData each; report what is missing.

    All traces of a Cirron session are fetched, whichever of them was requested. If a session id was
    requested, only the spans of that session are written. Raises EndpointError, InputError if
    nothing is found or a response is not valid, TargetError, and MissingExtraError.
    """
    with QueryClient(address) as client:
        backend: Backend = (Jaeger if address.backend == "jaeger" else Tempo)(address, client)
        work = _Fetch(address, backend, client, target, progress)
        work.run()
        work.done.bytes_read = client.bytes_read
        return work.done


class _Fetch:
    """The state of one call of `fetch`."""

    def __init__(
        self,
        address: QueryAddress,
        backend: Backend,
        client: QueryClient,
        target: BinaryIO,
        progress: Progress | None,
    ) -> None:
        self._address, self._backend, self._client = address, backend, client
        self._target, self._progress = target, progress
        self._chain = TraceChain()
        self._asked: set[bytes] = set()
        self._absent: set[bytes] = set()
        self.done = FetchReport(address.shown, not_kept=backend.not_kept)

    def run(self) -> None:
        """Fetch the requested traces, then the traces that they refer to, then search for missing
        ones.
        """
        address = self._address
        for trace_id in self._wanted():
            if not self._bring(trace_id) and trace_id in address.traces:
                self.done.miss(f"trace {trace_id.hex()}, which was asked for, is not there")
        self._follow()
        if address.session is not None and not self.done.traces:
            # If the session joined another trace, its spans are in that trace.
            self._bring_all(self._backend.with_session(address.session, *self._window()))
        self._search_for_the_rest()
        if not self.done.traces:
            raise InputError(self._nothing())
        for trace_id, where in self._chain.named.items():
            if trace_id in self._absent:
                self.done.miss(f"trace {trace_id.hex()}, linked to by {where}, is not there")
        for text in self._chain.missing():
            self.done.miss(text)

    def _wanted(self) -> Iterator[bytes]:
        address = self._address
        if address.session is not None:
            yield trace_id_for(address.session)
        elif address.service is not None:
            trace_ids = self._backend.with_service(address.service, *self._window())
            for number, trace_id in enumerate(trace_ids):
                if number == address.limit:
                    self.done.miss(
                        f"more than {address.limit} traces of the service match: raise limit, or"
                        " narrow start and end"
                    )
                    break
                yield trace_id
        else:
            yield from address.traces

    def _window(self) -> tuple[int, int]:
        return self._address.start_ns, self._address.end_ns

    def _bring_all(self, trace_ids: Iterable[bytes]) -> None:
        for trace_id in trace_ids:
            self._bring(trace_id)
        self._follow()

    def _follow(self) -> None:
        """Fetch the traces to which fetched traces refer, until none is left."""
        waiting = deque(self._unasked())
        while waiting:
            self._bring(waiting.popleft())
            if not waiting:
                waiting.extend(self._unasked())

    def _unasked(self) -> list[bytes]:
        chain = self._chain
        return sorted((chain.named.keys() | chain.possible) - self._asked)

    def _search_for_the_rest(self) -> None:
        """Search for missing spans in traces to which no trace refers, such as traces of server
        requests.
        """
        searched: set[tuple[str | None, str | None]] = set()
        while left := [each for each in self._chain.wanting() if each not in searched]:
            session, service = left[0]
            searched.add(left[0])
            if session is None or (self._address.session or session) != session:
                continue
            last = min(self._chain.last_ns, 2**63 - 1) + _AROUND_NS
            first = max(self._chain.first_ns - _AROUND_NS, last - _LONGEST_NS, 0)
            trace_ids = self._backend.with_session(session, first, max(last, first + 1), service)
            self._bring_all(list(trace_ids))

    def _bring(self, trace_id: bytes) -> bool:
        """Fetch a trace, unless it has been fetched; return whether the backend has it."""
        if trace_id in self._asked:
            return trace_id not in self._absent
        if len(self._asked) >= MOST_TRACES:
            raise InputError(
                f"{self._address.shown}: more than {MOST_TRACES} traces belong together: ask for"
                " less (a session, or a shorter time)"
            )
        self._asked.add(trace_id)
        trace = self._backend.trace(trace_id)
        if trace is None:
            self._absent.add(trace_id)
            return False
        session = self._address.session
        self._chain.add_trace(trace_id, trace.data, session)
        data = trace.data
        if session is not None:
            groups = [group for group in data.resource_spans if session_of(group) == session]
            if not groups:
                return True
            data = TracesData(resource_spans=groups)
        self.done.traces += 1
        for note in trace.notes:
            self.done.miss(f"trace {trace_id.hex()}: {note}")
        self._write(data.SerializeToString())
        return True

    def _write(self, data: bytes) -> None:
        try:
            self._target.write(encode_varint(len(data)) + data)
        except OSError as error:
            raise TargetError(
                f"cannot write temporary files: {error.strerror or error}; set TMPDIR to another"
                " place"
            ) from error
        if self._progress is not None:
            self._progress(self._client.bytes_read, None)

    def _nothing(self) -> str:
        address = self._address
        if address.traces:
            what = "none of the traces that were asked for"
        else:
            key, name = ("session", address.session), ("service", address.service)
            what = "no trace of " + " ".join(key if address.session is not None else name)  # type: ignore[arg-type]
            what += (
                " in the time that was searched (the last 7 days unless start and end are given)"
            )
        return (
            f"{address.shown} has {what}: check the id, the tenant, and whether it was sent there"
        )
