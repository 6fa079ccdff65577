"""Connect the session that loads a checkpoint with the session that wrote it.

The file `cirron_run.json` in the directory of a checkpoint contains the trace id and the span id
of the session that wrote the checkpoint. A session that loads the checkpoint gets a link to it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from opentelemetry.trace import SpanContext, TraceFlags

from ..session.errors import record_error
from ..tracing.scope import NO_SESSION
from ..tracing.state import state

FILE = "cirron_run.json"
OPERATION, PATH = "operation", "path"
SAVE, LOAD = "save", "load"
_MOST_BYTES = 4_096


def checkpoint_attributes(operation: str, directory: object = None) -> dict[str, Any]:
    """Return the attributes of a `checkpoint` scope: the operation, and the path if known."""
    attrs: dict[str, Any] = {OPERATION: operation}
    if isinstance(directory, (str, os.PathLike)):
        attrs[PATH] = os.fspath(directory)
    return attrs


def store_origin(directory: object) -> None:
    """Write `cirron_run.json` into the directory of a checkpoint. Raises nothing.

    Call it in the process that writes the checkpoint, after the checkpoint. A directory that does
    not exist is not created.
    """
    try:
        session = state.session
        if session is NO_SESSION or not isinstance(directory, (str, os.PathLike)):
            return
        path = Path(directory)
        if not path.is_dir():
            return
        context = session.get_span_context()
        origin = {
            "trace_id": f"{context.trace_id:032x}",
            "session_span_id": f"{context.span_id:016x}",
        }
        (path / FILE).write_text(json.dumps(origin) + "\n", encoding="ascii")
    except Exception as error:
        record_error("checkpoint", error)


def link_origin(directory: object) -> None:
    """Link the open session to the session that wrote the checkpoint in `directory`.

    Does nothing if the checkpoint has no `cirron_run.json`, if this session wrote it, or if the
    session is linked to its writer already. Raises nothing.
    """
    try:
        session = state.session
        if session is NO_SESSION or not isinstance(directory, (str, os.PathLike)):
            return
        context = _read(Path(directory) / FILE)
        if context is None:
            return
        own = session.get_span_context()
        known = [(each.context.trace_id, each.context.span_id) for each in session.links]
        known.append((own.trace_id, own.span_id))
        if (context.trace_id, context.span_id) not in known:
            session.add_link(context, {"cirron.link": "checkpoint"})
    except Exception as error:
        record_error("checkpoint", error)


def _read(path: Path) -> SpanContext | None:
    """Return the context of the session that a file names; None if there is no valid one."""
    try:
        with path.open("rb") as file:
            origin = json.loads(file.read(_MOST_BYTES))
        context = SpanContext(
            int(origin["trace_id"], 16),
            int(origin["session_span_id"], 16),
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no file, not a file of this package, or a damaged one
    return context if context.is_valid else None
