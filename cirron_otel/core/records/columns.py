"""The columns of the SQL stores, and the conversion of a record's fields to and from columns.

Source: Cirron's schemas page, "Platform wire schemas". The order of a row's fields is the order of
that page. A column has the name of the field that it stores, apart from `parent_span_id`; columns
that store no field get their values from the caller.

A converted value never raises an error in a database driver: text has no NUL and no lone
surrogates, integers fit the column, numbers are finite, and JSON conforms to RFC 8259. A conversion
need not be exact: callers compare the fields restored from the columns with the record, and store
the difference in `extra`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Struct

from ... import exactjson
from ...exactjson import Raw
from .schema import Batch, Constraint, Mark, Shape, Snapshot, Span, shapes_of

INT32 = Constraint("int32")
"""The column stores 32-bit integers; other integer columns store 64-bit integers."""
_FIELDS = {"parent_span_id": "parent_id"}
"""The field of each column whose name differs from the field's."""
MAX_STRING_BYTES = 256
"""The maximum length of the column `value_string`, in UTF-8."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MARKED_NAME = "json:"


class TraceSpan(Struct, rename="camel", kw_only=True):
    """One closed scope. Times are wall-clock nanoseconds since the Unix epoch."""

    id: str
    trace_id: str
    """The id of the root scope of the process session that the span belongs to."""
    parent_span_id: str | None
    """None for the root."""
    name: str
    index: Annotated[int | None, INT32]
    """The epoch's or the step's number."""
    attrs: Any | None
    start_ns: int
    end_ns: int
    cpu_ns: int | None
    gpu_ns: int | None
    """None if CUDA is not available."""
    memory_peak_bytes: int | None
    thread_id: int | None
    rank: Annotated[int, INT32] = 0
    workspace_id: str
    pipeline_id: str | None
    run_id: str
    deployment_id: str | None
    """The deployment that served an inference."""
    model_id: str | None
    extra: str | None = None
    """The difference between the record and the fields restored from the columns, as JSON text."""


class TraceMark(Struct, rename="camel", kw_only=True):
    """A named value. Of the four value columns, the one that `value_type` names is set."""

    id: str
    span_id: str
    name: str
    value_type: str
    value_float: float | None
    value_int: int | None
    value_string: str | None
    """At most 256 bytes of UTF-8."""
    value_bool: bool | None
    attrs: Any | None
    ts_ns: int
    kind: str = "point"
    extra: str | None = None


class TraceSnapshot(Struct, rename="camel", kw_only=True):
    """Statistics of one tensor, and the location of its stored values, if any."""

    id: str
    span_id: str
    tensor_name: str
    shape: Any
    dtype: str
    mode: str
    stats: Any | None
    blob_uri: str | None
    """The URI of the uploaded blob (`s3://…`) if it is known; `extra` keeps the recorded URI."""
    extra: str | None = None


class TraceBatch(Struct, rename="camel", kw_only=True):
    """The header of the batch that contained the records; the platform has no table for it."""

    schema_version: Annotated[int, INT32]
    sdk_version: str
    batch_id: str
    created_ns: int
    extra: str | None = None


class PlatformRecords(Struct, kw_only=True):
    """The records of one batch. Decoding relies on each list having the batch's order."""

    batch: TraceBatch
    spans: list[TraceSpan]
    marks: list[TraceMark]
    snapshots: list[TraceSnapshot]


def text(value: Any) -> str:
    """Convert a value for a text column: None becomes "", any other non-string becomes JSON."""
    if value is None:
        return ""
    return clean(value if isinstance(value, str) else exactjson.dumps_ascii(value))


def nullable_text(value: Any) -> str | None:
    """Convert a value for a text column that may be null."""
    return None if value is None else text(value)


def clean(value: str) -> str:
    """Replace each character that databases reject with U+FFFD."""
    return well_formed(value).replace("\0", _REPLACEMENT)


def well_formed(value: str) -> str:
    """Replace each half of a surrogate pair with U+FFFD."""
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def column_of_name(name: str) -> str:
    """Return the column value of a file name: unchanged if plain text, else `json:` and JSON."""
    if clean(name) == name and not name.startswith(_MARKED_NAME):
        return name
    return _MARKED_NAME + exactjson.dumps_ascii(name)


def name_of_column(column: str) -> str:
    """Return the file name that a column value represents."""
    if not column.startswith(_MARKED_NAME):
        return column
    return str(exactjson.loads(column.removeprefix(_MARKED_NAME)))


def capped(value: Any, max_bytes: int) -> str | None:
    """Convert a value for a column of at most `max_bytes` of UTF-8; None if it is not a string.

    The text is truncated between characters.
    """
    if not isinstance(value, str):
        return None
    return clean(value).encode()[:max_bytes].decode("utf-8", "ignore")


def integer(value: Any, bits: int) -> int | None:
    """Convert a value for an integer column; None if it is not an integer or does not fit."""
    limit = 1 << bits - 1
    return value if type(value) is int and -limit <= value < limit else None


