"""The parts of a session that the pipeline uses without importing them."""

from __future__ import annotations

from typing import Any, Protocol


class Exporter(Protocol):
    """Receives the names of sealed batches; implemented by the delivery thread."""

    def notify(self, name: str) -> None:
        """Process a batch that is in the spool."""

    def rescan(self) -> None:
        """Look for batches that were recovered from dead processes."""

    def request_flush(self, timeout: float) -> None:
        """Announce, without waiting, that `finish` follows and has `timeout` seconds from now."""

    def finish(self, timeout: float) -> bool:
        """Send the remaining batches within `timeout` seconds; return whether all are sent."""

    def abandon(self) -> None:
        """In a forked child: release everything without sending."""

    def stats(self) -> dict[str, Any]:
        """Return the state for `health()`."""


class Leaving(Protocol):
    """Saves what is not sealed when the process ends; implemented by `remainder.Remainder`."""

    def save(self, until: float) -> None:
        """Save everything that is in no sealed batch, until about the time `until`."""

    def count_lost(self) -> None:
        """Count what cannot be sealed or saved."""


class Metrics(Protocol):
    """Sends metrics; implemented by `metrics_push.MetricsPush`.

    Only the end of the session waits for it.
    """

    def request_flush(self) -> None:
        """Request the last export and the end of the thread, without waiting."""

    def finish(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the last export, and release the connection."""

    def abandon(self) -> None:
        """In a forked child: release everything without sending."""

    def stats(self) -> dict[str, Any]:
        """Return the state for `health()`."""
