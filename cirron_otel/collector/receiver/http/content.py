"""Determine the encoding and the kind of a request's body from its headers and first keys."""

from __future__ import annotations

import json
import re

from ..consumer import BodyEncoding, Reason, ReceivedSignal, RefusalError
from .answers import JSON, PROTOBUF, HttpError

_OTLP_KEYS = frozenset(("resourceSpans", "resource_spans"))
_CIRRON_KEYS = frozenset(
    ("schema_version", "sdk_version", "batch_id", "created_ns", "spans", "marks", "snapshots")
)

_HEAD = 64 * 1024
"""A known key must occur in this many bytes: a longer search would delay other requests."""

_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*+(?=\{)")
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
"""An unterminated string is a token too: otherwise the search would start again at each quote."""

_LONGEST_SHOWN = 60
_OPENING, _CLOSING, _COMMA, _QUOTE = frozenset(b"{["), frozenset(b"}]"), ord(","), ord('"')


def encoding_of(content_type: str | None) -> BodyEncoding:
    """Return the encoding that a Content-Type denotes. Raises HttpError 415 for any other type."""
    media_type, _, parameters = (content_type or "").partition(";")
    media_type = media_type.strip().lower()
    if media_type == PROTOBUF:
        return BodyEncoding.PROTOBUF
    if media_type == JSON:
        charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", parameters, re.IGNORECASE)
        if charset is None or charset[1].lower() in ("utf-8", "utf8", "us-ascii"):
            return BodyEncoding.JSON
        raise HttpError(415, f"expected JSON in UTF-8, found {_shown(charset[1])}")
    shown_type = _shown(media_type) if media_type else "none"
    raise HttpError(415, f"expected the Content-Type {PROTOBUF} or {JSON}, found {shown_type}")


def content_coding(values: list[str]) -> str:
    """Return the coding that these Content-Encoding headers name; `identity` if there is none.

    Raises HttpError 415 if there are several. The coding itself is not checked.
    """
    named = [part.strip().lower() for value in values for part in value.split(",")]
    codings = [name for name in named if name not in ("", "identity")]
    if len(codings) > 1:
        message = "expected one Content-Encoding at most, found several"
        raise HttpError(415, message, reason=Reason.ENCODING.value)
    return codings[0] if codings else "identity"


def json_signal(body: bytes) -> ReceivedSignal:
    """Return whether JSON sent to `/v1/traces` is OTLP or a Cirron batch.

    The first top-level key of either format decides. An object without such a key is an empty OTLP
    request. Invalid JSON after that key is left to the parser. Raises RefusalError if the body is
    not an object, or if no such key occurs within the first 64 KiB.
    """
    start = _START.match(body, 0, _HEAD)
    if start is None:
        raise RefusalError(Reason.INVALID, "expected a JSON object, found something else")
    depth, is_key = 0, False
    for token in _TOKEN.finditer(body, start.end(), start.end() + _HEAD):
        first = body[token.start()]
        if first in _OPENING:
            depth += 1
            is_key = depth == 1
        elif first in _CLOSING:
            depth -= 1
            if depth <= 0:
                return ReceivedSignal.TRACES
        elif first == _COMMA:
            is_key = depth == 1
        elif first == _QUOTE and is_key:
            is_key = False
            key = _text(token[0])
            if key in _OTLP_KEYS:
                return ReceivedSignal.TRACES
            if key in _CIRRON_KEYS:
                return ReceivedSignal.CIRRON
    if len(body) - start.end() <= _HEAD:
        return ReceivedSignal.TRACES
    raise RefusalError(
        Reason.INVALID,
        "neither resourceSpans nor schema_version is among the keys in the first 64 KiB:"
        " put one of them first",
    )


def _text(token: bytes) -> str:
    if b"\\" not in token:
        return token[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(token))
    except ValueError:
        return ""


def _shown(text: str) -> str:
    """Return text from a client in a form that a response may repeat."""
    return ascii(text[:_LONGEST_SHOWN])
