"""One pass over a loader: its state and its scope."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...tracing.clock import now
from ...tracing.phase import LoaderPassSpan, Phase, Step, begin, make_current
from ...tracing.state import CONTEXT, SCOPE_KEY
from ...tracing.unwinding import Place, keep
from ..iteration import carry_over

if TYPE_CHECKING:
    from ..iteration import Iteration
    from .pending import UnusedBatches

_GENERATOR = 0x20
_SKIPPED = ("cirron_otel.", "torch.utils.data", "torchdata.")
NODES = "torchdata.nodes.loader"
"""The module of torchdata's `Loader`, which keeps one iterator for all passes."""
_SAMPLERS = "torch.utils.data.sampler"
_KEPT = 3
"""Reference count of an iterator that only its loader references: one for the loader, and two for
reading the count."""
_get = CONTEXT.get
_set = CONTEXT.set


class Pass:
    """One pass over a loader, from its iterator's first fetch."""

    __slots__ = (
        "driver",
        "drivers",
        "fetches",
        "first_batch",
        "held",
        "inner",
        "inner_context",
        "is_ahead",
        "is_crossing",
        "is_decided",
        "is_firm",
        "is_manual",
        "is_only_batch",
        "is_simple",
        "is_training",
        "iterator",
        "known_data",
        "other",
        "outer_context",
        "over",
        "reached",
        "removes_gradients",
        "restarted",
        "restarts",
        "scope",
        "settle",
        "stepped",
        "steps",
        "turns",
        "undecided_from",
        "unused",
        "version",
        "was_backward",
        "was_forward",
        "was_trainable",
        "yields",
    )  # fmt: skip

    def __init__(  # noqa: PLR0915 - one statement for each attribute
        self,
        iterator: Any,
        iterator_gone: Any,
        outer_context: Any,
        settle: Callable[[Phase], None],
        *,
        is_training: bool,
    ) -> None:
        """`iterator_gone` is called when `iterator` has been freed; `settle` finishes a phase."""
        self.settle = settle
        self.iterator = weakref.ref(iterator, iterator_gone)
        self.outer_context = self.inner_context = outer_context
        """The context around the pass, and the context inside it."""
        self.is_training = is_training
        self.is_firm = False
        """Whether the pass is certainly an evaluation, because gradients are off at its fetches.
        """
        self.is_decided = False
        self.scope: LoaderPassSpan | None = None
        """The scope of the epoch or evaluation; None if the program or another framework opens it.
        """
        self.driver: Any = self.iterator
        """The iterator whose fetches begin steps: the pass's own, or one read inside the pass."""
        self.other: OtherFetches | None = None
        """Fetches of another iterator since the last fetch of the driver."""
        self.first_batch: FirstBatch | None = None
        """The first batch, while it is undecided whether this batch belongs to the epoch."""
        self.unused: UnusedBatches | None = None
        """Batches that were not used yet; None if they are not tracked."""
        self.over = 0
        """The time at which the pass's iterator was exhausted while batches were still unused,
        monotonic ns; otherwise 0."""
        self.inner: list[Any] = []
        """Weak references to other iterators that are fetched from inside the pass."""
        self.drivers: list[Any] = []
        """Weak references to the inner iterators whose fetches began steps."""
        self.known_data: list[Any] = []
        """Weak references to data that is trained on within this pass."""
        self.restarted: Any = None
        """A weak reference to the data of an inner loader that is exhausted."""
        self.is_ahead = False
        """Whether an evaluation fetched its second batch before it used the first."""
        self.yields = False
        """Whether the pass's batches go through a generator."""
        self.fetches = self.steps = 0
        self.reached = 0
        """The end of the last phase that is known to be part of the pass, monotonic ns."""
        self.held: list[Phase] = []
        """Phases of a possible evaluation, held until it is decided whether it is one."""
        self.version: int | None = None
        """The version of a trained parameter when it was last read."""
        self.stepped = 0
        """Number of the thread's optimizer steps before the pass."""
        self.is_crossing = False
        """Whether the last step continues in the next pass."""
        self.is_simple = self.is_only_batch = False
        """`is_simple`: only the pass's own iterator, which never restarts, drives the steps.
        `is_only_batch`: the first batch is known to be the loader's only batch."""
        self.restarts = may_restart(iterator)
        """Whether the pass's iterator may restart."""
        self.is_manual = False
        """Whether the program turned out to open the steps itself."""
        self.was_forward = self.was_trainable = self.was_backward = False
        """Whether a model was called in the pass, whether a model was called in training mode with
        gradients on, and whether a backward ran before the kind of the pass was decided."""
        self.removes_gradients = False
        """Whether the gradients of the last two batches were not added, without an optimizer."""
        self.undecided_from: int | None = None
        """Number of the step's phases before a batch that may begin another step; None if there
        is no such batch."""
        self.turns: list[Any] = []
        """Weak references to other iterators that train in turns with the pass's own."""

    def is_same_loader(self, iterator: Any) -> bool:
        """Return whether another iterator reads the same loader, or a loader with the same data."""
        own_iterator = self.iterator()
        return own_iterator is not None and data_of(own_iterator) is data_of(iterator)

    def is_around(self, iterator: Any) -> bool:
        """Return whether this pass is open and `iterator` is read alongside or inside it."""
        if self.iterator() is None or is_abandoned_iterator(self):
            return False
        if self.knows(iterator) or (self.other is not None and self.other.iterator() is iterator):
            return True
        return not (self.is_same_loader(iterator) and (self.fetches > 1 or self.was_forward))

    def knows(self, iterator: Any) -> bool:
        """Return whether another iterator is known to be fetched from inside the pass."""
        return any(each() is iterator for each in self.inner)

    def was_driven_by(self, iterator: Any) -> bool:
        """Return whether another iterator's fetches began steps."""
        return any(each() is iterator for each in self.drivers)

    def remember(self, reference: Any) -> None:
        """Note another iterator that is fetched from inside the pass."""
        if reference() is not None and not self.knows(reference()):
            self.inner = [*(each for each in self.inner if each() is not None), reference]

    def adopt(self, iterator: Any, iterator_gone: Any) -> None:
        """Make another iterator the pass's own iterator."""
        self.iterator = self.driver = weakref.ref(iterator, iterator_gone)
        self.restarts = may_restart(iterator)
        self.is_simple = not self.restarts
        self.fetches = max(self.fetches, 2)
        self.other = None

    @property
    def is_single(self) -> bool:
        """Whether the pass has one batch, which was not trained on, and its iterator is alive."""
        return self.fetches == 1 and not self.is_decided and self.iterator() is not None

    @property
    def is_awaiting(self) -> bool:
        """Whether the last batch of an evaluation has yet to be used, because it fetches ahead."""
        return self.is_ahead and self.was_forward and not self.was_backward

    def is_within(self, training: Pass) -> bool:
        """Return whether this evaluation is a child of another pass's epoch."""
        return self.scope is not None and self.scope._above is training.scope

    def open(self, name: str, index: int, parent_scope: Any) -> None:
        """Open the scope of the pass, and make it current."""
        scope = LoaderPassSpan.__new__(LoaderPassSpan)
        scope._ends = None
        begin(scope, name, index, None, parent_scope, self.outer_context, now())
        self.inner_context = make_current(scope, self.outer_context)
        self.scope = scope

    def keep(self, phase: Phase) -> None:
        """Add an ended phase; hold it until it is decided that the pass is an evaluation."""
        self.reached = max(self.reached, phase._until)
        if self.is_decided:
            self.settle(phase)
        else:
            self.held.append(phase)

    def decide(self) -> None:
        """Decide that the pass is an evaluation, and finish its held phases."""
        self.is_decided, self.unused = True, None
        held, self.held = self.held, []
        for phase in held:
            self.settle(phase)

    def close(
        self, at: int, ended: Callable[[LoaderPassSpan], None], left: Place | None = None
    ) -> None:
        """Close the pass's scope, not before `at` (monotonic ns); call `ended` if it is an epoch.

        `left` is the position of a loop that an exception may have left; if it is given, the scope
        waits (`tracing.unwinding`).
        """
        scope = self.scope
        if scope is not None:
            until = scope._until = max(at, self.reached, scope.last_end, scope._start)
            if left is not None:
                keep(scope, left, until)
            else:
                scope.finish()
            if self.is_training:
                ended(scope)
        self.leave()

    def undo(self) -> None:
        """Discard the pass, and move its held phases to its parent."""
        scope = self.scope
        for phase in self.held:
            self.settle(phase)
        if scope is not None:
            scope.drop()
            scope._until = scope._start
            scope.finish()
        self.leave()

    def leave(self, step: Step | None = None) -> None:
        """Restore the context around the pass, unless a scope of the program is current."""
        context = _get()
        current: Any = context.get(SCOPE_KEY)
        if step is not None and (current is step or current is self.scope):
            _set(carry_over(context, self.outer_context))
        if isinstance(current, (LoaderPassSpan, Step)) and (current._until or not current._id):
            _set(carry_over(context, self.outer_context))


