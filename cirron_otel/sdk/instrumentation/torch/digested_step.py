"""The step whose tensors are digested (`digests`)."""

from __future__ import annotations

import threading
from typing import Any

from ...session.errors import record_error
from ...tracing.phase import STEPS, LoaderPassSpan
from ...tracing.state import CONTEXT, SCOPE_KEY
from .waiting_digests import WaitingDigests


class DigestedStep(threading.local):
    """The step of a thread that is digested."""

    scope: Any = None
    number = -1
    has_fetched = False
    """Whether a loader was read since the last optimizer's step."""
    has_opaque_closure = False
    """Whether the optimizer's step has a closure that is an object of the program's own type."""
    at = 0
    """The time of the last mark, monotonic ns."""
    expected: Any = None
    """The scope of the step that begins next, if that is known."""
    rng: Any = None
    """The time, and the states of the random number generators, as the next step begins."""

    def __init__(self) -> None:
        self.waiting = WaitingDigests()
        self.occurrences: dict[str, int] = {}


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured: nothing is computed then."""
    import torch  # noqa: PLC0415

    try:
        return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
    except Exception as error:
        record_error("digest", error)
        return True


def enclosing_step() -> Any:
    """Return the innermost open step around the caller; None if there is none."""
    scope = CONTEXT.get().get(SCOPE_KEY)
    while scope is not None and scope._depth:
        if scope._name in STEPS:
            return None if getattr(scope, "_until", 0) else scope
        if isinstance(scope, LoaderPassSpan):
            return None
        scope = scope._above
    return None
