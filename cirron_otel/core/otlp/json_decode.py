"""OTLP/JSON → TracesData (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding").

Accepts everything that proto3 JSON lets writers produce: lowerCamelCase and snake_case keys,
numbers or strings for integers, enum names, null for an absent field. Unknown keys are ignored, and
reported if they have content. An object that contains a field twice is refused, whether under one
key, under both spellings of its key, or as two members of an AnyValue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from ...errors import InputError
from .json_parse import parse_into
from .json_scalars import (
    Bad,
    base64_bytes,
    boolean,
    double,
    enum,
    hex_id,
    int32,
    int64,
    shortened,
    shown,
    string,
    uint32,
    uint64,
)

MAX_PROTOBUF_DEPTH = 100
"""The maximum nesting below the outermost message that protobuf parsers accept."""

_INT64_DIGITS = 19
"""A positive integer with fewer digits than this fits in an int64."""
_MAX_UNKNOWN = 100
_EMPTY: tuple[Any, ...] = (None, [], {})
_NO_TELEMETRY = {("TracesData", "partialSuccess"), ("TracesData", "partial_success")}
"""Keys of a server's response, which some programs write beside the request."""
_RENAMED = dict.fromkeys(
    ("instrumentationLibrarySpans", "instrumentation_library_spans"),
    ": OTLP renamed it in version 0.15: its spans are read if it is scopeSpans, and the"
    " instrumentationLibrary in it is scope",
)
"""The advice about keys of earlier versions of OTLP."""

_Action = TypeVar("_Action")

Convert = Callable[[Any], Any]
Fill = Callable[[Any, Any, int, "Unknown"], None]
"""(target, JSON value, depth, unknown keys): reads the value into the target message or list."""


