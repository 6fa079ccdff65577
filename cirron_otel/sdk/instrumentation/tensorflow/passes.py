"""Infer epochs, evaluations and steps of an eager loop over a dataset. See docs/keras.md.

A pass over a dataset begins with an iterator's first fetch. The first iteration in which a model
is used decides whether the pass is an epoch or an evaluation.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ...session.errors import record_error
from ..loop_scopes import EPOCH, EVALUATION
from ..training_loop import current_loop, is_step_open
from .dataset_loop import DatasetLoop

NAME = "tensorflow"


class _Pass:
    """One pass of an iterator over a dataset."""

    def __init__(self, iterator: Any, scope: Any, ended: Any) -> None:
        self.iterator = weakref.ref(iterator, ended)
        self.scope = scope
        """The scope of the pass, which is an epoch until it is decided."""
        self.kind: str | None = None
        self.is_used = self.is_trained = self.is_stepped = False
        """Whether a model, a gradient or an optimizer was used in the open iteration."""
        self.others: weakref.WeakSet[Any] = weakref.WeakSet()
        """The iterators that are read inside the steps of this pass."""


class DatasetPasses:
    """The passes that one thread infers, the outermost first."""

    def __init__(self) -> None:
        self._open: list[_Pass] = []
        self._loop: DatasetLoop | None = None
        self._thread = threading.get_ident()
        self._accumulates = False
        """Whether an optimizer has stepped, so that a batch without a step accumulates."""

    def fetching(self, iterator: Any) -> None:
        """Arrange the scopes for a fetch that begins now. Raises nothing."""
        try:
            if not self._is_ours():
                return
            at = next((n for n, p in enumerate(self._open) if p.iterator() is iterator), None)
            if at is not None:
                self._end_after(at)
                self._end_iteration(self._open[at])
            elif self._open and (not self._open[-1].is_used or iterator in self._open[-1].others):
                self._open[-1].others.add(iterator)
            else:
                self._begin(iterator)
        except Exception as error:
            record_error(NAME, error)

    def exhausted(self, iterator: Any) -> None:
        """End the pass of an iterator that has no further batch. Raises nothing."""
        self._end(lambda each: each.iterator() is iterator)

    def stepping(self) -> None:
        """Close the open micro step, because an optimizer steps now."""
        if self._loop is not None:
            self._loop.end_micro_step()

    def used(self) -> None:
        """Record that a model or a compiled function was called."""
        if self._open:
            self._open[-1].is_used = True

    def trained(self, *, is_step: bool = False) -> None:
        """Record a gradient or, with `is_step`, an optimizer step."""
        self._accumulates = self._accumulates or is_step
        if self._open:
            innermost = self._open[-1]
            innermost.is_used = innermost.is_trained = True
            innermost.is_stepped = innermost.is_stepped or is_step

    def _is_ours(self) -> bool:
        """Return whether this thread's passes are inferred."""
        if self._loop is not None and self._loop is not current_loop():
            if current_loop() is not None:
                return False  # a loop of Keras runs inside the pass
            self._loop, self._open = None, []  # the hooks were removed
        return self._loop is not None or (current_loop() is None and not is_step_open())

    def _begin(self, iterator: Any) -> None:
        if self._open:
            self._end_iteration(self._open[-1], is_last=True)
        loop = self._loop = self._loop or DatasetLoop.start(NAME)
        if loop is None:
            return
        scope = loop.begin_pass()
        self._open.append(_Pass(iterator, scope, self._collected))
        self._next_step(loop)

    def _next_step(self, loop: DatasetLoop) -> None:
        loop.expect_step()
        loop.fetching()

    def _end_iteration(self, each: _Pass, *, is_last: bool = False) -> None:
        loop = self._loop
        if loop is None:
            return
        if each.kind is None and each.is_used:
            self._decide(loop, each)
        if each.kind == EVALUATION:
            return
        if not each.is_used:
            if not is_last and loop.step is None:
                self._next_step(loop)  # a pass inside this one has ended the step
            return
        if each.is_trained and not each.is_stepped and self._accumulates:
            if not is_last:
                loop.next_micro_step()
            each.is_trained = each.is_used = False
            return
        loop.confirm_step()
        each.is_used = each.is_trained = each.is_stepped = False
        if not is_last:
            self._next_step(loop)

    def _decide(self, loop: DatasetLoop, each: _Pass) -> None:
        each.kind = EPOCH if each.is_trained else EVALUATION
        loop.name_pass(each.scope, each.kind)
        if each.kind == EVALUATION:
            loop.drop_step()

    def _end(self, is_over: Any) -> None:
        try:
            for at, each in enumerate(self._open):
                if is_over(each):
                    self._end_after(at - 1)
                    return
        except Exception as error:
            record_error(NAME, error)

    def _end_after(self, at: int) -> None:
        """End the passes inside the pass with this index."""
        loop = self._loop
        while len(self._open) > at + 1:
            each = self._open.pop()
            if loop is None:
                continue
            accumulates = loop.step is not None and loop.step.micros > 0
            self._end_iteration(each, is_last=True)
            if accumulates:
                loop.confirm_step()
            loop.end_pass(each.scope, is_dropped=each.kind is None)
        if not self._open and loop is not None:
            self._loop = None
            loop.end()

    def _collected(self, reference: Any) -> None:
        """End the pass of an iterator that is gone: its loop was left."""
        if threading.get_ident() == self._thread:
            self._end(lambda each: each.iterator is reference)
