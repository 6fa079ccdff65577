"""Options of the encoder."""

from __future__ import annotations

from dataclasses import dataclass

from ...semconv import DEFAULT_SERVICE_NAME

SEGMENTED, SESSION_LAYOUT = "segmented", "session"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the encoder that do not depend on the batch."""

    layout: str = SEGMENTED
    """`segmented` uses the records' trace ids and the plan's segments; `session` puts each session
    into one trace.
    """
    service_name: str = DEFAULT_SERVICE_NAME
    """The `service.name` for a batch whose resource has none."""


DEFAULT = Options()