class OtherFetches:
    """Fetches of another iterator within a step. Only later fetches show their purpose."""

    __slots__ = ("at", "had_stepped", "is_between", "iterator", "optimizer_count", "optimizers",
                 "stepped", "was_backward", "was_forward", "was_trainable")  # fmt: skip

    def __init__(self, iterator: Any, stepped: int) -> None:
        self.iterator = weakref.ref(iterator)
        self.stepped = stepped
        """Number of the thread's optimizer steps before the first of these fetches."""
        self.at: int | None = None
        """Number of the step's earlier phases; None if the step cannot be divided there."""
        self.had_stepped = False
        """Whether an optimizer had already stepped in the step."""
        self.optimizers: set[Any] = set()
        """Ids of optimizers that had already stepped in the step: the last one, if not all."""
        self.optimizer_count = 0
        """Number of the step's optimizer steps that were noted before the fetches."""
        self.is_between = False
        """Whether no step was open at the first of these fetches."""
        self.was_forward = self.was_trainable = self.was_backward = False
        """Whether, since the first of these fetches, a model was called, a model was called in
        training mode with gradients on, and a backward pass ran."""

    @property
    def is_evaluated(self) -> bool:
        """Whether the iterator's batch was evaluated."""
        return self.was_forward and not self.was_trainable and not self.was_backward


