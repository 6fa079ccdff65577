"""Connect the runs of loggers with the session: their ids here, its trace id there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...session.errors import record_error
from ...session.run_details import add_attributes
from ...tracing.scope import NO_SESSION
from ...tracing.state import state

_MOST_RUNS = 8


def trace_id() -> str | None:
    """Return the trace id of the open session, 32 hex digits, or None without a session."""
    session = state.session
    if session is NO_SESSION or not state.recording:
        return None
    return f"{session.get_span_context().trace_id:032x}"


class Links:
    """The runs of one logger that are connected with one session."""

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._linked: set[Any] = set()
        self._inherited: set[Any] = set()
        """The runs that a parent process has connected."""
        self._attributes: dict[str, list[str]] = {}

    def add(
        self, key: Any, attributes: Callable[[], Mapping[str, Any]], tag: Callable[[str], None]
    ) -> None:
        """Connect a run, the first time that `key` is passed. Raises nothing.

        `attributes` returns what identifies the run; `tag` stores the trace id in the run.
        """
        if key in self._linked:
            return
        trace = trace_id()
        if trace is None:
            return
        self._linked.add(key)
        try:
            self._announce(attributes())
            if key not in self._inherited:
                tag(trace)
        except Exception as error:
            record_error(self._logger, error)

    def _announce(self, attributes: Mapping[str, Any]) -> None:
        """Record the attributes of a further run; several values are separated by commas."""
        for name, value in attributes.items():
            values = self._attributes.setdefault(name, [])
            text = str(value) if value else ""
            if text and text not in values and len(values) < _MOST_RUNS:
                values.append(text)
        known = {name: ",".join(values) for name, values in self._attributes.items() if values}
        add_attributes(known)

    def after_fork(self) -> None:
        """In a forked child, connect the runs again, but leave their tags unchanged."""
        self._inherited |= self._linked
        self._linked.clear()
        self._attributes.clear()
