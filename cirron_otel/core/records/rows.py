"""The fields of a batch that reports use, even if it is malformed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias, get_origin

import msgspec
from msgspec import Struct

from ... import exactjson
from ...errors import InputError
from ...semconv import HW_ID, TRAINING, TRAINING_NAME
from .schema import FROM_USER, Mark, Shape, Snapshot, Span, shapes_of

_ERROR = 2
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
MAX_TEXT = 500
"""Longer names and values are truncated: rows are for display, never for conversion."""


DEVICE_PEAK = "cuda.memory_peak_bytes"
RESERVED_PEAK = "cuda.memory_reserved_peak_bytes"
_PEAK_TEXTS = (DEVICE_PEAK.encode(), RESERVED_PEAK.encode())
PEAK_SAMPLES = "memory_samples"
"""The attribute of an imported phase: the number of samples whose largest one is its peak."""
_SAMPLES_TEXT = f'"{PEAK_SAMPLES}"'.encode()
PHASES_ARE_SUMS = "traceml.phases_are_sums"
"""The attribute of an imported step of which only the sums of its phases are recorded."""
_LENGTH_OF_NONE = len("{}")
_SUMS_TEXT = f'"{PHASES_ARE_SUMS}"'.encode()
_TRAINING_TEXT = f'"{TRAINING}"'.encode()
_INT64 = range(-(2**63), 2**63)
Attributes: TypeAlias = msgspec.Raw
"""The attributes of a record as JSON text; a parsed value if the batch is malformed."""


class IndexedSpan(Struct, gc=False):
    """The fields of a span that reports use."""

    id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    index: Any = None
    start_ns: int | None = None
    end_ns: int | None = None
    pid: int | None = None
    rank: int | None = None
    thread_id: int | None = None
    gpu_ns: int | None = None
    memory_peak_bytes: int | None = None
    mark_ids: list[str] = []
    attrs: Attributes = msgspec.Raw()
    otel: Any = None

    @property
    def error(self) -> str | None:
        """The span's error message, or `error` if that is empty; None if the span has no error."""
        status = self.otel.get("status") if isinstance(self.otel, dict) else None
        if not isinstance(status, dict) or status.get("code") != _ERROR:
            return None
        message = status.get("message")
        return message if isinstance(message, str) and message else "error"

    @property
    def attributes(self) -> Any:
        """The attributes, parsed; None if they are not valid JSON."""
        return _parsed(self.attrs)

    @property
    def has_attributes(self) -> bool:
        """Whether the text of the attributes is longer than `{}`."""
        return not isinstance(self.attrs, msgspec.Raw) or len(self.attrs) > _LENGTH_OF_NONE

    @property
    def device_peaks(self) -> tuple[int | None, int | None]:
        """The attributes with the peaks of the device's memory, allocated and reserved, bytes."""
        text = self.attrs
        if isinstance(text, msgspec.Raw) and not any(name in bytes(text) for name in _PEAK_TEXTS):
            return None, None  # most spans: parsing would take longer than everything else
        attributes = self.attributes
        if not isinstance(attributes, dict):
            return None, None
        peaks = [attributes.get(name) for name in (DEVICE_PEAK, RESERVED_PEAK)]
        allocated, reserved = (peak if type(peak) is int else None for peak in peaks)
        return allocated, reserved

    @property
    def is_peak_sampled(self) -> bool:
        """Whether the peaks are the largest samples of an imported recording, and not exact."""
        return isinstance(self.attrs, msgspec.Raw) and _SAMPLES_TEXT in bytes(self.attrs)

    @property
    def is_summary(self) -> bool:
        """Whether it is from the summary of a step."""
        return False

    @property
    def phases_are_sums(self) -> bool:
        """Whether only the sums of its phases are recorded, and not when they ran."""
        return isinstance(self.attrs, msgspec.Raw) and _SUMS_TEXT in bytes(self.attrs)

    @property
    def training(self) -> int:
        """The number of the training that a step belongs to; 0 without an integer of 64 bits."""
        text = self.attrs
        if isinstance(text, msgspec.Raw) and _TRAINING_TEXT not in bytes(text):
            return 0
        attributes = self.attributes
        number = attributes.get(TRAINING) if isinstance(attributes, dict) else None
        return number if type(number) is int and number in _INT64 else 0


