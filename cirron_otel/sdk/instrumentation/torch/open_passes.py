"""The open passes over loaders of a thread, or of an asyncio task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...tracing.unwinding import Place
    from .one_pass import Pass


class Numbers:
    """Counts of epochs and evaluations, common to all tasks of a thread."""

    __slots__ = ("epochs", "evaluations")

    def __init__(self) -> None:
        self.epochs = self.evaluations = 0


class OpenPasses(ABC):
    """The open passes, and the operations on them that `Passes` implements.

    The modules that decide about steps depend only on this class.
    """

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.training: Pass | None = None
        self.evaluation: Pass | None = None

    @abstractmethod
    def begin_training(self, iterator: Any) -> None:
        """Begin a training pass over `iterator`, and its first step."""

    @abstractmethod
    def begin_evaluation(self, iterator: Any) -> None:
        """Begin an evaluation over `iterator`."""

    @abstractmethod
    def boundary(self, training: Pass, context: Any, current: Any) -> None:
        """Begin the next step, or micro step, at a fetch of the iterator that drives the steps."""

    @abstractmethod
    def end_training(self, at: int = 0, left: Place | None = None) -> None:
        """End the training pass, if there is one, at `at` (monotonic ns) at the earliest."""

    @abstractmethod
    def iterator_gone(self) -> Any:
        """Return the callback for the death of a pass's iterator."""

    def uncount_epoch(self, training: Pass) -> None:
        """Allow the next epoch to reuse the number of a pass that turned out not to be one."""
        self.numbers.epochs -= training.scope is not None
