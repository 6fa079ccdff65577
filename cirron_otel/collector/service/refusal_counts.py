"""Counters and sampled logs of refused requests: one line of each kind per minute."""

from __future__ import annotations

import logging

from ..receiver.refusals import Refused
from . import metrics as m
from .metrics import Registry

logger = logging.getLogger(__name__)


class RefusalCounts:
    """Counts and logs the refusals of one receiver."""

    def __init__(self, registry: Registry, transport: str) -> None:
        self._registry, self._transport = registry, transport

    def __call__(self, refused: Refused) -> None:
        """Count a refusal, and log it unless a similar one was logged within the last minute."""
        transport, signal, reason = self._transport, refused.signal, refused.reason
        self._registry.add(m.REFUSED_REQUESTS, 1, transport, signal, reason)
        fields = {
            "transport": transport,
            "signal": signal,
            "reason": reason,
            "status": refused.status,
        }
        # The log handler suppresses repeats of a cause within a minute, and logs their number.
        logger.warning(
            "a request was refused: %s",
            refused.message,
            extra={"fields": fields, "cause": f"refused {transport} {signal} {reason}"},
        )
