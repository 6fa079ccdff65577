"""Jaeger's query API, version 3 over HTTP: OTLP/JSON in `result`, ids in hex.

Source: Jaeger 2.13, cmd/query/app/apiv3/http_gateway.go; the API of 1.35 and newer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from ...core.otlp.json_codec import traces_from_value
from ...core.otlp.json_parse import parse
from ...errors import EndpointError, InputError
from .address import QueryAddress
from .backend import SEARCH_TRACES, BackendTrace, all_between
from .backend_fixups import undo_jaeger_changes
from .chain import session_of
from .client import Parameters, QueryClient, QueryResponse
from .headerless import restore_headers

_PATH = "/api/v3/traces"
_BLANKS = re.compile(r"\s*")
_YEAR_NS = 366 * 86400 * 10**9
_LATEST_NS = 253_402_300_799 * 10**9
"""The end of the year 9999, the latest time of RFC 3339."""


class Jaeger:
    """A Jaeger server, with any storage."""

    not_kept = (
        "schema URLs, unknown protobuf fields",
        "a service.name that is not a string",
        "more, if it stores on disk: docs/backends.md has the list",
    )

    def __init__(self, address: QueryAddress, client: QueryClient) -> None:
        """Store the arguments; the methods send requests."""
        self._address = address
        self._client = client

    def trace(self, trace_id: bytes) -> BackendTrace | None:
        """Return the trace as it was stored, without Jaeger's adjustments to times and ids."""
        answer = self._client.get(f"{_PATH}/{trace_id.hex()}", {"raw_traces": "true"}, absent=True)
        if answer is None:
            return None
        data = self._read(answer)
        for group in data.resource_spans:
            for scoped in group.scope_spans:
                if any(span.trace_id != trace_id for span in scoped.spans):
                    raise InputError(f"{self._address.shown} gave a span of another trace")
        if not data.resource_spans:
            return None
        notes = undo_jaeger_changes(data)
        if unassigned := restore_headers(data, trace_id):
            notes.append(
                f"the attributes of scopes are gone, and with them which of {unassigned} spans"
                " belong to which batch: they come in one for each process"
            )
        return BackendTrace(data, notes)

    def with_service(self, service: str, start_ns: int, end_ns: int) -> Iterator[bytes]:
        """Search by `query.service_name`, which Jaeger's search requires."""
        return self._find(service, start_ns, end_ns, lambda _: True)

    def with_session(
        self, session: str, start_ns: int, end_ns: int, service: str | None = None
    ) -> Iterator[bytes]:
        """Search the traces of each service: Jaeger's API does not search by attributes."""
        for name in [service] if service is not None else self._services():
            yield from self._find(name, start_ns, end_ns, lambda g: session_of(g) == session)

    def _services(self) -> list[str]:
        answer = self._client.get("/api/v3/services")
        document = _document(answer.content if answer is not None else b"{}", self._address)
        services = document.get("services") if isinstance(document, dict) else None
        return [name for name in services or [] if isinstance(name, str)]

    def _find(
        self, service: str, start_ns: int, end_ns: int, wanted: Callable[[ResourceSpans], bool]
    ) -> Iterator[bytes]:
        def search(from_ns: int, to_ns: int) -> set[bytes]:
            parameters: Parameters = {
                "query.service_name": service,
                "query.start_time_min": _rfc3339(from_ns),
                "query.start_time_max": _rfc3339(to_ns),
                "query.num_traces": SEARCH_TRACES,
                "query.raw_traces": "true",
            }
            answer = self._client.get(_PATH, parameters, absent=True)
            if answer is None:
                return set()
            trace_ids: set[bytes] = set()
            for group in self._read(answer).resource_spans:
                for scoped in group.scope_spans:
                    ids = {span.trace_id for span in scoped.spans}
                    trace_ids |= ids
                    if wanted(group):
                        matching.update(ids)
            return trace_ids

        matching: set[bytes] = set()
        for trace_id in all_between(search, start_ns, min(end_ns, _LATEST_NS), _YEAR_NS):
            if trace_id in matching:
                yield trace_id

    def _read(self, answer: QueryResponse) -> TracesData:
        """Return the OTLP data of a response, which contains one JSON object or several in a
        row.
        """
        traces = TracesData()
        for document in _documents(answer.content, self._address):
            if not isinstance(document, dict):
                raise InputError(f"{self._address.shown} answered no object: no OTLP/JSON")
            if isinstance(document.get("error"), dict):
                message = document["error"].get("message", "")
                raise EndpointError(f"{self._address.shown} failed: {str(message)[:300]!a}")
            result = document.get("result", document)
            try:
                part, _ = traces_from_value(result)
            except InputError as error:
                raise InputError(f"{self._address.shown} answered no OTLP/JSON: {error}") from None
            traces.MergeFrom(part)
        return traces


def _documents(content: bytes, address: QueryAddress) -> list[Any]:
    try:
        return [parse(content)[0]]
    except InputError:
        pieces = _cut(content)
        if pieces is None:
            return [_document(content, address)]
    return [_document(piece, address) for piece in pieces]


def _document(content: bytes, address: QueryAddress) -> Any:
    try:
        return parse(content)[0]
    except InputError as error:
        raise InputError(
            f"{address.shown} gave an answer that is cut off, or not valid JSON: {error}"
        ) from None


def _cut(content: bytes) -> list[bytes] | None:
    """Split a series of JSON objects; return None if `content` is not such a series."""
    decoder = json.JSONDecoder()
    pieces = []
    try:
        text = content.decode()
        position = 0
        while position < len(text):
            _, end = decoder.raw_decode(text, position)
            pieces.append(text[position:end].encode())
            position = _BLANKS.match(text, end).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return None
    return pieces if len(pieces) > 1 else None


def _rfc3339(ns: int) -> str:
    seconds, nanoseconds = divmod(max(ns, 0), 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