class FirstBatch:
    """The first batch of a pass, if another iterator that drives steps follows it.

    The batch belongs to an outer loop, or the program inspected it before the loop and its
    iterator is still alive.
    """

    __slots__ = ("count", "iteration", "over")

    def __init__(self, iteration: Iteration, count: int) -> None:
        self.iteration = iteration
        """The first step of the pass. It has ended, but is not sealed."""
        self.count = count
        """Number of the step's phases before the other iterator's first fetch."""
        self.over = 0
        """The time at which the other iterator was exhausted, monotonic ns; 0 if it was not."""


def reading_frame() -> Any:
    """Return the frame that fetches a batch if it is a generator or `__next__`; None for a loop."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_SKIPPED):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return frame if code.co_flags & _GENERATOR or code.co_name == "__next__" else None


def data_of(iterator: Any) -> Any:
    """Return the data that an iterator reads."""
    return getattr(iterator, "_dataset", iterator)


def reference_to(thing: Any) -> Any:
    """Return a weak reference; if the object does not allow one, a function that returns None."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return _nothing


def _nothing() -> None:
    pass


def may_restart(iterator: Any) -> bool:
    """Return whether an iterator may restart: its loader keeps it."""
    keeps = getattr(iterator, "_persistent_workers", False)
    return bool(keeps) or type(iterator).__module__ == NODES


def begins_again(loader_pass: Pass, iterator: Any) -> bool:
    """Return whether a known iterator restarts, as iterators with persistent workers do."""
    is_known = loader_pass.restarts and loader_pass.fetches > 0 and not loader_pass.is_crossing
    return is_known and is_at_start(iterator)


def is_at_start(iterator: Any) -> bool:
    """Return whether an iterator has yielded nothing yet."""
    return bool(getattr(iterator, "_num_yielded", 1) == 0)


def is_abandoned_iterator(loader_pass: Pass) -> bool:
    """Return whether only the loader references the pass's iterator, so that the loop was left."""
    iterator = loader_pass.iterator()
    if not (
        getattr(iterator, "_persistent_workers", False)
        or type(iterator).__module__.startswith("torchdata.")
    ):
        return False
    return sys.getrefcount(iterator) <= _KEPT


def has_one_batch(iterator: Any) -> bool:
    """Return whether a loader's iterator has a single batch.

    The result is False if only code of the program could determine this.
    """
    try:
        sampler = iterator._index_sampler
        inner = getattr(sampler, "sampler", sampler)
        is_known = {type(sampler).__module__, type(inner).__module__} == {_SAMPLERS}
        return is_known and len(sampler) == 1
    except Exception:  # an iterator of another library, or a dataset without a length
        return False
