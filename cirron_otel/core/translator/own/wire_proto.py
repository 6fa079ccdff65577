"""Convert batches between JSON and protobuf (proto/cirron/v1/trace.proto), without loss.

Both directions use one table, which gives the field and the encoding of each key. If a field cannot
express a value exactly, it stays unset, and the message's `rest` contains the difference between
the decoded record and the original as JSON text. So every batch is restored, equal as a JSON value:
`from_proto(to_proto(batch)) == batch`.

Messages from `to_proto` are restored as well: `to_proto(from_proto(message)) == message`. Another
encoder may write the same content differently; `to_proto` then writes it in its own form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, get_origin

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from msgspec import Struct

from .... import exactjson
from ...._proto.cirron.v1 import trace_pb2 as pb
from ....errors import InputError
from ...records.schema import LISTS, Batch, Shape, shapes_of
from ..residual import apply_diff, diff_of
from ..values import encodable

MAX_DEPTH = 16
_INT64 = (-(2**63), 2**63 - 1)
_UINT32 = (0, 2**32 - 1)
_DEEP = "the batch is nested too deeply to be processed"


def to_proto(batch: Any) -> pb.Batch:
    """Encode a batch, a value from `exactjson.loads`, as a message.

    Raises InputError if the batch is nested too deeply to be compared.
    """
    message = pb.Batch()
    try:
        _write_record(message, batch, _BATCH)
    except RecursionError:
        raise InputError(_DEEP) from None
    return message


def from_proto(message: pb.Batch) -> Any:
    """Return the batch in a message, as a value that `exactjson.loads` could return.

    Raises InputError if a `rest` or a value's JSON text is not valid.
    """
    try:
        return _read_record(message, _BATCH)
    except RecursionError:
        raise InputError(_DEEP) from None


def parse(data: bytes) -> pb.Batch:
    """Parse a serialised message. Raises InputError if the bytes are not valid."""
    try:
        return pb.Batch.FromString(data)
    except DecodeError:
        raise InputError(
            f"{len(data)} bytes that are not valid protobuf: expected a cirron.v1.Batch message"
        ) from None


class _Field(NamedTuple):
    """A key of a record, with the functions that write and read its field."""

    key: str
    write: Callable[[Any, str, Any], None]
    """Writes a value; leaves the field unset if it cannot store the value."""
    read: Callable[[Any, str], Any]
    null: bool = False
    """Whether an unset field means null, not the default value or a missing key."""
    optional: bool = False
    """Whether an unset field means that the key is missing."""


_Table = tuple[_Field, ...]


def _write_record(message: Any, record: Any, table: _Table) -> None:
    if isinstance(record, dict):
        for field in table:
            if field.key in record:
                field.write(message, field.key, record[field.key])
    message.rest = diff_of(record, _read_fields(message, table))


def _read_record(message: Any, table: _Table) -> Any:
    return apply_diff(_read_fields(message, table), message.rest)


def _read_fields(message: Any, table: _Table) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for field in table:
        if (field.null or field.optional) and not message.HasField(field.key):
            if field.null:
                record[field.key] = None
        else:
            record[field.key] = field.read(message, field.key)
    return record


def _write_value(target: pb.Value, value: Any, depth: int) -> None:
    """Write any JSON value into a field that stores it exactly, or else as JSON text."""
    if value is None:
        target.null = True
    elif type(value) is bool:
        target.boolean = value
    elif type(value) is int and _INT64[0] <= value <= _INT64[1]:
        target.integer = value
    elif type(value) is float:
        target.number = value
    elif type(value) is str and encodable(value):
        target.text = value
    elif type(value) is list and depth <= MAX_DEPTH:
        target.list.SetInParent()
        for each in value:
            _write_value(target.list.values.add(), each, depth + 1)
    elif type(value) is dict and depth <= MAX_DEPTH and all(map(encodable, value)):
        target.object.SetInParent()
        _write_fields(target.object, value, depth + 1)
    else:
        target.json = exactjson.dumps_ascii(value)


def _write_fields(target: pb.Object, value: dict[str, Any], depth: int) -> None:
    for key, each in value.items():
        _write_value(target.fields.add(key=key).value, each, depth)


def _read_value(value: pb.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null":
        return None
    if kind == "list":
        return [_read_value(each) for each in value.list.values]
    if kind == "object":
        return _read_object(value.object)
    if kind == "json":
        return exactjson.loads(value.json)
    return getattr(value, kind)


def _read_object(value: pb.Object) -> dict[str, Any]:
    """Read an object. If a foreign encoder repeats a key, the last value wins, as in JSON."""
    return {field.key: _read_value(field.value) for field in value.fields}


def _text(value: Any) -> bool:
    return type(value) is str and encodable(value)


def _number(value: Any) -> bool:
    return type(value) is float


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _plain(fits: Callable[[Any], bool]) -> Callable[[Any, str, Any], None]:
    def write(message: Any, key: str, value: Any) -> None:
        if fits(value):
            setattr(message, key, value)

    return write


def _each(fits: Callable[[Any], bool]) -> Callable[[Any, str, Any], None]:
    def write(message: Any, key: str, value: Any) -> None:
        if type(value) is list and all(map(fits, value)):
            getattr(message, key).extend(value)

    return write


def _records(table: _Table, key: str) -> _Field:
    def write(message: Any, key: str, value: Any) -> None:
        if type(value) is list:
            for each in value:
                _write_record(getattr(message, key).add(), each, table)

    def read(message: Any, key: str) -> Any:
        return [_read_record(each, table) for each in getattr(message, key)]

    return _Field(key, write, read)


def _record(table: _Table, key: str, *, null: bool = False, optional: bool = False) -> _Field:
    def write(message: Any, key: str, value: Any) -> None:
        if type(value) is dict:
            getattr(message, key).SetInParent()
            _write_record(getattr(message, key), value, table)

    def read(message: Any, key: str) -> Any:
        return _read_record(getattr(message, key), table)

    return _Field(key, write, read, null, optional)


def _object(key: str, *, optional: bool = False) -> _Field:
    def write(message: Any, key: str, value: Any) -> None:
        if type(value) is dict and all(map(encodable, value)) and (value or optional):
            getattr(message, key).SetInParent()
            _write_fields(getattr(message, key), value, 1)

    return _Field(key, write, lambda m, k: _read_object(getattr(m, k)), optional=optional)


def _write_set_value(message: Any, key: str, value: Any) -> None:
    if value is not None:
        _write_value(getattr(message, key), value, 1)


def _list_of(message: Any, key: str) -> list[Any]:
    return list(getattr(message, key))


_HISTOGRAM: _Table = (
    _Field("bins", _each(_number), _list_of),
    _Field("counts", _each(_integer(*_INT64)), _list_of),
)
_STATS: _Table = (
    *(
        _Field(k, _plain(_number), getattr, null=True)
        for k in ("mean", "std", "min", "max", "norm")
    ),
    _record(_HISTOGRAM, "histogram", optional=True),
)
_FITS = {
    FieldDescriptor.TYPE_STRING: _text,
    FieldDescriptor.TYPE_INT64: _integer(*_INT64),
    FieldDescriptor.TYPE_UINT32: _integer(*_UINT32),
}


def _table_of(record: type[Struct], descriptor: Any) -> _Table:
    """Derive a table from the schema; keys without a field in the message go into `rest`."""
    return tuple(
        _field_of(descriptor.fields_by_name[key], shape)
        for key, shape in shapes_of(record).items()
        if key in descriptor.fields_by_name
    )


def _field_of(descriptor: Any, shape: Shape) -> _Field:
    key, message = descriptor.name, descriptor.message_type
    if key in LISTS:
        return _records(_table_of(LISTS[key], message), key)
    if message is None:
        fits = _FITS[descriptor.type]
        if get_origin(shape.types[0]) is list:
            return _Field(key, _each(fits), _list_of)
        return _Field(key, _plain(fits), getattr, shape.is_nullable, shape.is_optional)
    if message.name == "Object":
        return _object(key, optional=shape.is_optional)
    if message.name == "Stats":
        return _record(_STATS, key, null=True)
    return _Field(key, _write_set_value, lambda m, k: _read_value(getattr(m, k)))


_BATCH = _table_of(Batch, pb.Batch.DESCRIPTOR)
