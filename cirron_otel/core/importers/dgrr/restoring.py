"""Restore a trace from its batches, in any order."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ....errors import InputError
from ...records.trace_marks import TRACE_STEP
from ...state_database import TEMPORARY, open_database
from .importing import KEY, POSITION, VERBATIM
from .layout import HEADER, RECORD, record_bytes

_TABLES: Final = (
    "CREATE TABLE trace (id TEXT PRIMARY KEY, header BLOB, records INTEGER, tail BLOB)",
    "CREATE TABLE record (trace TEXT, number INTEGER, data BLOB, PRIMARY KEY (trace, number))"
    " WITHOUT ROWID",
)
_PAIRS: Final = (("w_before", "b_before"), ("grad_w", "grad_b"), ("w_after", "b_after"))
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")
_EXPECTED: Final = "expected the form of docs/dgrr.md"


class CollectedTrace:
    """Collects the batches of a trace in a temporary file."""

    def __init__(self, folder: Path) -> None:
        """Use a temporary file in `folder`. Raises sqlite3.Error."""
        self._database = open_database(folder / "trace.sqlite", *TEMPORARY)
        for statement in _TABLES:
            self._database.execute(statement)
        self._database.execute("BEGIN")
        self.others = 0
        """The number of records of batches that a trace cannot store."""
        self.incomplete: list[str] = []

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, batch: dict[str, Any]) -> None:
        """Add a batch. Raises InputError if it contains a part of a trace in another form."""
        members = batch.get(KEY)
        marks: list[Any] = batch.get("marks") or []
        retained: list[Any] = []
        if isinstance(members, dict):
            retained = [
                mark for mark in marks if isinstance(mark, dict) and mark.get("name") == TRACE_STEP
            ]
            self._add(members, retained)
        spans = batch.get("spans") or []
        own = sum(1 for span in spans if isinstance(members, dict) and _is_own(span, members))
        snapshots = batch.get("snapshots") or []
        self.others += len(marks) - len(retained) + len(spans) - own + len(snapshots)

    def _add(self, members: dict[str, Any], marks: list[dict[str, Any]]) -> None:
        trace, records = members.get("trace"), members.get("records")
        header, tail = _bytes(members.get("header")), _bytes(members.get("tail", ""))
        sizes_fit = len(header) <= HEADER.size and len(tail) < RECORD.size
        is_id = isinstance(trace, str) and _TRACE_ID.fullmatch(trace)
        is_count = type(records) is int and 0 <= records < 2**63
        if not (is_id and is_count and sizes_fit):
            raise InputError(f"the object {KEY} of the batch is not valid: {_EXPECTED}")
        try:
            rows = [(trace, *_record(mark)) for mark in marks]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"a mark {TRACE_STEP} is not valid: {error}: {_EXPECTED}") from None
        run = self._database.execute
        run("INSERT OR IGNORE INTO trace VALUES (?,?,?,?)", (trace, header, records, tail))
        self._database.executemany("INSERT OR IGNORE INTO record VALUES (?,?,?)", rows)

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the trace; note in `incomplete` how many records are missing.

        Raises InputError if there is no trace, or more than one.
        """
        run = self._database.execute
        traces = run("SELECT id, header, records, tail FROM trace LIMIT 2").fetchall()
        if not traces:
            raise InputError("the source contains no DGRR trace: expected an imported one")
        if len(traces) > 1:
            raise InputError(
                "the source contains several DGRR traces, and a file holds one:"
                " choose it with --select session=ID"
            )
        trace, header, records, tail = traces[0]
        yield header
        count = 0
        for (data,) in run("SELECT data FROM record WHERE trace = ? ORDER BY number", (trace,)):
            count += 1
            yield data
        yield tail
        if count != records:
            self.incomplete.append(f"{abs(records - count)} records are not in the source")


def _is_own(span: Any, members: dict[str, Any]) -> bool:
    return isinstance(span, dict) and span.get("id") == members.get("trace")


def _record(mark: dict[str, Any]) -> tuple[int, bytes]:
    """Return the position and the bytes of a mark's record."""
    attrs = mark["attrs"]
    number = attrs[POSITION]
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"the position is {number!r:.40}")
    if KEY in mark:
        data = _bytes(mark[KEY][VERBATIM])
        if len(data) != RECORD.size:
            raise ValueError(f"the record has {len(data)} bytes")
        return number, data
    step_id = attrs["step_id"]
    if type(step_id) is not int or not 0 <= step_id < 2**64:
        raise ValueError(f"the step id is {step_id!r:.40}")
    before, gradients, after = ((_number(attrs[w]), _number(attrs[b])) for w, b in _PAIRS)
    return number, record_bytes(step_id, before, gradients, after, _number(mark["value"]))


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r:.40} is not a number")
    return float(value)


def _bytes(text: Any) -> bytes:
    if isinstance(text, str):
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            pass
    raise InputError(f"{KEY}: {text!r:.40} is not base64: {_EXPECTED}")
