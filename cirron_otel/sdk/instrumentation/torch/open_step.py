"""The state of the open step and of the open passes of a thread, or of an asyncio task.

`Tracker` extends the open step with the phases. The modules that determine where steps
and passes begin and end read and write only this state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ...session.errors import record_error
from ...tracing.buffers import local
from ...tracing.scope import MAX_DEPTH
from ...tracing.state import CONTEXT
from .accumulation import Gradients
from .kinds import OPTIMIZER
from .thread_health import ThreadHealth

if TYPE_CHECKING:
    from ...tracing.phase import LoopFetches, Phase
    from ...tracing.unwinding import Place
    from ..iteration import Iteration
    from ..training_loop import TrainingLoop
    from .one_pass import Pass
    from .own_pass import OwnPass
    from .torch_state import TorchState


class Numbers:
    """Counts of epochs and evaluations, shared by all tasks of a thread."""

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
    def end_evaluation(self, at: int = 0, left: Place | None = None) -> None:
        """End the evaluation, if there is one, not before `at` (monotonic ns)."""

    @abstractmethod
    def boundary(self, training: Pass, context: Any, current: Any) -> None:
        """Begin the next step, or micro step, at a fetch of the iterator that drives the steps."""

    @abstractmethod
    def end_training(self, at: int = 0, left: Place | None = None) -> None:
        """End the training pass, if there is one, not before `at` (monotonic ns)."""

    @abstractmethod
    def iterator_gone(self) -> Any:
        """Return the callback that is called when a pass's iterator is freed."""

    def uncount_epoch(self, training: Pass) -> None:
        """Allow the next epoch to reuse the number of a pass that turned out not to be an epoch."""
        self.numbers.epochs -= training.scope is not None


class OpenStep:
    """The open step and its context, with the counters that outlive a step."""

    # Inherited slots are as fast to read as slots that the class itself defines.
    __slots__ = (
        "above",
        "accumulating",
        "base",
        "batch",
        "buffers",
        "clock",
        "context",
        "copies",
        "crosses",
        "folds",
        "gradients",
        "has_failed",
        "health",
        "inside",
        "is_ahead",
        "is_plain",
        "iteration",
        "loop",
        "opened_ns",
        "outside",
        "own_pass",
        "parent",
        "step",
        "stepped",
        "steps_begun",
        "torch_state",
        "watches_gradients",
    )  # fmt: skip

    def __init__(self, torch_state: TorchState) -> None:
        self.torch_state = torch_state
        self.inside = 0
        """The kinds of the open phases, as bits (kinds.py)."""
        self.iteration: Iteration | None = None
        """The open step of a pass over a loader."""
        self.loop: TrainingLoop | None = None
        """The loop of a framework with a higher priority, which then determines the steps."""
        self.step: Any = None
        """The scope of `iteration`."""
        self.accumulating: Any = None
        """The step that another framework has announced to accumulate gradients."""
        self.crosses = False
        """Whether the announced accumulation continues in the next pass over the loader."""
        self.is_plain = False
        """Whether a step is open in a pass whose kind is decided: the fast paths apply."""
        self.context: Any = None
        """The context in which `above` is current; a phase entered in it is a child of `above`.
        None if phases have to look up their parent."""
        self.parent: Any = None
        """The parent of the step's phases: the step, or its open micro step."""
        self.above: Any = None
        """The parent of the phases that the fast paths open: `parent`, or an open
        `optimizer_step` that runs a closure."""
        self.base = 0
        """The kinds of the open phases in which the fast paths apply: OPTIMIZER in a closure."""
        self.outside: Any = None
        """The value of `context` outside the closure."""
        self.folds = False
        """Whether the step's phases have no records so far (`Step._folded`)."""
        self.opened_ns = 0
        """The time that the hooks took to open and mark the last outermost phase, ns."""
        self.steps_begun = self.stepped = 0
        """Number of steps in passes over loaders, counted only with `detail_every`, and number of
        optimizer steps begun."""
        self.buffers: Any = None
        self.clock: Any = torch_state.clock
        self.batch: LoopFetches | None = None
        """Set while a manual loop (`ci.batches`) fetches its next item; fetches belong to it."""
        self.copies: Any = None
        """An open group of copies to a device (`transfers.Copies`)."""
        self.is_ahead = False
        """Whether an iterator that fetches ahead reads its loader."""
        self.own_pass: OwnPass | None = None
        """The generator of a loader (`own_iteration`) that fetches a batch now."""
        self.gradients = Gradients(torch_state)
        """Tracks the gradients between two backward passes."""
        self.health = ThreadHealth()
        """The last marks of losses and of gradient norms."""
        self.watches_gradients = False
        """Whether backward passes update `gradients`: no optimizer has stepped in the pass."""
        self.has_failed = False
        """Whether a hook has raised, so that the next fetch starts over."""

    def opened(self, iteration: Iteration, context: Any) -> None:
        """Update the state for a newly opened step, which is current in `context`."""
        self.iteration = iteration
        self.step = self.parent = self.above = step = iteration.step
        self.base = 0
        self.folds = False
        # A phase below a step that is nested too deeply, or was dropped, looks up its parent.
        self.context = context if step._id and step._depth < MAX_DEPTH else None
        self.buffers = local.b

    def into(self, micro: Any) -> None:
        """Attach subsequent phases to the micro step `micro`, or to the step if it is None."""
        self.leave_closure()
        self.folds = False
        self.parent = self.above = self.step if micro is None else micro

    def leave_micro(self) -> None:
        """Attach subsequent phases to the step, whose micro step an optimizer step has closed."""
        if self.loop is None:
            self.into(None)
        else:
            self.loop.leave_micro()

    def enter_closure(self, optimizer_step: Phase) -> None:
        """Let the fast paths apply inside an optimizer step that runs a closure."""
        if optimizer_step._token is not None and optimizer_step._depth < MAX_DEPTH:
            self.outside, self.context = self.context, CONTEXT.get()
            self.above, self.base = optimizer_step, OPTIMIZER

    def leave_closure(self) -> None:
        """Let the fast paths apply outside the optimizer step again."""
        if self.base:
            self.context, self.outside = self.outside, None
            self.above, self.base = self.parent, 0

    def closed(self) -> None:
        """Update the state because no step of a pass is open any more."""
        self.iteration = self.step = self.parent = self.above = self.context = None
        self.is_plain = self.folds = False
        self.base = 0

    @property
    def last_optimizer(self) -> Any:
        """The id of the optimizer that stepped last; None if it is unknown."""
        return None

    def settle(self, phase: Phase) -> None:
        """Finish a phase as soon as its time on the device is known."""
        if phase._stamps is None or phase is self.copies:
            phase.finish()
        else:
            self.clock.settle(phase)

    def failed(self, error: BaseException) -> None:
        """Record an error in the hooks' own code, which may leave this state inconsistent.

        An exception that a signal handler raised, such as KeyboardInterrupt, is reraised.
        """
        self.has_failed, self.is_plain = True, False
        if not isinstance(error, Exception):
            raise error
        record_error("torch", error)
