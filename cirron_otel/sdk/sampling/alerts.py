"""Alerts on a memory limit, with hysteresis: one crossing of a threshold is one alert."""

from __future__ import annotations

from typing import Final

from ... import semconv as sc

THRESHOLDS: Final = ((sc.MEMORY_CRITICAL, 0.95), (sc.MEMORY_WARNING, 0.85))
"""The alerts and the used shares of a limit at which they are raised, the highest first."""
HYSTERESIS: Final = 0.05
"""The share by which use must fall below a threshold before it can be crossed again."""


class AlertState:
    """The alerts that are raised for one limit."""

    __slots__ = ("_raised",)

    def __init__(self) -> None:
        self._raised: set[str] = set()

    def crossed(self, share: float) -> tuple[str, float] | None:
        """Return the alert to raise for a used share, with its threshold; None if there is none.

        If the share crosses several thresholds at once, only the highest is an alert.
        """
        alert = None
        for name, threshold in THRESHOLDS:
            if share >= threshold:
                if name not in self._raised and alert is None:
                    alert = name, threshold
                self._raised.add(name)
            elif share < threshold - HYSTERESIS:
                self._raised.discard(name)
        return alert
