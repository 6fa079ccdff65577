"""The trainings of a session: k-fold cross-validation, a sweep, a teacher and its student.

They are numbered from 0. A step belongs to the training that had begun last in its thread when the
step began. The number is computed when the record of a step is created, so a step itself costs
nothing. The program begins trainings with `ci.training`; instrumentations find the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ...semconv import TRAINING, TRAINING_NAME
from ..flush.json_attributes import text_of
from ..session.errors import record_error
from .buffers import MarkEntry, hooks, local
from .clock import now
from .mark import POINT
from .phase import STEPS, Step
from .scope import NO_SESSION
from .state import state

NUMBERED: Final = frozenset(("epoch", *STEPS))
"""The names of scopes whose records have the attribute."""


class Training:
    """One training of the session."""

    __slots__ = ("begun", "begun_in", "has_optimizer", "has_step", "instead", "is_block",
                 "is_explicit", "is_marked", "is_over", "number", "outer")  # fmt: skip

    def __init__(self, number: int, begun: int) -> None:
        self.number = number
        self.begun = begun
        """The time at which it began, monotonic ns."""
        self.is_explicit = False
        """Whether the program began it: then no instrumentation begins another one."""
        self.begun_in = 0
        """The id of the epoch whose first step began it; 0 if no instrumentation found it."""
        self.has_optimizer = self.has_step = self.is_block = self.is_over = False
        """`has_step`: whether one of its steps has a record; for training 0, whether any step has.
        `is_block`: whether it is a `with` block. `is_over`: whether the program ended it."""
        self.outer: Training | None = None
        """The training whose block is around this training's block."""
        self.is_marked = not number
        """Whether there is a mark of its beginning, or none is needed."""
        self.instead: Training | None = None
        """The training that its steps belong to, because it turned out not to be another one."""

    @property
    def final(self) -> Training:
        """The training that its steps belong to: itself, unless `instead` is set."""
        training = self
        while training.instead is not None:
            training = training.instead
        return training


class Beginning(NamedTuple):
    """The time (monotonic ns) from which the steps of a thread belong to a training."""

    at: int
    training: Training | None
    """None at the start of a thread with the id of an ended one: it is in no training yet."""
    is_caller: bool = False
    """Whether the thread has called `ci.training` by then."""


