"""The session of a training worker.

Ray kills a process soon after its function has ended, so the session is closed before Ray learns of
the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...session.errors import record_error
from ...tracing.scope import Scope
from ..base import RankCallback, SessionAccess
from .handover import ATTEMPT, PREVIOUS

NAME = "ray"


def scope(name: str, index: int | None = None, **attrs: Any) -> AbstractContextManager[Any]:
    """Return a scope that is not open yet, or a context that does nothing if that fails."""
    try:
        return Scope(name, index, **attrs)
    except Exception as error:
        record_error(NAME, error)
        return nullcontext()


def end_process(process: SessionAccess, error: BaseException | None = None) -> None:
    """Close the session of this process if it has begun. Raises nothing."""
    try:
        if process.is_begun:
            process.end(error)
    except Exception as problem:
        record_error(NAME, problem)


class WorkerRuns:
    """Begins the session of a worker. Its methods raise nothing."""

    def __init__(self, process: SessionAccess) -> None:
        self.process = process
        self.rank_found: RankCallback | None = None
        """Called with the rank and the world size of this process."""

    def begin(
        self, rank: int, world_size: int, attributes: Mapping[str, Any], config: object = None
    ) -> None:
        """Open the session of a training worker with this rank."""
        try:
            attempt = int(os.environ.get(ATTEMPT, "0"))
            previous = json.loads(os.environ.get(PREVIOUS, "{}"))
            more = {**attributes, "ray.restart": attempt or None}
            self.process.begin(more, config, previous.get(str(rank), "") if attempt else "")
            if self.rank_found is not None:
                self.rank_found(rank, world_size)
        except Exception as error:
            record_error(NAME, error)
