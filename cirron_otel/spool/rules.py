"""The rules for every field of a batch, as tables; what breaks one is a remark.

What a recording program states itself (ids, times, types) must be as the format says. What its
user gave it (a name, an index, attributes) is kept as it came, so an odd one is only a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import exactjson
from ..exactjson import Raw
from ..ids import is_id
from .findings import Severity

_MAX_TIME = 2**63
_NONFINITE = ("nan", "inf", "-inf")
_STATISTICS = ("mean", "std", "min", "max", "norm")


class Remark(NamedTuple):
    """A finding without its file."""

    code: str
    message: str
    path: str
    severity: Severity = "error"


Rule = Callable[[Any, str], Iterator[Remark]]
"""Looks at a field's value and its path."""


class Kinds(NamedTuple):
    """The fields of one kind of record: those that must stand in it, and those that may."""

    fields: Mapping[str, Rule]
    optional: Mapping[str, Rule]
    together: Rule
    """Looks at the record as a whole."""

    def check(self, record: dict[str, Any], path: str) -> Iterator[Remark]:
        """Every remark on `record`."""
        for key, rule in self.fields.items():
            if key in record:
                yield from rule(record[key], f"{path}.{key}")
            else:
                yield Remark("missing-key", f"no {key}", path)
        for key, value in record.items():
            if key in self.optional:
                yield from self.optional[key](value, f"{path}.{key}")
            elif key not in self.fields:
                yield Remark("unknown-key", "a key that the format does not have",
                             f"{path}.{_short(key)}", "note")  # fmt: skip
        yield from self.together(record, path)


def _wrong(value: Any, expected: str, path: str) -> Iterator[Remark]:
    yield Remark("wrong-type", f"found {_short(value)}, expected {expected}", path)


def _anything(_value: Any, _path: str) -> Iterator[Remark]:
    return iter(())


def _string(value: Any, path: str) -> Iterator[Remark]:
    if not isinstance(value, str):
        yield from _wrong(value, "a string", path)


def _id(value: Any, path: str) -> Iterator[Remark]:
    if not is_id(value):
        yield Remark("bad-id", f"found {_short(value)}, expected 32 lower-case hex digits", path)


def _owner(value: Any, path: str) -> Iterator[Remark]:
    if value != "root":
        yield from _id(value, path)


def _time(value: Any, path: str) -> Iterator[Remark]:
    if type(value) is not int:
        yield from _wrong(value, "nanoseconds as an integer", path)
    elif not 0 <= value < _MAX_TIME:
        yield Remark("out-of-range", f"{_short(value)} is no time: expected 0 to 2^63-1", path)


def _integer(value: Any, path: str) -> Iterator[Remark]:
    if type(value) is not int:
        yield from _wrong(value, "an integer", path)


def _count(value: Any, path: str) -> Iterator[Remark]:
    yield from _integer(value, path)
    if type(value) is int and value < 0:
        yield Remark("out-of-range", f"{_short(value)}: expected 0 or more", path)


def _object(value: Any, path: str) -> Iterator[Remark]:
    if isinstance(value, Raw) and value.text.startswith("{"):
        yield Remark("repeated-key", "a key stands twice in it", path, "note")
    elif not isinstance(value, dict):
        yield from _wrong(value, "an object", path)


def _nullable(rule: Rule) -> Rule:
    return lambda value, path: rule(value, path) if value is not None else iter(())


def _given(rule: Rule) -> Rule:
    """For what the user gave: the same rule, but a note."""

    def check(value: Any, path: str) -> Iterator[Remark]:
        for remark in rule(value, path):
            yield remark._replace(code="odd-type", severity="note")

    return check


def _list_of(rule: Rule) -> Rule:
    def check(value: Any, path: str) -> Iterator[Remark]:
        if not isinstance(value, list):
            yield from _wrong(value, "a list", path)
            return
        for number, each in enumerate(value):
            yield from rule(each, f"{path}[{number}]")

    return check


def _one_of(*words: str) -> Rule:
    def check(value: Any, path: str) -> Iterator[Remark]:
        if value not in words:
            yield Remark(path.rpartition(".")[2].replace("_", "-"),
                         f"found {_short(value)}, expected {' or '.join(words)}", path)  # fmt: skip

    return check


def _span(span: dict[str, Any], path: str) -> Iterator[Remark]:
    start, end = span.get("start_ns"), span.get("end_ns")
    if type(start) is int and type(end) is int and end < start:
        message = f"ends {start - end} ns before it starts"
        yield Remark("end-before-start", message, f"{path}.end_ns")


def _mark(mark: dict[str, Any], path: str) -> Iterator[Remark]:
    value, path = mark.get("value"), f"{path}.value"
    kind = mark.get("value_type")
    expected = {"float": float, "int": int, "string": str, "bool": bool}.get(str(kind))
    if expected is None or "value" not in mark:
        return
    if value is None:
        if mark.get("value_nonfinite") not in _NONFINITE:
            yield Remark("value-type", "null without value_nonfinite nan, inf or -inf", path)
    elif "value_nonfinite" in mark:
        yield Remark("value-type", f"{_short(value)} beside value_nonfinite", path)
    elif isinstance(value, Raw) and not value.text.startswith("{") and expected in (float, int):
        return
    elif type(value) is int and expected is float:
        yield Remark("odd-type", f"{_short(value)} has no fraction: value_type is float",
                     path, "note")  # fmt: skip
    elif type(value) is not expected:
        yield Remark("value-type", f"{_short(value)} is no {kind}", path)