class Trainings:
    """The trainings of the session of this process."""

    def __init__(self) -> None:
        self.forget_optimizers: Callable[[], None] = nothing
        """Called when the program begins or ends a training. An instrumentation then examines
        every optimizer once more at its next step."""
        self.restart(tuple)

    def restart(self, waiting_steps: Callable[[], Iterable[Any]]) -> None:
        """Begin a session.

        `waiting_steps` returns the steps that have no record yet; any thread may call it.
        """
        self._lock = threading.RLock()  # a signal handler may call `ci.training` during a call
        self._waiting_steps = waiting_steps
        self.first = Training(0, 0)
        self.all = [self.first]
        """All trainings, by number."""
        self._begun: dict[int, list[Beginning]] = {}
        """The beginnings in each thread, by its id."""
        self._calls: list[Beginning] = []
        """The beginnings by calls of the program, in all threads."""
        self.is_used = False
        """Whether there are beginnings; otherwise every step belongs to training 0."""
        self.forget_optimizers()

    # --- records --------------------------------------------------------------------------------

    def attribute_of(self, scope: Any) -> dict[str, int]:
        """Return the attribute of a step or an epoch; empty for training 0."""
        number = self.at(scope._thread, scope._start).number
        return {TRAINING: number} if number else {}

    def recorded(self, scope: Any) -> dict[str, int]:
        """Return the attribute of a scope whose record is created now.

        The number of a step in a record is not used again.
        """
        with self._lock:
            training = self.at(scope._thread, scope._start)
            if scope._name in STEPS:
                training.has_step = True
            return {TRAINING: training.number} if training.number else {}

    def marks_of(self, ended: Iterable[Any], session: Any) -> list[MarkEntry]:
        """Return the marks of trainings whose first steps are among the scopes `ended`.

        The mark of a training that the program began is made at the call.
        """
        marks: list[MarkEntry] = []
        if self.is_used and not all(each.is_marked or each.instead for each in tuple(self.all)):
            for scope in ended:
                if type(scope._name) is str and scope._name in STEPS:
                    with self._lock:
                        training = self.at(scope._thread, scope._start)
                        if not training.is_marked:
                            training.is_marked = True
                            marks.append(_mark(session, training, training.begun, {}))
        return marks

    def at(self, thread: int, time: int) -> Training:
        """Return the training that a step which begins at `time` belongs to.

        Until its own first call of `ci.training`, the calls of other threads count in a thread.
        """
        begun = _last(self._begun.get(thread, ()), time)
        training = None if begun is None else begun.training
        if begun is None or not begun.is_caller:
            call = _last(self._calls, time)
            if call is not None and (begun is None or training is None or begun.at <= call.at):
                training = call.training
        return (training or self.first).final

    # --- beginnings -----------------------------------------------------------------------------

    def thread_begins(self, thread: int) -> None:
        """Let a new thread be in no training of an ended thread that had the same id."""
        if thread in self._begun:
            with self._lock:
                self._begin(thread, None, now())
            self.forget_optimizers()

    def call(self, name: Any) -> Training:
        """Begin a training for the program."""
        with self._lock:
            at, thread = now(), local.b.ident
            training = before = self.at(thread, at)
            if training.is_explicit or self._has_step(training):
                training = self._new(at)
                training.outer = before if before.is_block else before.outer
            training.is_explicit, training.begun = True, at
            self._begin(thread, training, at, is_call=True)
            if training.number or name is not None:
                training.is_marked = True
                attrs = {} if name is None else {TRAINING_NAME: text_of(name)}
                local.b.marks.append(_mark(state.session, training, at, attrs))
        self.forget_optimizers()
        return training

    def end(self, training: Training) -> None:
        """End a training of the program.

        The next step belongs to the training of the block around it, or to a new training.
        """
        with self._lock:
            at, thread = now(), local.b.ident
            training.is_over = True
            if self.at(thread, at) is training:
                outer = training.outer
                while outer is not None and outer.is_over:
                    outer = outer.outer
                self._begin(thread, outer or self._new(at), at, is_call=True)
        self.forget_optimizers()

    def begin_in(self, epoch: Any, thread: int) -> Training:
        """Begin a training at the start of an epoch, for an instrumentation."""
        with self._lock:
            training = self._new(epoch._start)
            training.begun_in = epoch._id
            self._begin(thread, training, epoch._start)
        return training

    def return_to(self, training: Training, epoch: Any, thread: int) -> None:
        """Let the steps of an epoch belong to an earlier training."""
        with self._lock:
            last = self.at(thread, now())
            if not (last.is_explicit or last.has_optimizer) and last is not self.first:
                last.instead = training  # no step followed the end of the program's training
            self._begin(thread, training, epoch._start)

    def _new(self, at: int) -> Training:
        """Return a training with the next number. A number without steps is used again."""
        last = self.all[-1]
        if last.instead is not None and not last.has_step and not last.is_marked:
            self.all.pop()
        training = Training(len(self.all), at)
        self.all.append(training)
        return training

    def _begin(
        self, thread: int, training: Training | None, at: int, *, is_call: bool = False
    ) -> None:
        beginnings = self._begun.setdefault(thread, [])
        is_caller = is_call
        if beginnings:
            at = max(at, beginnings[-1].at)
            is_caller |= beginnings[-1].is_caller and training is not None
        beginning = Beginning(at, training, is_caller)
        beginnings.append(beginning)
        if is_call:
            self._calls.append(beginning)
        self.is_used = True

    def _has_step(self, training: Training) -> bool:
        if training.has_step:
            return True
        # The step of an instrumentation may turn out not to be one until it has ended.
        waiting = [each for each in self._waiting_steps() if type(each) is not Step or each._until]
        # A step whose record was created in the meantime has set `has_step`.
        is_waiting = any(self.at(each._thread, each._start) is training for each in waiting)
        return is_waiting or training.has_step


def _last(beginnings: Sequence[Beginning], time: int) -> Beginning | None:
    """Return the last beginning that is not later than `time`."""
    for beginning in reversed(beginnings):
        if beginning.at <= time:
            return beginning
    return None


def _mark(session: Any, training: Training, at: int, attrs: dict[str, Any]) -> MarkEntry:
    return session, TRAINING, training.number, at, POINT, attrs


def nothing() -> None:
    """Do nothing: no instrumentation looks for trainings."""


trainings = Trainings()
"""The trainings of this process."""
hooks.thread_begins = trainings.thread_begins


class TrainingBlock:
    """The result of `training`, a context manager at whose exit the training ends."""

    __slots__ = ("_training",)

    def __init__(self, training: Training | None) -> None:
        """`training` is None if nothing is recorded."""
        self._training = training

    def __enter__(self) -> Self:
        """Return the object itself: the training has begun."""
        if self._training is not None:
            self._training.is_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the training. An exception propagates."""
        try:
            if self._training is not None and state.recording:
                trainings.end(self._training)
        except Exception as problem:
            record_error("training", problem)


def training(name: str | None = None) -> TrainingBlock:
    """Begin a training: the next step belongs to it. In `with`, it ends at the end of the block.

    Trainings of a session are numbered from 0. The first call begins training 0 if no step
    precedes it, every other call another training. Steps and epochs of other trainings than the
    first have the number as attribute `training`. The session gets a mark `training`: its value is
    the number, and its attribute `name` is `name`, if that is given. After the end of a block, the
    next step belongs to the training of the block around it, or else to a further training. Raises
    nothing.
    """
    try:
        if state.recording and state.session is NO_SESSION:
            hooks.first()  # the first record of a process may open its session
        if state.recording and state.session is not NO_SESSION:
            return TrainingBlock(trainings.call(name))
    except Exception as error:
        record_error("training", error)
    return TrainingBlock(None)
