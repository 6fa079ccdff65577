"""Validation of one batch against docs/spool-format.md, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ... import exactjson
from ...errors import InputError
from ..spool.paths import parse_name
from .check import check_value
from .conform import conforms
from .findings import Finding
from .rules import BATCH, RECORDS, Remark, check_deep

_MAX_ERRORS = 100


def validate_batch(data: bytes, name: str = "") -> list[Finding]:
    """Return the errors and notes on a batch; `name` is its file name, if it has one.

    At most 100 errors are listed, followed by the number of further ones; notes of one kind are
    combined in one finding with their number.
    """
    batch = conforms(data)
    if batch is not None:
        header: tuple[Any, Any] = (batch.created_ns, batch.batch_id)
        return [_finding(name, remark) for remark in _check_name(name, *header)]
    try:
        value = exactjson.loads(data)
    except InputError as error:
        return [Finding(name, "not-json", str(error))]
    problem = check_value(value)
    if problem is not None:
        return [Finding(name, problem.code, problem.message)]
    remarks = list(_check_name(name, value.get("created_ns"), value.get("batch_id")))
    try:
        remarks += _check_batch(value)
    except RecursionError:
        remarks.append(Remark("deep", "nested too deep to be looked at as a whole", "$", "note"))
    return _summed_up(name, remarks)


def _check_name(name: str, created_ns: Any, batch_id: Any) -> Iterator[Remark]:
    if not name:
        return
    parts = parse_name(name)
    if parts is None:
        yield Remark("file-name", "not <created_ns in 20 digits>-<batch_id>.json", "")
        return
    if type(created_ns) is int and parts[0] != created_ns:
        yield Remark(
            "file-name", f"its created_ns is {created_ns}: order is by name", "$.created_ns"
        )
    if isinstance(batch_id, str) and parts[1] != batch_id:
        yield Remark("file-name", f"its batch_id is {batch_id[:40]!a}", "$.batch_id")


def _check_batch(batch: dict[str, Any]) -> Iterator[Remark]:
    yield from BATCH.check(batch, "$")
    for key, rules in RECORDS.items():
        for number, record in enumerate(batch.get(key, ())):
            path = f"$.{key}[{number}]"
            if isinstance(record, exactjson.Raw):
                yield Remark("repeated-key", "a key stands twice in the record", path)
            elif not isinstance(record, dict):
                yield Remark("wrong-type", "the record is no object", path)
            else:
                yield from rules.check(record, path)
    yield from check_deep(batch, "$")


def _summed_up(name: str, remarks: list[Remark]) -> list[Finding]:
    """Return errors individually up to the limit, and notes by kind with their number."""
    errors = [remark for remark in remarks if remark.severity == "error"]
    findings = [_finding(name, remark) for remark in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        more = f"{len(errors) - _MAX_ERRORS} more errors in this file"
        findings.append(Finding(name, "more", more))
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


def _finding(name: str, remark: Remark) -> Finding:
    return Finding(name, remark.code, remark.message, remark.severity, remark.path)