class IndexedMark(Struct, gc=False):
    """The fields of a mark that reports use."""

    id: str | None = None
    span_id: str | None = None
    name: str | None = None
    value: Any = None
    value_nonfinite: str | None = None
    kind: str | None = None
    ts_ns: int | None = None
    attrs: Attributes = msgspec.Raw()

    @property
    def attributes(self) -> Any:
        """The attributes, parsed; None if they are not valid JSON."""
        return _parsed(self.attrs)

    def may_have(self, text: bytes) -> bool:
        """Return whether the attributes may contain a text; parsing them takes longer."""
        return not isinstance(self.attrs, msgspec.Raw) or text in bytes(self.attrs)


class IndexedSnapshot(Struct, gc=False):
    """The fields of a snapshot that reports use."""

    id: str | None = None
    span_id: str | None = None
    tensor_name: str | None = None
    blob_uri: str | None = None


class IndexedBatch(Struct):
    """The rows of one batch."""

    sdk_version: str | None = None
    batch_id: str | None = None
    spans: list[IndexedSpan] = []
    marks: list[IndexedMark] = []
    snapshots: list[IndexedSnapshot] = []
    otel: msgspec.Raw = msgspec.Raw()
    """As JSON text, which is not valid if the batch is malformed."""


_MALFORMED = msgspec.Raw(b"malformed")
_decoder = msgspec.json.Decoder(IndexedBatch)


def detach(record: IndexedSpan | IndexedMark) -> None:
    """Copy the attributes of a record that is kept: they refer to the text of its batch."""
    if isinstance(record.attrs, msgspec.Raw):
        record.attrs = record.attrs.copy()


def device_of(mark: IndexedMark) -> str | None:
    """Return the device of a reading, or the name of a training; None for any other mark."""
    name = mark.name or ""
    if name != TRAINING and not name.startswith("hw."):
        return None
    attributes = mark.attributes
    key = TRAINING_NAME if name == TRAINING else HW_ID
    device = attributes.get(key) if isinstance(attributes, dict) else None
    return shown(device) if isinstance(device, str) else None


def rows_of(data: bytes) -> IndexedBatch:
    """Return the rows of a batch. A value of an unexpected type is None, or its JSON as text."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        batch = exactjson.loads(data)
    except InputError:
        return IndexedBatch(otel=_MALFORMED)
    if not isinstance(batch, dict):
        return IndexedBatch(otel=_MALFORMED)
    return IndexedBatch(
        sdk_version=_text(batch.get("sdk_version")),
        batch_id=_text(batch.get("batch_id")),
        spans=[IndexedSpan(**_values(_SPAN, span)) for span in _objects(batch, "spans")],
        marks=[IndexedMark(**_values(_MARK, mark)) for mark in _objects(batch, "marks")],
        snapshots=[
            IndexedSnapshot(**_values(_SNAPSHOT, each)) for each in _objects(batch, "snapshots")
        ],
        otel=_MALFORMED,
    )


def _values(converters: dict[str, Callable[[Any], Any]], record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row for a record of any shape."""
    return {name: convert(record.get(name)) for name, convert in converters.items()}


def shown(value: Any) -> str | None:
    """Return a value as text for display: at most 500 characters, always valid UTF-8."""
    if value is None or (isinstance(value, str) and value.isascii() and len(value) <= MAX_TEXT):
        return value
    text = value if isinstance(value, str) else exactjson.dumps_ascii(value)
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode("utf-8")


def number_of(value: str | None) -> float | None:
    """Return the finite number that `value` represents in JSON's notation, or None."""
    if value is None or not _NUMBER.fullmatch(value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _parsed(attrs: Any) -> Any:
    if not isinstance(attrs, msgspec.Raw):
        return attrs
    try:
        return msgspec.json.decode(attrs) if bytes(attrs) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _objects(batch: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the records in a list of a batch; a record that is not an object counts as empty."""
    records = batch.get(key)
    if not isinstance(records, list):
        return []
    return [record if isinstance(record, dict) else {} for record in records]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _converter(shape: Shape) -> Callable[[Any], Any]:
    if shape.types == (str,):
        return shown if FROM_USER in shape.constraints else _text
    if shape.types == (int,) and FROM_USER not in shape.constraints:
        return lambda value: value if type(value) is int else None
    if get_origin(shape.types[0]) is list:
        return lambda value: [e for e in value if isinstance(e, str)] if type(value) is list else []
    return lambda value: value


def _converters(row: type[Struct], record: type[Struct]) -> dict[str, Callable[[Any], Any]]:
    shapes = shapes_of(record)
    return {name: _converter(shapes[name]) for name in row.__struct_fields__}


_SPAN = _converters(IndexedSpan, Span)
_MARK = _converters(IndexedMark, Mark)
_SNAPSHOT = _converters(IndexedSnapshot, Snapshot)
