"""Convert between JSON values and OTLP AnyValues or attribute lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ... import exactjson
from ...semconv import ESCAPE, MAX_DEPTH, needs_escape

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT64_MAX = 2**64 - 1


class UnencodableError(Exception):
    """A value on the wire cannot be represented exactly in a Cirron record."""


def encodable(text: str) -> bool:
    """Return whether protobuf can encode `text`: it must not contain lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_int(value: object, low: int = INT64_MIN, high: int = INT64_MAX) -> bool:
    """Return whether `value` is an int, and not a bool, in the closed range [low, high]."""
    return type(value) is int and low <= value <= high


def readable(text: str) -> str:
    """Replace characters of `text` that UTF-8 cannot encode. The result is for display only."""
    return text.encode("utf-8", "replace").decode("utf-8")


def write_value(target: AnyValue, value: Any, depth: int = 1) -> None:
    """Write a JSON value as an AnyValue; a value without an exact form becomes a readable string.

    The result need not be exact: the caller compares the result of `read_value` with the original
    and keeps the original in the residual (`residual`).
    """
    if value is None:
        return
    kind = type(value)
    if kind is str:
        target.string_value = value if encodable(value) else readable(value)
    elif kind is bool:
        target.bool_value = value
    elif kind is int:
        if INT64_MIN <= value <= INT64_MAX:
            target.int_value = value
        else:
            target.string_value = str(value)
    elif kind is float:
        # JSON has only one NaN, so a record does not keep the bits of this NaN
        target.double_value = value if value == value else math.nan
    elif depth > MAX_DEPTH or kind not in (list, dict):
        target.string_value = readable(exactjson.dumps(value).decode("utf-8"))
    elif kind is list:
        target.array_value.SetInParent()
        for item in value:
            write_value(target.array_value.values.add(), item, depth + 1)
    else:
        target.kvlist_value.SetInParent()
        for key, item in value.items():
            if encodable(key):
                pair = target.kvlist_value.values.add(key=key)
                pair.value.SetInParent()
                write_value(pair.value, item, depth + 1)


def read_value(source: AnyValue) -> Any:
    """Decode an AnyValue to a JSON value. Raises UnencodableError for bytes and repeated keys."""
    kind = source.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [read_value(item) for item in source.array_value.values]
    if kind == "kvlist_value":
        return read_attributes(source.kvlist_value.values)
    if kind in ("string_value", "bool_value", "int_value", "double_value"):
        return getattr(source, kind)
    raise UnencodableError(kind)


def read_attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Decode an attribute list to a JSON object. Raises UnencodableError for repeated keys."""
    result: dict[str, Any] = {}
    for pair in pairs:
        if pair.key in result:
            raise UnencodableError("repeated key")
        result[pair.key] = read_value(pair.value)
    return result


def add(target: Any, key: str, value: Any) -> None:
    """Append one attribute to a repeated KeyValue field."""
    pair = target.add(key=key)
    pair.value.SetInParent()
    write_value(pair.value, value)


def escape(key: str) -> str:
    """Return the wire key of a user's attribute: reserved names get the prefix `cirron.attr.`."""
    return ESCAPE + key if needs_escape(key) else key


def is_reserved(key: str) -> bool:
    """Whether a wire key belongs to the mapping rather than to the user."""
    return needs_escape(key) and not key.startswith(ESCAPE)


def add_escaped(target: Any, attributes: Mapping[str, Any]) -> None:
    """Append a user's attributes under their wire keys; omit keys that protobuf cannot encode."""
    for key, value in attributes.items():
        if encodable(key):
            add(target, escape(key), value)


def split_attributes(pairs: Iterable[KeyValue]) -> tuple[dict[str, AnyValue], dict[str, Any]]:
    """Split an attribute list into the mapping's attributes (AnyValues) and the user's (JSON).

    Raises UnencodableError if a key repeats or a user's value has no exact JSON form.
    """
    ours: dict[str, AnyValue] = {}
    users: dict[str, Any] = {}
    for pair in pairs:
        key = pair.key
        if is_reserved(key):
            if key in ours:
                raise UnencodableError("repeated key")
            ours[key] = pair.value
            continue
        key = key.removeprefix(ESCAPE)
        if key in users:
            raise UnencodableError("repeated key")
        users[key] = read_value(pair.value)
    return ours, users


def read_typed(ours: dict[str, AnyValue], key: str, kind: str) -> Any:
    """Return the value of the mapping's attribute `key` if its oneof field is `kind`, else None."""
    value = ours.get(key)
    if value is None or value.WhichOneof("value") != kind:
        return None
    return getattr(value, kind)
