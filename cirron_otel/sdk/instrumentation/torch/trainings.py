"""Find out which training an optimizer belongs to: a new one, or that of its parameters.

docs/torch.md, "Trainings", defines the rule. An optimizer is examined at its first step, and at its
first step after its thread has changed to another training.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ...session.errors import record_error
from ...tracing.buffers import local
from ...tracing.phase import Phase
from ...tracing.scope import MAX_DEPTH
from ...tracing.trainings import Training, trainings
from .kinds import EPOCHS

_ROOM = 1_024


class OptimizerTrainings:
    """The trainings of the optimizers that have stepped, by their parameters and models."""

    def __init__(self, torch_state: Any) -> None:
        """`torch_state` is the state that the trackers share (`TorchState`)."""
        from torch.multiprocessing.reductions import StorageWeakRef  # noqa: PLC0415

        self._torch_state, self._weak_reference = torch_state, StorageWeakRef
        self.is_on = True
        """Whether new trainings are looked for."""
        self._all: list[Training] | None = None
        self._optimizers: dict[int, tuple[Any, Training]] = {}
        """A weak reference to each optimizer, and its training, by the optimizer's id."""
        self._storages: dict[int, tuple[Any, Training]] = {}
        """A weak reference to the memory of each parameter, and its training, by its address, which
        is not used again while there is a weak reference. There is none to the parameter itself:
        `torch.utils.swap_tensors` would raise an error."""
        self._room = _ROOM
        """The number of entries at which those of objects that are gone are released."""
        self._models: list[tuple[Any, Training]] = []
        """Weak references to models that contain such parameters, and their trainings."""
        self._examined: dict[int, set[int]] = {}
        """The ids of the optimizers that are not examined again at their next step, by thread."""
        self._outside: set[int] = set()
        """The ids of optimizers that have stepped outside of an epoch only."""

    def stepped(self, tracker: Any, optimizer: Any, phase: Phase) -> None:
        """Assign an optimizer, whose step `phase` is open, to a training. Raises nothing."""
        if self.is_on:
            try:
                self._examine(tracker, optimizer, phase)
            except Exception as error:
                record_error("torch", error)

    def epoch_begins(self) -> None:
        """Examine the optimizers once more that have stepped outside of an epoch only.

        In a thread that has examined none, examine all: they may have stepped in other threads.
        """
        if self._examined and local.b.ident not in self._examined:
            self.forget()
        if self._outside:
            outside, self._outside = self._outside, set()
            self._forget(outside)

    def forget(self) -> None:
        """Examine every optimizer once more."""
        examined, self._examined = self._examined, {}
        for each in list(examined.values()):  # other threads may still add optimizers
            self._forget(each)

    def _forget(self, optimizers: Iterable[int]) -> None:
        for each in list(optimizers):
            self._torch_state.optimizers.pop(each, None)

    def _examine(self, tracker: Any, optimizer: Any, phase: Phase) -> None:
        if self._all is not trainings.all:  # the process has opened another session
            self._all = trainings.all
            self._optimizers, self._storages, self._models = {}, {}, []
        epoch = _epoch_around(phase)
        thread = local.b.ident if epoch is None else epoch._thread
        before = trainings.at(thread, phase._start)
        if epoch is None and not before.is_explicit:
            self._outside.add(id(optimizer))
        else:
            training = self._training_of(tracker, optimizer, before, epoch, thread)
            self._assign(optimizer, training)
            if training is not before:
                self._forget(self._examined.pop(thread, set()) - {id(optimizer)})
        self._examined.setdefault(thread, set()).add(id(optimizer))

    def _training_of(
        self, tracker: Any, optimizer: Any, before: Training, epoch: Any, thread: int
    ) -> Training:
        """Return the training of an optimizer, which the thread's steps belong to from now on.

        `before` is the thread's training so far.
        """
        if before.is_explicit:
            return before
        known = self._known(optimizer, before)
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

    def _known(self, optimizer: Any, before: Training) -> Training | None:
        """Return the training of an optimizer, its parameters or their model; None if it is new.

        If there are several, the result is `before`, or else the last one.
        """
        entries = [self._entry_of(optimizer)]
        if entries[0] is None:
            entries = [self._storages.get(each._cdata) for each in self._memory_of(optimizer)]
        if not any(entries) and before.has_optimizer:
            ids = {id(each) for each in _parameters(optimizer)}
            entries = [each for each in self._models if _contains(each[0](), ids)]
        found = {each[1].final for each in entries if each is not None}
        found = {training for training in found if not training.is_over}
        if before in found or not found:
            return before if found else None
        return max(found, key=lambda training: training.number)

    def _assign(self, optimizer: Any, training: Training) -> None:
        """Remember the training of an optimizer, its models, and its parameters that have none."""
        training.has_optimizer = True
        entry = self._entry_of(optimizer)
        if entry is None or entry[1].is_over:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer), training
        memory = self._memory_of(optimizer)
        is_new = not memory
        for each in memory:
            entry = self._storages.get(each._cdata)
            if entry is None or entry[1].is_over:
                self._storages[each._cdata] = self._weak_reference(each), training
                is_new = True
        if is_new:
            ids = {id(each) for each in _parameters(optimizer)}
            models = {id(reference()) for reference, each in self._models if each is training}
            for model in self._torch_state.trained:
                if id(model) not in models and _contains(model, ids):
                    self._models.append((weakref.ref(model), training))
        if len(self._storages) + len(self._optimizers) > self._room:
            self._release()

    def _entry_of(self, optimizer: Any) -> tuple[Any, Training] | None:
        entry = self._optimizers.get(id(optimizer))
        return entry if entry is not None and entry[0]() is optimizer else None

    def _memory_of(self, optimizer: Any) -> list[Any]:
        """Return the storages of an optimizer's parameters; a sparse one has none."""
        storages = []
        with self._torch_state.unseen():
            for each in _parameters(optimizer):
                with suppress(Exception):
                    storages.append(each.untyped_storage())
        return storages

    def _release(self) -> None:
        """Release the entries of objects that are gone."""
        # Copied: other threads may add entries.
        storages, optimizers = list(self._storages.items()), list(self._optimizers.items())
        self._storages = {key: entry for key, entry in storages if not entry[0].expired()}
        self._optimizers = {key: entry for key, entry in optimizers if entry[0]() is not None}
        self._models = [entry for entry in self._models if entry[0]() is not None]
        self._room = max(_ROOM, 2 * (len(self._storages) + len(self._optimizers)))

    def _is_beside(self, tracker: Any, thread: int) -> bool:
        """Return whether another task of the thread is in a training pass, so that both train."""
        return any(
            each is not tracker
            and each.passes.training is not None
            and each.buffers is not None
            and each.buffers.ident == thread
            for each in tuple(self._torch_state.trackers)
        )


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _contains(model: Any, parameters: set[int]) -> bool:
    """Return whether a model, if it is not None, has one of the parameters with these ids."""
    try:
        return model is not None and any(id(each) in parameters for each in model.parameters())
    except Exception:  # code of the program, such as a method of that name
        return False


def _epoch_around(scope: Any) -> Any:
    """Return the innermost epoch around a scope; None outside of epochs."""
    for _ in range(MAX_DEPTH):
        scope = scope._above
        if scope is None or not scope._depth:
            return None
        if type(scope._name) is str and scope._name in EPOCHS:
            return scope
    return None
