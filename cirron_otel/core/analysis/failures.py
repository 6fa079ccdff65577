"""The sessions of a run that failed or were killed, and how far their training had progressed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

ENDED = ("failed", "killed")
_LINE = re.compile(r'  File "(.{1,400})", line (\d{1,9}), in (.{1,200})')

_LIBRARY = re.compile(
    r"[/\\](site-packages|dist-packages|cirron_otel)[/\\]|[/\\]lib[/\\]python|^<frozen "
)


@dataclass(slots=True)
class SessionFailure:
    """One session that failed or was killed."""

    session: str
    state: str
    """`failed`, or `killed`."""
    rank: int | None
    pid: int | None
    error: str
    """The status message: the exception, or the signal."""
    where: str | None = None
    """The file, line and function of the exception's innermost frame."""
    scope: str | None = None
    """The name of the innermost scope that was open."""
    span_id: str | None = None
    """The id of that scope."""
    epoch: str | None = None
    step: str | None = None
    """The indexes of the epoch and step that were open at the failure, or of the last ones."""
    time_ns: int | None = None
    """The time at which the session ended, Unix ns."""
    loss_name: str | None = None
    cause: str | None = None
    """`out of memory` if an out-of-memory error or the kernel's OOM killer ended the session."""
    requested_bytes: int | None = None
    """The size of the allocation that failed, if the error stated it."""
    last_loss: float | None = None
    """The rank's last mark that is named `loss`, or whose name contains that word."""

    def to_json(self) -> dict[str, Any]:
        """Return the failure as a JSON object."""
        return asdict(self)


def innermost_frame(record: dict[str, Any]) -> str | None:
    """Return the innermost frame of a record's exception, preferably in the program's own code."""
    otel = record.get("otel")
    events = otel.get("events") if isinstance(otel, dict) else None
    for event in reversed(events if isinstance(events, list) else []):
        attributes = (
            event.get("attrs", event.get("attributes")) if isinstance(event, dict) else None
        )
        stack = attributes.get("exception.stacktrace") if isinstance(attributes, dict) else None
        lines = _LINE.findall(stack) if isinstance(stack, str) else []
        own_lines = [line for line in lines if not _LIBRARY.search(line[0])]
        if lines:
            path, line, function = (own_lines or lines)[-1]
            return f"{path}:{line} in {function}"
    return None
