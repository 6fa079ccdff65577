"""Validation of one batch against docs/spool-format.md, record by record.

Values that the recording program generates (ids, times, types) must conform to the format. Values
that its user supplied (a name, an index, attributes) are stored unchanged, so an unexpected value
is only a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from msgspec import Struct

from ... import exactjson
from ...errors import InputError
from ...exactjson import Raw
from ...ids import is_id
from ..spool.paths import parse_name
from .check import check_value
from .conform import conforms
from .problems import ReadingProblem, Severity
from .schema import (
    FROM_USER,
    LISTS,
    NONFINITE,
    Batch,
    Mark,
    Shape,
    Snapshot,
    Span,
    shape_of,
    shapes_of,
)

_MAX_TIME = 2**63
_NUMBERS = ("mean", "std", "min", "max", "norm")


class Remark(NamedTuple):
    """A finding that does not name its file."""

    code: str
    message: str
    path: str
    severity: Severity = "error"


Rule = Callable[[Any, str], Iterator[Remark]]
"""Checks a field's value; its arguments are the value and its path."""


class RecordRules(NamedTuple):
    """The rules of one type of record, by field."""

    required: Mapping[str, Rule]
    optional: Mapping[str, Rule]
    complete: Rule
    """Checks the complete record."""

    def check(self, record: dict[str, Any], path: str) -> Iterator[Remark]:
        """Yield every remark on `record`."""
        for key, rule in self.required.items():
            if key in record:
                yield from rule(record[key], f"{path}.{key}")
            else:
                yield Remark("missing-key", f"no {key}", path)
        for key, value in record.items():
            if key in self.optional:
                yield from self.optional[key](value, f"{path}.{key}")
            elif key not in self.required:
                yield Remark("unknown-key", "a key that the format does not have",
                             f"{path}.{_short(key)}", "note")  # fmt: skip
        yield from self.complete(record, path)


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


def _scope_id(value: Any, path: str) -> Iterator[Remark]:
    if value != "root":
        yield from _id(value, path)


def _time(value: Any, path: str) -> Iterator[Remark]:
    if type(value) is not int:
        yield from _wrong(value, "nanoseconds as an integer", path)
    elif not 0 <= value < _MAX_TIME:
        yield Remark(
            "out-of-range", f"{_short(value)} is not a valid time: expected 0 to 2^63-1", path
        )


def _integer(value: Any, path: str) -> Iterator[Remark]:
    if type(value) is not int:
        yield from _wrong(value, "an integer", path)


def _count(value: Any, path: str) -> Iterator[Remark]:
    yield from _integer(value, path)
    if type(value) is int and value < 0:
        yield Remark("out-of-range", f"{_short(value)}: expected 0 or more", path)


def _object(value: Any, path: str) -> Iterator[Remark]:
    if isinstance(value, Raw) and value.text.startswith("{"):
        yield Remark("repeated-key", "a key occurs twice in it", path, "note")
    elif not isinstance(value, dict):
        yield from _wrong(value, "an object", path)


def _nullable(rule: Rule) -> Rule:
    return lambda value, path: rule(value, path) if value is not None else iter(())


def _from_user(rule: Rule) -> Rule:
    """Return the same rule with its remarks as notes, for values that the user supplied."""

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
        if mark.get("value_nonfinite") not in NONFINITE.words:
            yield Remark(
                "value-type", "null: expected a value, or value_nonfinite nan, inf or -inf", path
            )
    elif "value_nonfinite" in mark:
        yield Remark(
            "value-type", f"{_short(value)} in addition to value_nonfinite: expected null", path
        )
    elif isinstance(value, Raw) and not value.text.startswith("{") and expected in (float, int):
        return
    elif type(value) is int and expected is float:
        yield Remark("odd-type", f"{_short(value)} is an integer: value_type is float",
                     path, "note")  # fmt: skip
    elif type(value) is not expected:
        yield Remark("value-type", f"{_short(value)} is not of type {kind}", path)


def _snapshot(snapshot: dict[str, Any], path: str) -> Iterator[Remark]:
    if snapshot.get("mode") == "stats" and snapshot.get("blob_uri") is not None:
        yield Remark("blob-uri", "a blob in mode stats: expected null", f"{path}.blob_uri")


def _statistics(stats: Any, path: str) -> Iterator[Remark]:
    if stats is None:
        return
    if not isinstance(stats, dict):
        yield from _wrong(stats, "an object or null", path)
        return
    for key in _NUMBERS:
        value = stats.get(key)
        if value is not None and not _is_number(value):
            yield from _wrong(value, "a number or null", f"{path}.{key}")
        elif value is None and not isinstance(stats.get("nonfinite"), dict):
            yield Remark("stats", f"no {key}", path, "note")
    if "histogram" in stats:
        yield from _histogram(stats["histogram"], f"{path}.histogram")
    else:
        yield Remark("histogram", "no histogram", path, "note")
    for key in stats.keys() - {
        *_NUMBERS,
        "histogram",
        "nonfinite",
        "nonfinite_count",
        "finite",
    }:
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
    """Yield remarks on values at any depth that other JSON readers may not read exactly."""
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
        yield Remark("repeated-key", "a key occurs twice in an object", path, "note")
    elif isinstance(value, Raw) or (type(value) is int and not -(2**63) <= value < 2**64):
        yield Remark("big-number", "a number that does not fit exactly into 64 bits", path, "note")


