"""Whether the process records, for hooks that need a session before they open a scope."""

from __future__ import annotations

from ..tracing.buffers import hooks
from ..tracing.scope import NO_SESSION
from ..tracing.state import state


def is_recording() -> bool:
    """Return whether there is a session.

    A session that waits for the first record of its process, and that of a forked child, opens now.
    """
    if state.session is NO_SESSION:
        hooks.first()
    return state.recording and state.session is not NO_SESSION
