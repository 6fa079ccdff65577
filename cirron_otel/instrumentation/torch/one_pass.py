"""One pass over a loader: what is known of it, and its scope."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...sdk.clock import now
from ...sdk.phase import LoaderPassSpan, Phase, Step, begin, make_current
from ...sdk.scope import Scope
from ...sdk.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ...sdk.unwinding import Place, keep

if TYPE_CHECKING:
    from .iteration import Iteration
    from .pending import Pending

_OURS = (SPAN_KEY, SCOPE_KEY)

_GENERATOR = 0x20
_SKIPPED = ("cirron_otel.", "torch.utils.data", "torchdata.")
_SAMPLERS = "torch.utils.data.sampler"
_KEPT = 3
"""References to an iterator that its loader keeps: the loader's, and two for looking."""
_get = CONTEXT.get
_set = CONTEXT.set


class Pass:
    """One pass over a loader, from its iterator's first fetch."""

    __slots__ = ("base", "by_hand", "driver", "drivers", "fetches", "held", "inner", "is_crossing",
                 "is_decided", "is_firm", "is_only_batch", "is_simple", "is_training", "iterator",
                 "known_data", "lone", "met",
                 "over", "pending", "reached",
                 "restarted", "restarts", "scope", "settle", "stepped", "steps", "version",
                 "was_forward", "was_trainable", "within", "yields")  # fmt: skip

    def __init__(
        self,
        iterator: Any,
        gone: Any,
        base: Any,
        settle: Callable[[Phase], None],
        *,
        is_training: bool,
    ) -> None:
        """`gone` is called with `iterator`'s weak reference; `settle` finishes a phase."""
        self.settle = settle
        self.iterator = weakref.ref(iterator, gone)
        self.base = self.within = base
        """The context around it, and the one inside."""
        self.is_training = is_training
        self.is_firm = False
        """Whether it is an evaluation whatever happens: gradients are off where it fetches."""
        self.is_decided = False
        self.scope: LoaderPassSpan | None = None
        """Its epoch or evaluation; None where the epoch is somebody else's."""
        self.driver: Any = self.iterator
        """Whose fetches begin steps: its own iterator, or one that turns inside."""
        self.met: Meeting | None = None
        """Another iterator that was fetched from since the driver was."""
        self.lone: Lone | None = None
        """Its first batch, while it is not known whether that is one of the epoch."""
        self.pending: Pending | None = None
        """Batches that were not used yet, where they are followed."""
        self.over = 0
        """When its iterator was exhausted, where batches were still to be used."""
        self.inner: list[Any] = []
        """Weak references to other iterators that are fetched from inside."""
        self.drivers: list[Any] = []
        """Weak references to those of them whose fetches began steps."""
        self.known_data: list[Any] = []
        """Weak references to data that is trained on within this pass."""
        self.restarted: Any = None
        """A weak reference to the data of a loader inside that is exhausted."""
        self.yields = False
        """Whether its batches go through a generator."""
        self.fetches = self.steps = 0
        self.reached = 0
        """The end of what is known to be in it."""
        self.held: list[Phase] = []
        """What an evaluation holds until it is decided."""
        self.version: int | None = None
        """Of a trained parameter, when it was last looked at."""
        self.stepped = 0
        """Optimizer steps of the thread before it."""
        self.is_crossing = False
        """Whether its last step goes on in the next pass."""
        self.is_simple = self.is_only_batch = False
        """Whether only its own iterator, which never begins anew, makes its steps; and whether its
        first batch is all that its loader has, as far as that is known."""
        self.restarts = bool(getattr(iterator, "_persistent_workers", False))
        """Whether its iterator may begin anew."""
        self.by_hand = False
        """Whether its steps turned out to be made by hand."""
        self.was_forward = self.was_trainable = False
        """Whether a model was called, and one in training with gradients on."""

    def is_same_loader(self, iterator: Any) -> bool:
        """Whether another iterator comes from the same loader, or one of the same data."""
        own = self.iterator()
        return own is not None and data_of(own) is data_of(iterator)

    def is_around(self, iterator: Any) -> bool:
        """Whether `iterator` is one beside, or inside, this pass, which is open."""
        if self.iterator() is None or is_idle(self):
            return False
        if self.knows(iterator) or (self.met is not None and self.met.iterator() is iterator):
            return True
        return not (self.is_same_loader(iterator) and (self.fetches > 1 or self.was_forward))

    def knows(self, iterator: Any) -> bool:
        """Whether another iterator is known to be fetched from inside."""
        return any(each() is iterator for each in self.inner)

    def was_driven_by(self, iterator: Any) -> bool:
        """Whether another iterator's fetches began steps."""
        return any(each() is iterator for each in self.drivers)

    def remember(self, reference: Any) -> None:
        """Another iterator is fetched from inside."""
        if reference() is not None and not self.knows(reference()):
            self.inner = [*(each for each in self.inner if each() is not None), reference]

    def adopt(self, iterator: Any, gone: Any) -> None:
        """Let another iterator be the pass's own."""
        self.iterator = self.driver = weakref.ref(iterator, gone)
        self.restarts = bool(getattr(iterator, "_persistent_workers", False))
        self.is_simple = not self.restarts
        self.fetches = max(self.fetches, 2)
        self.met = None

    @property
    def is_single(self) -> bool:
        """Whether it has one batch, which was not trained on, and its iterator lives on."""
        return self.fetches == 1 and not self.is_decided and self.iterator() is not None

    def lies_in(self, own: Pass) -> bool:
        """Whether this evaluation hangs on the epoch of another pass."""
        return self.scope is not None and self.scope._above is own.scope

    def open(self, name: str, index: int, above: Any) -> None:
        """Open its scope, and let that be current."""
        scope = LoaderPassSpan.__new__(LoaderPassSpan)
        scope._ends = None
        begin(scope, name, index, None, above, self.base, now())
        self.within = make_current(scope, self.base)
        self.scope = scope

    def keep(self, phase: Phase) -> None:
        """A phase of this evaluation is over: it waits until that is decided."""
        self.reached = max(self.reached, phase._until)
        if self.is_decided:
            self.settle(phase)
        else:
            self.held.append(phase)

    def decide(self) -> None:
        """It is an evaluation: what waits may be finished."""
        self.is_decided, self.pending = True, None
        held, self.held = self.held, []
        for phase in held:
            self.settle(phase)

    def close(
        self, at: int, ended: Callable[[LoaderPassSpan], None], left: Place | None = None
    ) -> None:
        """It is over, at `at` (monotonic ns) at the earliest; `ended` is told of an epoch.

        `left`: an exception may have left it there. Then it waits (`sdk.unwinding`).
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
        """It was no pass at all: what it held hangs on what is around it."""
        scope = self.scope
        for phase in self.held:
            self.settle(phase)
        if scope is not None:
            scope.drop()
            scope._until = scope._start
            scope.finish()
        self.leave()

    def leave(self, step: Step | None = None) -> None:
        """Let what is around it be current, unless somebody else's scope is."""
        context = _get()
        current: Any = context.get(SCOPE_KEY)
        if step is not None and (current is step or current is self.scope):
            _set(carried(context, self.base))
        if isinstance(current, (LoaderPassSpan, Step)) and (current._until or not current._id):
            _set(carried(context, self.base))


