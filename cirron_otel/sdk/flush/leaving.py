"""The last work of a session whose process ends: save what is not sealed, and send the rest."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, sleep
from typing import Final

from .interfaces import Exporter, Leaving, Metrics
from .ownership import FlushOwnership

LEAVE_S: Final = 0.5
"""Seconds that an exit whose limit is over waits for the flush side."""
SAVE_S: Final = 0.6
"""Seconds after the limit for the batches of the remainder; later ones are lost."""
OVER_S: Final = 0.9
"""Seconds after its limit from which an exit no longer waits for anything."""


def leave(ownership: FlushOwnership, remainder: Leaving, begun: float) -> None:
    """Take the demanded flush side over, and save the rest; `begun` is when the time was over.

    The calling thread remains the owner. If the previous owner does not give the flush side up, the
    rest is counted as lost.
    """
    while not ownership.take():
        if monotonic() >= begun + LEAVE_S:
            remainder.count_lost()
            return
        sleep(0.001)
    remainder.save(begun + SAVE_S)


def finish_exporters(
    exporters: Sequence[Exporter],
    metrics: Metrics | None,
    deadline: float,
    *,
    is_sending: bool,
    is_exit: bool,
) -> bool:
    """Send the rest until `deadline` (monotonic s); return whether everything is sent.

    Without `is_sending`, nothing is sent any more. With `is_exit`, an exporter that does not
    respond is left behind.
    """

    def left() -> float:
        return max(deadline - monotonic(), 0.0) if is_sending else 0.0

    is_done = True
    # Flush all exporters at once, so that an unreachable target does not delay the others.
    for exporter in exporters:
        exporter.request_flush(left())
    if metrics is not None:
        metrics.request_flush()
    for exporter in exporters:
        if is_exit and monotonic() > deadline + OVER_S:
            return False
        is_done = exporter.finish(left()) and is_sending and is_done
    if metrics is not None:
        metrics.finish(left())
    return is_done
