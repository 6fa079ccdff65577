"""The marks that the processes of a run have dropped: digests may be among them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from ....semconv import SESSION
from ..index import SpoolIndex, id_of
from ..run_report import PREFIX
from ..run_traces import BatchLookup, records_of

_SESSIONS: Final = "SELECT DISTINCT id FROM span WHERE name = ? AND id IS NOT NULL"
_MARKS: Final = PREFIX + "marks_"
_AT_ONCE: Final = 100


def dropped_marks(index: SpoolIndex, reader: BatchLookup) -> int:
    """Return the number of marks that the processes of a run have dropped.

    `index` has the sessions of the run, which are read through `reader`.
    """
    ids = (id_of(key) for (key,) in index.rows(_SESSIONS, SESSION))
    count = 0
    while some := list(islice(ids, _AT_ONCE)):
        records = records_of(index, reader, some).values()
        count += sum(dropped_in(each.get("attrs")) for each in records)
    return count


def dropped_in(attributes: object) -> int:
    """Return the number of dropped marks in a session's attributes."""
    if not isinstance(attributes, Mapping):
        return 0
    return sum(
        value
        for name, value in attributes.items()
        if name.startswith(_MARKS) and type(value) is int and value > 0
    )
