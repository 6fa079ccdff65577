"""Tempo's query API: traces in protobuf from `/api/v2/traces/ID`, and searches with TraceQL.

Source: Tempo 2.8, modules/frontend and pkg/tempopb/tempo.proto; the API of 2.7 and newer.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ... import semconv as sc
from ...core.durations import SECOND_NS
from ...core.otlp.json_parse import parse
from ...core.otlp.wire import LEN, decode_varint, fields
from ...errors import InputError
from .address import QueryAddress
from .backend import SEARCH_TRACES, BackendTrace, all_between
from .backend_fixups import restore_truncated
from .client import Parameters, QueryClient, QueryResponse
from .utf8_repair import repair_utf8

_TRACE, _STATUS, _MESSAGE = 1, 3, 4
_PARTIAL = 1
"""Field numbers of TraceByIDResponse, and a value of PartialStatus (tempo.proto)."""
_PROTOBUF = ("application/protobuf", "application/x-protobuf", "")
_CUT_BYTES = 2048
"""Tempo truncates text in attributes to this size by default (`max_attribute_bytes`)."""
_WEEK_NS = 7 * 86400 * 10**9
"""The longest time range of one search by default (`search.max_duration`)."""
_LATEST_S = 2**31 - 1


class Tempo:
    """A tenant of a Tempo server."""

    not_kept = (
        "flags of spans and of links",
        "schema URLs, entity references, unknown protobuf fields",
        "text in attributes beyond 2,048 bytes, by its default limits",
        "an empty service.name, attributes of a scope that follows another of the same name",
        "the id of a server's span that shares it with a client's",
    )

    def __init__(self, address: QueryAddress, client: QueryClient) -> None:
        """Store the arguments; the methods send requests."""
        self._address = address
        self._client = client

    def trace(self, trace_id: bytes) -> BackendTrace | None:
        """Return the trace, including spans that are not in a block yet."""
        path = f"/api/v2/traces/{trace_id.hex()}"
        answer = self._client.get(path, accept="application/protobuf", absent=True)
        if answer is None:
            return None
        if answer.kind not in _PROTOBUF:
            raise InputError(
                f"{self._address.shown} answered {answer.kind[:60]!a} where protobuf was asked for:"
                " expected Tempo 2.7 or newer"
            )
        trace = self._read(answer.content)
        for group in trace.data.resource_spans:
            for scoped in group.scope_spans:
                for span in scoped.spans:
                    # Tempo removes the leading zeros of ids.
                    span.trace_id = span.trace_id.rjust(len(trace_id), b"\0")
                    if span.trace_id != trace_id:
                        raise InputError(f"{self._address.shown} gave a span of another trace")
        return trace if trace.data.resource_spans else None

    def with_service(self, service: str, start_ns: int, end_ns: int) -> Iterator[bytes]:
        """Search by TraceQL."""
        return self._find(f"{{resource.service.name={_quoted(service)}}}", start_ns, end_ns)

    def with_session(
        self, session: str, start_ns: int, end_ns: int, service: str | None = None
    ) -> Iterator[bytes]:
        """Search by TraceQL, which does not need the service name."""
        del service
        return self._find(f"{{resource.{sc.SESSION_ID}={_quoted(session)}}}", start_ns, end_ns)

    def _find(self, query: str, start_ns: int, end_ns: int) -> Iterator[bytes]:
        def search(from_ns: int, to_ns: int) -> set[bytes]:
            start = max(from_ns // SECOND_NS, 0)
            parameters: Parameters = {
                "q": query,
                "start": min(start, _LATEST_S - 1),
                "end": min(max(-(-to_ns // SECOND_NS), start + 1), _LATEST_S),
                "limit": SEARCH_TRACES,
                "spss": 1,
            }
            answer = self._client.get("/api/search", parameters)
            return self._ids(answer) if answer is not None else set()

        # The ends of the range are rounded outwards to whole seconds.
        longest = _WEEK_NS - 2 * SECOND_NS
        return all_between(search, start_ns, end_ns, longest)

    def _ids(self, answer: QueryResponse) -> set[bytes]:
        try:
            document, _ = parse(answer.content)
            traces = document.get("traces") or []
            return {bytes.fromhex(trace["traceID"].rjust(32, "0")) for trace in traces}
        except (InputError, AttributeError, KeyError, TypeError, ValueError):
            raise InputError(
                f"{self._address.shown} gave an answer to a search that is cut off, or none of"
                " Tempo's"
            ) from None

    def _read(self, content: bytes) -> BackendTrace:
        """Return the trace in a TraceByIDResponse."""
        data, status, message = bytearray(), 0, ""
        try:
            for number, wire_type, _, value, stop in fields(content):
                if number == _TRACE and wire_type == LEN:
                    data += content[value:stop]  # protobuf merges concatenated messages
                elif number == _STATUS:
                    status, _ = decode_varint(content, value)
                elif number == _MESSAGE:
                    message = content[value:stop].decode("utf-8", "replace")
            traces = _parsed(bytes(data))
        except (InputError, DecodeError):
            raise InputError(
                f"{self._address.shown} gave an answer that is cut off, or no trace in protobuf"
            ) from None
        notes = []
        if status == _PARTIAL:
            notes.append(f"Tempo gave a part only: {message[:200] or 'the trace is too large'}")
        if cut := restore_truncated(traces, _CUT_BYTES):
            subject = "1 attribute is" if cut == 1 else f"{cut} attributes are"
            notes.append(
                f"{subject} as long as Tempo cuts them ({_CUT_BYTES} bytes), or was longer"
            )
        return BackendTrace(traces, notes)


def _parsed(data: bytes) -> TracesData:
    """Parse a trace; remove partial characters from the ends of truncated strings."""
    try:
        return TracesData.FromString(data)
    except DecodeError:
        return TracesData.FromString(repair_utf8(data, TracesData.DESCRIPTOR))


def _quoted(text: str) -> str:
    """Return a TraceQL string literal, which uses Go's escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
