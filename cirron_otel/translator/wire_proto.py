"""The wire schema as JSON ↔ the same schema as protobuf (proto/cirron/v1/trace.proto).

One table says which key stands in which field and how; both directions read it. What a field
cannot say exactly stays unset, and the difference between what decoding gives and the truth is
kept as JSON text in the message's `rest`, so every batch comes back equal as a JSON value:

    from_proto(to_proto(batch)) == batch

A message that `to_proto` made comes back equal as well; one from elsewhere may say the same in
more than one way, and comes back in ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from .. import exactjson
from .._proto.cirron.v1 import trace_pb2 as pb
from ..errors import InputError
from ..exactjson import Raw
from .rest import apply, difference
from .values import sayable

MAX_DEPTH = 16
_INT64 = (-(2**63), 2**63 - 1)
_UINT32 = (0, 2**32 - 1)
_DEEP = "batch nested too deep: more levels than can be handled"


def to_proto(batch: Any) -> pb.Batch:
    """A batch, as `exactjson.loads` gives it, as a message.

    Raises InputError where it is nested too deep to be compared.
    """
    message = pb.Batch()
    try:
        _write_record(message, batch, _BATCH)
    except RecursionError:
        raise InputError(_DEEP) from None
    return message


def from_proto(message: pb.Batch) -> Any:
    """The batch that a message stands for, as `exactjson.loads` would give it.

    Raises InputError where a `rest` or a value's JSON text is none.
    """
    try:
        return _read_record(message, _BATCH)
    except RecursionError:
        raise InputError(_DEEP) from None


def parse(data: bytes) -> pb.Batch:
    """A serialised message. Raises InputError where the bytes are none."""
    try:
        return pb.Batch.FromString(data)
    except DecodeError:
        raise InputError(
            f"{len(data)} bytes that are no protobuf: expected a message cirron.v1.Batch"
        ) from None


class _Field(NamedTuple):
    """One key of a record: how it is written into its field, and read from it."""

    key: str
    write: Callable[[Any, str, Any], None]
    """Leaves the field unset where it cannot say the value."""
    read: Callable[[Any, str], Any]
    null: bool = False
    """Unset means null; otherwise, unset is the default, or the key is missing."""
    optional: bool = False
    """Unset means that the key is missing."""


_Table = tuple[_Field, ...]


def _write_record(message: Any, record: Any, table: _Table) -> None:
    if not isinstance(record, dict):
        message.rest = exactjson.dumps_ascii({"is": record})
        return
    for field in table:
        if field.key in record:
            field.write(message, field.key, record[field.key])
    rest = difference(record, _read_fields(message, table))
    if rest:
        message.rest = exactjson.dumps_ascii(rest)


def _read_record(message: Any, table: _Table) -> Any:
    rest = _rest_of(message.rest)
    if "is" in rest:
        return rest["is"]
    record = _read_fields(message, table)
    apply(record, rest)
    return record


def _read_fields(message: Any, table: _Table) -> dict[str, Any]:
    record = {}
    for field in table:
        if (field.null or field.optional) and not message.HasField(field.key):
            if field.null:
                record[field.key] = None
        else:
            record[field.key] = field.read(message, field.key)
    return record


def _rest_of(text: str) -> dict[str, Any]:
    if not text:
        return {}
    rest = exactjson.loads(text)
    if isinstance(rest, dict):
        if rest.keys() == {"is"}:
            return rest
        changed, missing = rest.get("set", {}), rest.get("missing", [])
        shaped = rest.keys() <= {"set", "missing"} and isinstance(changed, dict)
        if shaped and isinstance(missing, list) and all(isinstance(k, str) for k in missing):
            return rest
    raise InputError(
        f"rest {text[:40]!a} of a protobuf message is no difference:"
        ' expected {"set": {…}, "missing": […]} or {"is": …}'
    )