class Unknown:
    """Unknown keys, counted by (message type, key)."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._others = 0

    def add(self, kind: str, key: str, value: Any) -> None:
        """Count an occurrence of the unknown key `key` in a message of type `kind`.

        Null, an empty list and an empty object are not counted: nothing is lost with them.
        """
        if value in _EMPTY or (kind, key) in _NO_TELEMETRY:
            return
        place = (kind, shortened(key))
        if place in self._counts or len(self._counts) < _MAX_UNKNOWN:
            self._counts[place] = self._counts.get(place, 0) + 1
        else:
            self._others += 1

    def report(self) -> list[str]:
        """Return one line for each kind of unknown key, at most 101 lines."""
        lines = [
            f"unknown key {key!a} in {kind} ignored"
            + (f" ({count} times)" if count > 1 else "")
            + _RENAMED.get(key, "")
            for (kind, key), count in self._counts.items()
        ]
        return lines + ([f"{self._others} other unknown keys ignored"] if self._others else [])


def traces_from_json(data: bytes) -> tuple[TracesData, list[str]]:
    """Parse one OTLP/JSON document; return its message, and a line for each kind of loss.

    Losses are unknown keys, and halves of surrogate pairs that were replaced.

    Raises InputError, with the JSON path of the fault, if `data` is not JSON, a key is repeated, a
    value has a wrong type or is out of range, hex or base64 is malformed, or values are nested
    deeper than protobuf parsers accept.
    """
    (message, ignored), replaced = parse_into(data, traces_from_value)
    return message, [*replaced, *ignored]


def traces_from_value(document: Any) -> tuple[TracesData, list[str]]:
    """Convert a document for `json_parse.parse_into`; the result is as in `traces_from_json`."""
    message, unknown = TracesData(), Unknown()
    read_document(_TRACES_DATA, document, message, unknown)
    return message, unknown.report()


def read_document(kind: Kind, document: Any, message: Any, unknown: Unknown) -> None:
    """Read a parsed document into a message of type `kind`. Raises InputError."""
    try:
        _read(kind, document, lambda: message, 0, unknown)
    except Bad as bad:
        path = "".join(reversed(bad.path)).removeprefix(".")
        raise InputError(f"{path}: {bad.reason}" if path else bad.reason) from None
    except UnicodeEncodeError:
        raise InputError("a string contains a lone surrogate, which is not valid Unicode") from None


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


class Kind:
    """One message type: its name, and its fields under each key that JSON allows."""

    def __init__(self, name: str, scalars: dict[str, Convert], others: dict[str, Fill]) -> None:
        self.name = name
        self.scalars = _by_key(scalars)
        self.others = _by_key(others)


def _by_key(fields: dict[str, _Action]) -> dict[str, tuple[str, _Action]]:
    return {key: (name, fields[name]) for name in fields for key in (name, _camel(name))}


def _read(kind: Kind, value: Any, create: Callable[..., Any], depth: int, unknown: Unknown) -> None:
    """Read the JSON object `value` into the message that `create(**scalars)` returns."""
    if type(value) is not dict:
        raise Bad(f"expected an object ({kind.name}), found {shown(value)}")
    scalars: dict[str, Any] = {}
    others: dict[str, tuple[str, Fill]] = {}
    scalar_of, other_of, count = kind.scalars, kind.others, 0
    for key, item in value.items():
        if (scalar := scalar_of.get(key)) is not None:
            if item is None:
                continue
            name, convert = scalar
            try:
                scalars[name] = convert(item)
            except Bad as bad:
                bad.path.append("." + key)
                raise
            count += 1
        elif key not in other_of:
            unknown.add(kind.name, key, item)
        elif item is not None:
            name, fill = other_of[key]
            others[name] = key, fill
            count += 1
    if len(scalars) + len(others) != count:
        raise _given_twice(kind, value)
    message = create(**scalars)
    for name, (key, fill) in others.items():
        try:
            fill(getattr(message, name), value[key], depth + 1, unknown)
        except Bad as bad:
            bad.path.append("." + key)
            raise


def _given_twice(kind: Kind, value: dict[str, Any]) -> Bad:
    """Return the error for a field that `value` has under both spellings of its key."""
    field_of = kind.scalars | kind.others
    spelling_of: dict[str, str] = {}
    second = next(
        key
        for key, item in value.items()
        if item is not None
        and key in field_of
        and spelling_of.setdefault(field_of[key][0], key) != key
    )
    first = spelling_of[field_of[second][0]]
    bad = Bad(f"the field is given twice, as {first} and {second}, expected once: remove one")
    bad.path.append("." + second)
    return bad


def one(kind: Kind) -> Fill:
    """Return a reader of a sub-message; the sub-message is set even if its object is empty."""

    def fill(message: Any, value: Any, depth: int, unknown: Unknown) -> None:
        def create(**scalars: Any) -> Any:
            message.SetInParent()
            for name, scalar in scalars.items():
                setattr(message, name, scalar)
            return message

        _read(kind, value, create, depth, unknown)

    return fill


def _each(fill_item: Fill) -> Fill:
    """Return a reader of a list; `fill_item` reads one item of it into the container."""

    def fill(container: Any, value: Any, depth: int, unknown: Unknown) -> None:
        if type(value) is not list:
            raise Bad(f"expected an array, found {shown(value)}")
        for index, item in enumerate(value):
            try:
                fill_item(container, item, depth, unknown)
            except Bad as bad:
                bad.path.append(f"[{index}]")
                raise

    return fill


def many(kind: Kind) -> Fill:
    """Return a reader of a list of sub-messages."""

    def fill_item(container: Any, item: Any, depth: int, unknown: Unknown) -> None:
        _read(kind, item, container.add, depth, unknown)

    return _each(fill_item)


def _add_string(container: Any, item: Any, _depth: int, _unknown: Unknown) -> None:
    container.append(string(item))


def _add_any_value(container: Any, item: Any, depth: int, unknown: Unknown) -> None:
    any_value(container.add(), item, depth, unknown)


def _add_key_value(container: Any, item: Any, depth: int, unknown: Unknown) -> None:
    """Read one attribute, with shortcuts for the usual ones: only a key, and a value."""
    if type(item) is dict and len(item) == 2 and depth < MAX_PROTOBUF_DEPTH:
        key, value = item.get("key"), item.get("value")
        if type(key) is str and type(value) is dict:
            target = container.add()
            target.key = key  # faster than as an argument
            if len(value) == 1:
                if type(text := value.get("stringValue")) is str:
                    target.value.string_value = text
                    return
                text = value.get("intValue")
                if (
                    type(text) is str
                    and len(text) < _INT64_DIGITS
                    and text.isascii()
                    and text.isdigit()
                ):
                    target.value.int_value = int(text)
                    return
            try:
                any_value(target.value, value, depth + 1, unknown)
            except Bad as bad:
                bad.path.append(".value")
                raise
            return
    _check_depth(depth)
    _read(_KEY_VALUE, item, container.add, depth, unknown)


def any_value(message: Any, value: Any, depth: int, unknown: Unknown) -> None:
    """Read an AnyValue, which has at most one member; without a member, it is set but empty."""
    _check_depth(depth)
    if type(value) is not dict:
        raise Bad(f"expected an object (AnyValue), found {shown(value)}")
    member = None
    for key, item in value.items():
        fill = _ANY_VALUE.get(key)
        if fill is None:
            unknown.add("AnyValue", key, item)
        elif item is not None:
            if member is not None:
                raise Bad(f"expected one value, found both {member} and {key}")
            member = key
            try:
                fill(message, item, depth + 1, unknown)
            except Bad as bad:
                bad.path.append("." + key)
                raise
    if member is None:
        message.SetInParent()


def _check_depth(depth: int) -> None:
    if depth > MAX_PROTOBUF_DEPTH:
        raise Bad(
            f"values nested deeper than protobuf parsers accept ({MAX_PROTOBUF_DEPTH} messages)"
        )


def _member(name: str, convert: Convert) -> Fill:
    """Return a reader of a scalar member of AnyValue."""

    def fill(message: Any, item: Any, _depth: int, _unknown: Unknown) -> None:
        setattr(message, name, convert(item))

    return fill


def _list_member(name: str, kind: Kind) -> Fill:
    """Return a reader of the array or the key-value list of an AnyValue."""
    read = one(kind)

    def fill(message: Any, item: Any, depth: int, unknown: Unknown) -> None:
        _check_depth(depth)
        read(getattr(message, name), item, depth, unknown)

    return fill


ATTRIBUTES = _each(_add_key_value)
_strings = _each(_add_string)

_ARRAY = Kind("ArrayValue", {}, {"values": _each(_add_any_value)})
_KEY_VALUE_LIST = Kind("KeyValueList", {}, {"values": ATTRIBUTES})
_KEY_VALUE = Kind("KeyValue", {"key": string, "key_strindex": int32}, {"value": any_value})

_ANY_VALUE_FIELDS = {
    "string_value": _member("string_value", string),
    "bool_value": _member("bool_value", boolean),
    "int_value": _member("int_value", int64),
    "double_value": _member("double_value", double),
    "array_value": _list_member("array_value", _ARRAY),
    "kvlist_value": _list_member("kvlist_value", _KEY_VALUE_LIST),
    "bytes_value": _member("bytes_value", base64_bytes),
    "string_value_strindex": _member("string_value_strindex", int32),
}
_ANY_VALUE = {key: fill for name, fill in _ANY_VALUE_FIELDS.items() for key in (name, _camel(name))}

_STATUS = Kind("Status", {"message": string, "code": enum(Status.StatusCode.items())}, {})
_EVENT = Kind(
    "Event",
    {"time_unix_nano": uint64, "name": string, "dropped_attributes_count": uint32},
    {"attributes": ATTRIBUTES},
)
_LINK = Kind(
    "Link",
    {
        "trace_id": hex_id,
        "span_id": hex_id,
        "trace_state": string,
        "dropped_attributes_count": uint32,
        "flags": uint32,
    },
    {"attributes": ATTRIBUTES},
)
_SPAN = Kind(
    "Span",
    {
        "trace_id": hex_id,
        "span_id": hex_id,
        "trace_state": string,
        "parent_span_id": hex_id,
        "flags": uint32,
        "name": string,
        "kind": enum(Span.SpanKind.items()),
        "start_time_unix_nano": uint64,
        "end_time_unix_nano": uint64,
        "dropped_attributes_count": uint32,
        "dropped_events_count": uint32,
        "dropped_links_count": uint32,
    },
    {
        "attributes": ATTRIBUTES,
        "events": many(_EVENT),
        "links": many(_LINK),
        "status": one(_STATUS),
    },
)
SCOPE = Kind(
    "InstrumentationScope",
    {"name": string, "version": string, "dropped_attributes_count": uint32},
    {"attributes": ATTRIBUTES},
)
_SCOPE_SPANS = Kind(
    "ScopeSpans", {"schema_url": string}, {"scope": one(SCOPE), "spans": many(_SPAN)}
)
_ENTITY_REF = Kind(
    "EntityRef",
    {"schema_url": string, "type": string},
    {"id_keys": _strings, "description_keys": _strings},
)
RESOURCE = Kind(
    "Resource",
    {"dropped_attributes_count": uint32},
    {"attributes": ATTRIBUTES, "entity_refs": many(_ENTITY_REF)},
)
_RESOURCE_SPANS = Kind(
    "ResourceSpans",
    {"schema_url": string},
    {"resource": one(RESOURCE), "scope_spans": many(_SCOPE_SPANS)},
)
_TRACES_DATA = Kind("TracesData", {}, {"resource_spans": many(_RESOURCE_SPANS)})