class Meeting:
    """Another iterator was fetched from in a step; the next fetches show why."""

    __slots__ = ("at", "had_stepped", "is_between", "iterator", "stepped", "was_backward",
                 "was_forward", "was_trainable")  # fmt: skip

    def __init__(self, iterator: Any, stepped: int) -> None:
        self.iterator = weakref.ref(iterator)
        self.stepped = stepped
        """Optimizer steps of the thread before it."""
        self.at: int | None = None
        """Phases of the step before it; None where the step cannot be divided there."""
        self.had_stepped = False
        """Whether an optimizer had stepped in the step before it."""
        self.is_between = False
        """Whether no step was open before it."""
        self.was_forward = self.was_trainable = self.was_backward = False
        """Whether since then a model was called, one with gradients on, and a backward ran."""

    @property
    def is_evaluated(self) -> bool:
        """Whether its batch was evaluated."""
        return self.was_forward and not self.was_trainable and not self.was_backward


class Lone:
    """The first batch of a pass, which another iterator follows that makes steps.

    It is the first of an outer loop, or it was looked at before the loop and its iterator lives on.
    """

    __slots__ = ("count", "iteration", "over")

    def __init__(self, iteration: Iteration, count: int) -> None:
        self.iteration = iteration
        """The first step; it has ended, and is not sealed."""
        self.count = count
        """Its phases that came before the other iterator's first fetch."""
        self.over = 0
        """When the other iterator was exhausted."""


def reader() -> Any:
    """The frame that fetches, if it is a generator's or an iterator's: no loop's own."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_SKIPPED):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return frame if code.co_flags & _GENERATOR or code.co_name == "__next__" else None


def data_of(iterator: Any) -> Any:
    """The data that an iterator goes over."""
    return getattr(iterator, "_dataset", iterator)


def reference_to(thing: Any) -> Any:
    """A weak reference; to nothing where there can be none."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return _nothing


def _nothing() -> None:
    pass


def again(some: Pass, iterator: Any) -> bool:
    """Whether an iterator that is known begins anew, as those with persistent workers do."""
    is_known = some.restarts and some.fetches > 0 and not some.is_crossing
    return is_known and is_anew(iterator)


def is_anew(iterator: Any) -> bool:
    """Whether an iterator is at its begin."""
    return bool(getattr(iterator, "_num_yielded", 1) == 0)


def is_idle(some: Pass) -> bool:
    """Whether nothing but its loader keeps an iterator: a loop over it was left."""
    iterator = some.iterator()
    if not (
        getattr(iterator, "_persistent_workers", False)
        or type(iterator).__module__.startswith("torchdata.")
    ):
        return False
    return sys.getrefcount(iterator) <= _KEPT


def carried(context: Any, target: Any) -> Any:
    """`target`, with what somebody else has put into `context` meanwhile: baggage, say."""
    others = {key: value for key, value in context.items() if key not in _OURS}
    if others == {key: value for key, value in target.items() if key not in _OURS}:
        return target
    return Context(others | {key: target[key] for key in _OURS if key in target})


def scope_of(context: Any) -> Any:
    """The scope that is open in a context."""
    return context.get(SCOPE_KEY) or state.session


def without_step(context: Any, step: Any, target: Any) -> Any:
    """`target`, with a span of another library that is current in `context` inside of `step`."""
    inside = carried(context, target)
    span = context.get(SPAN_KEY)
    if span is step or isinstance(span, Scope) or span is None:
        return inside
    return Context({**inside, SPAN_KEY: span})


def by_hand(scope: Any, names: tuple[str, ...]) -> bool:
    """Whether `scope`, or one around it, has one of the names and was opened by hand."""
    while scope._depth:
        if scope._name in names and not isinstance(scope, Phase):
            return True
        scope = scope._above
    return False


def has_one_batch(iterator: Any) -> bool:
    """Whether a loader's iterator has a single batch; False if only the user's code knows."""
    try:
        sampler = iterator._index_sampler
        within = getattr(sampler, "sampler", sampler)
        is_known = {type(sampler).__module__, type(within).__module__} == {_SAMPLERS}
        return is_known and len(sampler) == 1
    except Exception:  # another library's iterator, or a dataset without a length
        return False
