"""Find out which training an optimizer belongs to: a new one, or that of its parameters.

docs/torch.md, "Trainings", defines the rule. An optimizer is examined at its first step, and at its
first step after its thread has changed to another training.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...session.errors import record_error
from ...tracing.buffers import local
from ...tracing.scope import MAX_DEPTH
from ...tracing.trainings import Training, trainings
from .kinds import EPOCHS

if TYPE_CHECKING:
    from ...tracing.phase import Phase
    from .torch_state import TorchState
    from .tracker import Tracker


_ROOM = 1_024


class OptimizerTrainings:
    """The trainings of the optimizers that have stepped, by their parameters and models."""

    def __init__(self, torch_state: TorchState) -> None:
        self._torch_state = torch_state
        self.is_on = True
        """Whether new trainings are looked for."""
        self._all: list[Training] | None = None
        self._parameters: dict[int, tuple[Any, Training]] = {}
        """A weak reference to each parameter, and its training, by the parameter's id."""
        self._room = _ROOM
        """The number of entries at which those of parameters that are gone are released."""
        self._models: list[tuple[Any, Training]] = []
        """Weak references to models that contain such parameters, and their trainings."""
        self._examined: dict[int, set[int]] = {}
        """The ids of the optimizers that are not examined again at their next step, by thread."""
        self._outside: set[int] = set()
        """The ids of optimizers that have stepped outside of an epoch only."""

    def stepped(self, tracker: Tracker, optimizer: Any, phase: Phase) -> None:
        """Assign an optimizer, whose step `phase` is open, to a training. Raises nothing."""
        if self.is_on:
            try:
                self._examine(tracker, optimizer, phase)
            except Exception as error:
                record_error("torch", error)

    def epoch_begins(self) -> None:
        """Examine the optimizers that have stepped outside of an epoch only once more."""
        if self._outside:
            outside, self._outside = self._outside, set()
            self._forget(outside)

    def forget(self) -> None:
        """Examine every optimizer once more."""
        examined, self._examined = self._examined, {}
        for each in examined.values():
            self._forget(each)

    def _forget(self, optimizers: Iterable[int]) -> None:
        for each in optimizers:
            self._torch_state.optimizers.pop(each, None)

    def _examine(self, tracker: Tracker, optimizer: Any, phase: Phase) -> None:
        if self._all is not trainings.all:  # the process has opened another session
            self._all, self._parameters, self._models = trainings.all, {}, []
        epoch = _epoch_around(phase)
        thread = local.b.ident if epoch is None else epoch._thread
        before = trainings.at(thread, phase._start)
        if epoch is None and not before.is_explicit:
            self._outside.add(id(optimizer))
        else:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            training = self._training_of(tracker, parameters, before, epoch, thread)
            self._assign(parameters, training)
            if training is not before:
                self._forget(self._examined.pop(thread, set()) - {id(optimizer)})
        self._examined.setdefault(thread, set()).add(id(optimizer))

    def _training_of(
        self, tracker: Tracker, parameters: list[Any], before: Training, epoch: Any, thread: int
    ) -> Training:
        """Return the training of an optimizer, which the thread's steps belong to from now on.

        `before` is the thread's training so far.
        """
        if before.is_explicit:
            return before
        known = self._known(parameters, before)
        if known is before:
            return before
        last = tracker.spare
        is_first = last is None or last.phase._start < epoch._start  # no other one has stepped
        if known is not None:
            if epoch._id and before.begun_in == epoch._id:
                before.instead = known  # an earlier optimizer steps as well
            elif is_first:
                trainings.return_to(known, epoch, thread)
            else:
                return before
            return known
        if not before.has_optimizer or not is_first or self._is_beside(tracker, thread):
            return before
        return trainings.begin_in(epoch, thread)

    def _known(self, parameters: list[Any], before: Training) -> Training | None:
        """Return the training of parameters, or of their model; None for a new optimizer.

        If there are several, the result is `before`, or else the last one.
        """
        found = set()
        for each in parameters:
            entry = self._parameters.get(id(each))
            if entry is not None and entry[0]() is each:
                found.add(_final(entry[1]))
        if not found and before.has_optimizer:
            ids = set(map(id, parameters))
            for reference, training in self._models:
                model = reference()
                if model is not None and _contains(model, ids):
                    found.add(_final(training))
        found = {training for training in found if not training.is_over}
        if before in found or not found:
            return before if found else None
        return max(found, key=lambda training: training.number)

    def _assign(self, parameters: list[Any], training: Training) -> None:
        """Remember the training of parameters that have none, and their models."""
        training.has_optimizer = True
        known = self._parameters
        new = set()
        for each in parameters:
            entry = known.get(id(each))
            if entry is None or entry[0]() is not each or entry[1].is_over:
                known[id(each)] = weakref.ref(each), training
                new.add(id(each))
        if not new:
            return
        models = {id(reference()) for reference, each in self._models if each is training}
        for model in self._torch_state.trained:
            if id(model) not in models and _contains(model, new):
                self._models.append((weakref.ref(model), training))
        if len(known) > self._room:
            self._release()

    def _release(self) -> None:
        """Release the entries of parameters and models that are gone."""
        entries = self._parameters.items()
        self._parameters = {key: entry for key, entry in entries if entry[0]() is not None}
        self._models = [entry for entry in self._models if entry[0]() is not None]
        self._room = max(_ROOM, 2 * len(self._parameters))

    def _is_beside(self, tracker: Tracker, thread: int) -> bool:
        """Return whether another task of the thread is in a training pass, so that both train."""
        return any(
            each is not tracker
            and each.passes.training is not None
            and each.buffers.ident == thread
            for each in tuple(self._torch_state.trackers)
        )


def _contains(model: Any, parameters: set[int]) -> bool:
    """Return whether a model has one of the parameters with these ids."""
    try:
        return any(id(each) in parameters for each in model.parameters())
    except Exception:  # code of the program, such as a method of that name
        return False


def _final(training: Training) -> Training:
    """Return the training that counts instead, if there is one."""
    while training.instead is not None:
        training = training.instead
    return training


def _epoch_around(scope: Any) -> Any:
    """Return the innermost epoch around a scope; None if there is none."""
    for _ in range(MAX_DEPTH):
        scope = scope._above
        if scope is None or not scope._depth:
            return None
        if type(scope._name) is str and scope._name in EPOCHS:
            return scope
    return None
