"""What a request's headers and first keys say of its body: how it is written, and whose it is."""

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
"""Bytes in which a known key must come: to look further would cost whoever waits behind."""

_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*+(?=\{)")
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
"""A string that does not end is one token too: else each quote in it would be tried anew."""

_LONGEST_SHOWN = 60
_OPENING, _CLOSING, _COMMA, _QUOTE = frozenset(b"{["), frozenset(b"}]"), ord(","), ord('"')


def encoding_of(content_type: str | None) -> BodyEncoding:
    """How a body is written that comes with this Content-Type; HttpError 415 for any other."""
    media_type, _, parameters = (content_type or "").partition(";")
    media_type = media_type.strip().lower()
    if media_type == PROTOBUF:
        return BodyEncoding.PROTOBUF
    if media_type == JSON:
        charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", parameters, re.IGNORECASE)
        if charset is None or charset[1].lower() in ("utf-8", "utf8", "us-ascii"):
            return BodyEncoding.JSON
        raise HttpError(415, f"expected JSON in UTF-8, found {_shown(charset[1])}")
    found = _shown(media_type) if media_type else "none"
    raise HttpError(415, f"expected the Content-Type {PROTOBUF} or {JSON}, found {found}")


def content_coding(values: list[str]) -> str:
    """The one coding that these Content-Encoding headers name, `identity` for none.

    HttpError 415 for two at once; the coding itself is not looked at.
    """
    named = [part.strip().lower() for value in values for part in value.split(",")]
    codings = [name for name in named if name not in ("", "identity")]
    if len(codings) > 1:
        message = "expected one Content-Encoding at most, found several"
        raise HttpError(415, message, reason=Reason.ENCODING.value)
    return codings[0] if codings else "identity"


def json_signal(body: bytes) -> ReceivedSignal:
    """Whether JSON that came to `/v1/traces` is OTLP or a Cirron batch.

    The first top-level key that either of them knows decides. An object without any is OTLP: an
    empty request. What is no JSON behind that is left to whoever parses it. Raises RefusalError
    for what is no object, and where no such key comes within the first 64 KiB.
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
    """What a client sent, as an answer may repeat it."""
    return ascii(text[:_LONGEST_SHOWN])