def number(value: Any) -> float | None:
    """Convert a value for a column of doubles; None if it is not a finite number."""
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return None
    return value if type(value) is float and math.isfinite(value) else None


def json_object(value: Any) -> dict[str, Any] | None:
    """Convert a value for a JSON column that contains an object or null."""
    plain = plain_json(value)
    return plain if isinstance(plain, dict) else None


def plain_json(value: Any) -> Any:
    """Convert a value to JSON that all parsers can read.

    Integers of more than 64 bits become doubles. Non-finite numbers, and numbers that `exactjson`
    reads as a `Raw`, become null.
    """
    if isinstance(value, dict):
        return {clean(key): plain_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain_json(each) for each in value]
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Raw):
        return (
            plain_json(json.loads(value.text, parse_int=_to_float)) if _is_object(value) else None
        )
    if type(value) is int and integer(value, 64) is None:
        return number(value)
    return value


def _is_object(value: Raw) -> bool:
    """Return whether `value` is an object with a repeated key, not a number."""
    return value.text.startswith("{")


def _to_float(token: str) -> int | float:
    return int(token) if len(token) < 19 else float(token)


class Columns:
    """The columns of a row type that store the fields of a record type.

    The functions are compiled, because a loop over the columns takes 50 % longer per record.
    """

    row: Callable[..., Any]
    """Returns the row of a record, which may be any mapping; keywords set the other columns."""
    record: Callable[..., dict[str, Any]]
    """Returns the record of a row, with the fields in the order on disk.

    Keywords set `attrs` and the fields that have no column; their default is None. An optional
    field whose column is null is left out.
    """

    def __init__(self, row: type[Struct], record: type[Struct]) -> None:
        """Derive the columns and the functions from both types."""
        shapes = shapes_of(record)
        self._row = row
        self._columns = columns = {
            field: (name, shape)
            for name, shape in shapes_of(row).items()
            if (field := _FIELDS.get(name, name)) in shapes
        }
        names: dict[str, Any] = {f"to_{n}": _converter(shape) for n, shape in columns.values()}
        values = {name: f"to_{name}(get({field!r}))" for field, (name, _) in columns.items()}
        self.row = self._filling("get", values, "True", names)
        required = [field for field, shape in shapes.items() if not shape.is_optional]
        argument_fields = [field for field in required if field not in columns or field == "attrs"]
        members = [
            f"{field!r}: {field if field in argument_fields else f'row.{columns[field][0]}'}"
            for field in required
        ]
        members += [
            f"**({{}} if row.{name} is None else {{{field!r}: row.{name}}})"
            for field, (name, _) in columns.items()
            if field not in required
        ]
        parameters = ", ".join(["row", *(f"{field}=None" for field in argument_fields)])
        self.record = _compiled(parameters, f"{{{', '.join(members)}}}")

    def copier(self, source: type[Struct]) -> Callable[..., Any]:
        """Return a function that copies the strings and integers of a typed record into a row.

        Keywords of the function set the other columns. It returns None if an integer does not fit
        its column.
        """
        values, checks = {}, ["True"]
        for field, shape in shapes_of(source).items():
            name, column = self._columns.get(field, (field, shape))
            if field not in self._columns or column.types[0] not in (str, int):
                continue
            values[name] = f"record.{field}"
            if column.types == (int,):
                limit = _limit(column)
                check = f"-{limit} <= record.{field} < {limit}"
                if shape.is_nullable:
                    null = "is None or" if column.is_nullable else "is not None and"
                    check = f"(record.{field} {null} {check})"
                checks.append(check)
        return self._filling("record", values, " and ".join(checks), {})

    def _filling(
        self, source: str, values: dict[str, str], check: str, names: dict[str, Any]
    ) -> Callable[..., Any]:
        """Compile a function that creates a row; columns without a value are its keywords."""
        others = [name for name in self._row.__struct_fields__ if name not in values]
        values = values | {name: name for name in others}
        fields = ", ".join(f"{name}={value}" for name, value in values.items())
        parameters = ", ".join([source, *(f"{name}=None" for name in others)])
        return _compiled(parameters, f"Row({fields}) if {check} else None", Row=self._row, **names)


def _compiled(parameters: str, body: str, **names: Any) -> Callable[..., Any]:
    # The source contains only field names. `__name__` assigns the function to this module.
    scope = {"__name__": __name__, **names}
    function: Callable[..., Any] = eval(f"lambda {parameters}: {body}", scope)  # noqa: S307
    return function


def _limit(shape: Shape) -> int:
    return 1 << (31 if INT32 in shape.constraints else 63)


def _converter(shape: Shape) -> Callable[[Any], Any]:
    (type_,) = shape.types
    if type_ is str:
        return nullable_text if shape.is_nullable else text
    if type_ is int:
        limit = _limit(shape)
        default = None if shape.is_nullable else 0
        return lambda value: value if type(value) is int and -limit <= value < limit else default
    return json_object


SPAN = Columns(TraceSpan, Span)
MARK = Columns(TraceMark, Mark)
SNAPSHOT = Columns(TraceSnapshot, Snapshot)
BATCH = Columns(TraceBatch, Batch)
