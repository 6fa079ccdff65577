"""Options of the encoder."""

from __future__ import annotations

from dataclasses import dataclass

from ...semconv import DEFAULT_SERVICE_NAME

SEGMENTED, SESSION_LAYOUT = "segmented", "session"


@dataclass(frozen=True, slots=True)
class Options:
    """Choices that a batch leaves to the encoder."""

    layout: str = SEGMENTED
    """`segmented` uses the trace ids of the records and the segments of the plan; `session` puts
    all of a session into one trace."""
    service_name: str = DEFAULT_SERVICE_NAME
    """The `service.name` of a batch whose resource has none."""


DEFAULT = Options()
