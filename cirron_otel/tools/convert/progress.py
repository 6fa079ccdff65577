"""The interface to which a conversion reports its progress."""

from __future__ import annotations

from typing import Final, Protocol

BATCHES: Final = "batches"
BYTES: Final = "bytes"


class Progress(Protocol):
    """Receives the progress of work that has one or more stages."""

    def stage(self, name: str, unit: str = BATCHES) -> None:
        """Begin a stage. `unit` is what the stage counts; `BYTES` are shown as a size."""

    def __call__(self, done: int, total: int | None) -> None:
        """Receive how much of the stage is done, and the total if it is known."""


def begin_stage(progress: Progress | None, name: str, unit: str = BATCHES) -> None:
    """Begin a stage, if progress is displayed."""
    if progress is not None:
        progress.stage(name, unit)