def _snapshot(snapshot: dict[str, Any], path: str) -> Iterator[Remark]:
    if snapshot.get("mode") == "stats" and snapshot.get("blob_uri") is not None:
        yield Remark("blob-uri", "a blob in mode stats: expected null", f"{path}.blob_uri")


def _stats(stats: Any, path: str) -> Iterator[Remark]:
    if stats is None:
        return
    if not isinstance(stats, dict):
        yield from _wrong(stats, "an object or null", path)
        return
    for key in _STATISTICS:
        value = stats.get(key)
        if value is not None and not _is_number(value):
            yield from _wrong(value, "a number or null", f"{path}.{key}")
        elif value is None and not isinstance(stats.get("nonfinite"), dict):
            yield Remark("stats", f"{key} is not stated", path, "note")
    if "histogram" in stats:
        yield from _histogram(stats["histogram"], f"{path}.histogram")
    else:
        yield Remark("histogram", "no histogram", path, "note")
    for key in stats.keys() - {*_STATISTICS, "histogram", "nonfinite", "nonfinite_count", "finite"}:
        yield Remark("unknown-key", "a statistic that the format does not have",
                     f"{path}.{_short(key)}", "note")  # fmt: skip


def _histogram(histogram: Any, path: str) -> Iterator[Remark]:
    if histogram is None:
        yield Remark("histogram", "no histogram", path, "note")
        return
    if not isinstance(histogram, dict):
        yield from _wrong(histogram, "an object", path)
        return
    for key, size in (("bins", 17), ("counts", 16)):
        values = histogram.get(key)
        if not isinstance(values, list) or not all(map(_is_number, values)):
            yield from _wrong(values, "a list of numbers", f"{path}.{key}")
        elif len(values) != size:
            yield Remark("histogram", f"{len(values)} {key}: expected {size}", f"{path}.{key}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or (isinstance(value, Raw) and value.text[0] != "{")


def check_deep(value: Any, path: str) -> Iterator[Remark]:
    """Remarks on what is no plain JSON, anywhere in `value`: other readers may stumble over it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _check_text(key, path)
            yield from check_deep(each, f"{path}.{_short(key)}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from check_deep(each, f"{path}[{number}]")
    elif isinstance(value, str):
        yield from _check_text(value, path)
    elif isinstance(value, float) and value - value != 0:
        yield Remark("nan-token", f"{_short(value)} is not JSON of RFC 8259", path, "note")
    elif isinstance(value, Raw) and value.text.startswith("{"):
        yield Remark("repeated-key", "a key stands twice in an object", path, "note")
    elif isinstance(value, Raw) or (type(value) is int and not -(2**63) <= value < 2**64):
        yield Remark("big-number", "a number that 64 bits do not hold exactly", path, "note")


def _check_text(text: str, path: str) -> Iterator[Remark]:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        yield Remark("lone-surrogate", "half of a surrogate pair in a text", path, "note")


def _short(value: Any) -> str:
    text = exactjson.dumps_ascii(value)
    if isinstance(value, str) and text[1:-1].replace("_", "a").isalnum():
        text = text[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."


_OTEL = {"otel": _object}
BATCH = Kinds(
    {
        "schema_version": _anything,
        "sdk_version": _string,
        "batch_id": _id,
        "created_ns": _time,
        **dict.fromkeys(("spans", "marks", "snapshots"), _anything),
    },
    _OTEL,
    _anything,
)
SPAN = Kinds(
    {
        "id": _id,
        "name": _given(_string),
        "parent_id": _nullable(_id),
        "index": _given(_nullable(_integer)),
        "start_ns": _time,
        "end_ns": _time,
        **dict.fromkeys(("cpu_ns", "gpu_ns", "memory_peak_bytes"), _nullable(_count)),
        **dict.fromkeys(("thread_id", "pid", "rank"), _nullable(_integer)),
        "attrs": _object,
        "mark_ids": _list_of(_id),
    },
    _OTEL,
    _span,
)
MARK = Kinds(
    {
        "id": _id,
        "span_id": _owner,
        "name": _given(_string),
        "value_type": _one_of("float", "int", "string", "bool"),
        "value": _anything,
        "attrs": _object,
        "ts_ns": _time,
        "kind": _one_of("point", "summary"),
    },
    _OTEL | {"value_nonfinite": _one_of(*_NONFINITE)},
    _mark,
)
SNAPSHOT = Kinds(
    {
        "id": _id,
        "span_id": _id,
        "tensor_name": _given(_string),
        "shape": _list_of(_count),
        "dtype": _string,
        "mode": _one_of("stats", "sampled", "full"),
        "stats": _stats,
        "blob_uri": _nullable(_string),
        "ts_ns": _time,
        "attrs": _object,
    },
    _OTEL,
    _snapshot,
)
