"""The payload of a frame: its decoded value, and a text from which it is written again exactly."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from ....errors import InputError

MAX_CONTAINERS: Final = 500_000
"""The most lists and maps that a payload may contain; TraceML's own have fewer than 10,000."""
_TOO_MANY: Final = f"more than {MAX_CONTAINERS} lists and maps: expected fewer"
_SURELY_FEW: Final = 2**20
_JSON_STARTS: Final = frozenset(b"{[")
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""The start of a double that is not finite, or of a very large one."""
_NOT_CONTAINERS: Final = bytes(set(range(256)) - set(range(0x80, 0xA0)) - {0xDC, 0xDD, 0xDE, 0xDF})


class Payload(NamedTuple):
    """A decoded payload."""

    value: Any
    """The decoded value; None if the payload cannot be decoded."""
    problem: str
    """The reason why the payload cannot be decoded, or an empty string."""
    text: bytes
    """A JSON value from which `payload_of` restores the payload: `[value]` if msgspec encodes the
    value to the same bytes, `{"json": text}` for a JSON payload, and otherwise base64 as a string.
    """


def read_payload(payload: bytes) -> Payload:
    """Decode a payload, msgpack or JSON. No payload raises."""
    if payload[:1] and payload[0] in _JSON_STARTS and len(payload) > 1:
        return _read_json(payload)
    if len(payload) > _SURELY_FEW and len(payload.translate(None, _NOT_CONTAINERS)) > (
        MAX_CONTAINERS
    ):
        return Payload(None, _TOO_MANY, _base64_text(payload))
    try:
        value = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError, TypeError) as error:
        return Payload(None, f"not msgpack: {_line(error)}", _base64_text(payload))
    return Payload(value, "", _exact_text(value, payload))


def _read_json(payload: bytes) -> Payload:
    if payload.count(b"{") + payload.count(b"[") > MAX_CONTAINERS:
        return Payload(None, _TOO_MANY, _base64_text(payload))
    try:
        text = payload.decode()
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Payload(None, f"not JSON: {_line(error)}", _base64_text(payload))
    return Payload(value, "", orjson.dumps({"json": text}))


def _exact_text(value: Any, payload: bytes) -> bytes:
    """Return the value as JSON if the payload follows from that, otherwise the payload itself."""
    try:
        text = orjson.dumps([value], option=orjson.OPT_PASSTHROUGH_DATETIME)
        # JSON has no NaN and no infinity; every other float comes back unchanged.
        restored = orjson.loads(text)[0] if _NOT_FINITE.search(payload) else value
        if msgspec.msgpack.encode(restored) == payload:
            return text
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # NaN, bytes, extensions, keys that are not text, and deep nesting
    return _base64_text(payload)


def _base64_text(payload: bytes) -> bytes:
    return b'"' + base64.b64encode(payload) + b'"'


def _line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def payload_of(entry: Any) -> bytes:
    """Return the payload for a parsed `Payload.text`. Raises InputError if it is not one."""
    try:
        if isinstance(entry, list) and len(entry) == 1:
            return msgspec.msgpack.encode(entry[0])
        if isinstance(entry, dict) and isinstance(entry.get("json"), str):
            text: str = entry["json"]
            return text.encode()
        if isinstance(entry, str):
            return base64.b64decode(entry, validate=True)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise InputError("not a frame: expected a list of one value, an object with json, or base64")
