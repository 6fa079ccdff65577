"""The messages in a payload: envelopes with tables of rows, and control messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

CONTROL: Final = "_traceml_control"
RANK_FINISHED: Final = "rank_finished"
HISTORY_CONTROL: Final = "cirron_otel_history"
"""A control message of ours with the history's columns beside its rows: `[table, id, recv_ts_ns]`.
"""
_ENVELOPE_KEYS: Final = frozenset({"meta", "body"})


class Row(NamedTuple):
    """One row of a table."""

    table: str
    value: dict[str, Any]


class Envelope(NamedTuple):
    """The rows of one sampler, or a control message (`control` is then its name)."""

    meta: dict[str, Any]
    """The fields about the sender; for a control message, the message."""
    rows: tuple[Row, ...]
    control: str | None
    unknown: tuple[str, ...]
    """The rest of the message: unknown keys, and values of another type."""


def envelopes_of(value: Any) -> Iterator[Envelope]:
    """Yield the messages of a decoded payload: one, or a list of them."""
    for message in value if isinstance(value, list) else [value]:
        yield _envelope(message)


def shown(name: Any) -> str:
    """Return a name for a message of one line."""
    return ascii(name)[:60]


def _envelope(message: Any) -> Envelope:
    if not isinstance(message, dict):
        return Envelope({}, (), None, (f"a message of type {type(message).__name__}",))
    control = message.get(CONTROL)
    if control is not None:
        own: set[str] = {"rows"} if control == HISTORY_CONTROL else set()
        unknown = [
            f"key {shown(key)} of a control message"
            for key, value in message.items()
            if isinstance(value, dict | list) and key not in own
        ]
        return Envelope(message, (), str(control), tuple(sorted(unknown)))
    body, meta = message.get("body"), message.get("meta")
    if isinstance(body, dict) and isinstance(meta, dict):
        unknown = [f"key {shown(key)}" for key in message.keys() - _ENVELOPE_KEYS]
        unknown += [f"key {shown(key)} of body" for key in body.keys() - {"tables"}]
        rows = _rows(body.get("tables"), unknown)
        return Envelope(meta, rows, None, tuple(sorted(unknown)))
    if "tables" in message:  # the flat shape of TraceML 0.2
        flat_meta = {key: value for key, value in message.items() if key != "tables"}
        unknown = []
        rows = _rows(message["tables"], unknown)
        return Envelope(flat_meta, rows, None, tuple(unknown))
    return Envelope({}, (), None, ("a message without tables",))


def _rows(tables: Any, unknown: list[str]) -> tuple[Row, ...]:
    if not isinstance(tables, dict):
        unknown.append(f"tables of type {type(tables).__name__}")
        return ()
    rows = []
    for name, values in tables.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, dict):
                rows.append(Row(str(name), value))
            else:
                unknown.append(f"a row of type {type(value).__name__}")
    return tuple(rows)
