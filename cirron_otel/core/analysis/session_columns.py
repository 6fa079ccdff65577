"""The sessions of a recording as the rows of one table (docs/dataframes.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...semconv import HOST_NAME, SERVICE_NAME, WORLD_SIZE
from ..columns.records import int64, text
from .runs import Run, SpoolRuns
from .summary import SessionSummary


class TableColumn(NamedTuple):
    """A column of a table of scalars."""

    name: str
    type: str
    """`string`, `int64`, `double` or `bool`."""


def columns_of(types: Mapping[str, str]) -> tuple[TableColumn, ...]:
    """Return columns with some names and types."""
    return tuple(TableColumn(*each) for each in types.items())


SESSION_COLUMNS: Final = columns_of({
    "run_id": "string", "run_name": "string", "session_id": "string", "state": "string",
    "error": "string", "rank": "int64", "world_size": "int64", "pid": "int64",
    "host_name": "string", "service_name": "string", "start_ns": "int64", "end_ns": "int64",
    "spans": "int64", "marks": "int64", "snapshots": "int64",
})  # fmt: skip


def session_rows(
    sessions: Iterable[SessionSummary], runs: Mapping[str, Run | None], spool: SpoolRuns
) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each session; `runs` has the run of each session's first batch by its id."""
    for session in sessions:
        run = runs.get(session.id) if session.id is not None else None
        yield _row(session, run, spool.resources.get(session.id or "", {}))


def _row(session: SessionSummary, run: Run | None, resource: dict[str, Any]) -> tuple[Any, ...]:
    return (
        None if run is None else run.id,
        None if run is None else run.name,
        session.id,
        session.state,
        session.error,
        _only(session.ranks),
        int64(resource.get(WORLD_SIZE)),
        _only(session.pids),
        text(resource.get(HOST_NAME)),
        text(resource.get(SERVICE_NAME)),
        session.start_ns,
        session.end_ns,
        session.spans,
        session.marks,
        session.snapshots,
    )


def _only(numbers: list[int]) -> int | None:
    return numbers[0] if len(numbers) == 1 else None
