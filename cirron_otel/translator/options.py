"""The choices that a batch leaves to whoever encodes it."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENTED, SESSION_LAYOUT = "segmented", "session"

DEFAULT_SERVICE_NAME = "cirron"


@dataclass(frozen=True, slots=True)
class Options:
    """How to say a batch where the batch leaves a choice."""

    layout: str = SEGMENTED
    """`segmented`: obey the records' own trace ids and the plan's segments; `session`: everything
    of a session in its own trace."""
    service_name: str = DEFAULT_SERVICE_NAME
    """`service.name` of a batch whose resource has none."""


DEFAULT = Options()