def _check_text(text: str, path: str) -> Iterator[Remark]:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        yield Remark("lone-surrogate", "half of a surrogate pair in a string", path, "note")


def _short(value: Any) -> str:
    text = exactjson.dumps_ascii(value)
    if isinstance(value, str) and text[1:-1].replace("_", "a").isalnum():
        text = text[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."


_RULES: dict[str, Rule] = {
    "id": _id, "scope": _scope_id, "time": _time, "count": _count, "statistics": _statistics,
}  # fmt: skip
_BY_TYPE: dict[Any, Rule] = {str: _string, int: _integer, dict: _object}


def _rule_of(shape: Shape) -> Rule:
    """Return the rule of a field."""
    rule: Rule = _anything
    if len(shape.types) == 1:
        (type_,) = shape.types
        rule = _BY_TYPE.get(get_origin(type_) or type_, _anything)
        if get_origin(type_) is list and get_args(type_)[0] not in LISTS.values():
            rule = _list_of(_rule_of(shape_of(get_args(type_)[0])))
    for constraint in shape.constraints:
        if constraint is FROM_USER:
            return _from_user(_nullable(rule) if shape.is_nullable else rule)
        rule = _RULES[constraint.name] if constraint.name in _RULES else _one_of(*constraint.words)
    return _nullable(rule) if shape.is_nullable else rule


def _record_rules(record: type[Struct], complete: Rule) -> RecordRules:
    shapes = shapes_of(record).items()
    return RecordRules(
        {name: _rule_of(shape) for name, shape in shapes if not shape.is_optional},
        {name: _rule_of(shape) for name, shape in shapes if shape.is_optional},
        complete,
    )


BATCH = _record_rules(Batch, _anything)
RECORDS = {
    "spans": _record_rules(Span, _span),
    "marks": _record_rules(Mark, _mark),
    "snapshots": _record_rules(Snapshot, _snapshot),
}


_MAX_ERRORS = 100


def validate_batch(data: bytes, name: str = "") -> list[ReadingProblem]:
    """Return the errors and notes on a batch; `name` is its file name, if it has one.

    At most 100 errors are listed, followed by the number of errors left out. Notes of one kind are
    combined into one finding with a count.
    """
    batch = conforms(data)
    if batch is not None:
        header: tuple[Any, Any] = (batch.created_ns, batch.batch_id)
        return [_finding(name, remark) for remark in _check_name(name, *header)]
    try:
        value = exactjson.loads(data)
    except InputError as error:
        return [ReadingProblem(name, "not-json", str(error))]
    problem = check_value(value)
    if problem is not None:
        return [ReadingProblem(name, problem.code, problem.message)]
    remarks = list(_check_name(name, value.get("created_ns"), value.get("batch_id")))
    try:
        remarks += _check_batch(value)
    except RecursionError:
        remarks.append(Remark("deep", "nested too deeply to be checked completely", "$", "note"))
    return _summed_up(name, remarks)


def _check_name(name: str, created_ns: Any, batch_id: Any) -> Iterator[Remark]:
    if not name:
        return
    parts = parse_name(name)
    if parts is None:
        yield Remark("file-name", "expected <created_ns in 20 digits>-<batch_id>.json", "")
        return
    if type(created_ns) is int and parts[0] != created_ns:
        yield Remark(
            "file-name", f"created_ns is {created_ns}: files are read by name", "$.created_ns"
        )
    if isinstance(batch_id, str) and parts[1] != batch_id:
        yield Remark("file-name", f"batch_id is {batch_id[:40]!a}", "$.batch_id")


def _check_batch(batch: dict[str, Any]) -> Iterator[Remark]:
    yield from BATCH.check(batch, "$")
    for key, rules in RECORDS.items():
        for number, record in enumerate(batch.get(key, ())):
            path = f"$.{key}[{number}]"
            if isinstance(record, exactjson.Raw):
                yield Remark("repeated-key", "a key occurs twice in the record", path)
            elif not isinstance(record, dict):
                yield Remark("wrong-type", "the record is not an object", path)
            else:
                yield from rules.check(record, path)
    yield from check_deep(batch, "$")


def _summed_up(name: str, remarks: list[Remark]) -> list[ReadingProblem]:
    """Return individual errors up to the limit, and one note of each kind with a count."""
    errors = [remark for remark in remarks if remark.severity == "error"]
    findings = [_finding(name, remark) for remark in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        more = f"{len(errors) - _MAX_ERRORS} more errors in this file"
        findings.append(ReadingProblem(name, "more", more))
    notes: dict[tuple[str, str], list[Remark]] = {}
    for remark in remarks:
        if remark.severity == "note":
            place = remark.path.split("[")[0] + remark.path.rpartition("]")[2]
            notes.setdefault((remark.code, place), []).append(remark)
    for alike in notes.values():
        more = f" ({len(alike) - 1} more like it)" if len(alike) > 1 else ""
        first = alike[0]
        findings.append(_finding(name, first._replace(message=first.message + more)))
    return findings


def _finding(name: str, remark: Remark) -> ReadingProblem:
    return ReadingProblem(name, remark.code, remark.message, remark.severity, remark.path)
