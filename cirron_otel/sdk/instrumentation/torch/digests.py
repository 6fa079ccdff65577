"""Decide when the tensors of a step are digested, and which step a digest belongs to.

The hooks here surround those that record the phases, and are installed only if the option `digest`
is set. docs/digests.md, "Quantities", defines the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from ....core.records.digest_marks import BATCH, GRADS, LOSS, OPTIMIZER, RNG, WEIGHTS
from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.hidden_frames import strip
from ...tracing.phase import LOOP_KEY
from ...tracing.rare_work import add_rare
from ...tracing.state import CONTEXT, state
from ..patches import Patches
from .closures import REPLACEABLE, closure_of
from .digested_step import DigestedStep, enclosing_step, is_capturing
from .kinds import BACKWARD, LOAD
from .loaders import Ahead
from .torch_state import TorchState
from .trackers import Trackers
from .uncalled_models import UncalledModels


class StepDigests:
    """The hooks that digest the tensors of steps."""

    def __init__(self, trackers: Trackers, torch_state: TorchState) -> None:
        self._trackers, self._torch_state = trackers, torch_state
        self._open = DigestedStep()
        self._uncalled = UncalledModels()
        self._generators: Any = None
        self._begun = 0
        """Number of steps begun in this process."""
        self._handles: list[Any] = []

    def install(self, patches: Patches) -> None:
        """Install the hooks around those of the phases, which must be installed already.

        Raises AttributeError if torch has changed.
        """
        import torch  # noqa: PLC0415
        from torch.amp.grad_scaler import GradScaler  # noqa: PLC0415
        from torch.optim import optimizer  # noqa: PLC0415
        from torch.utils.data import dataloader  # noqa: PLC0415

        from ...snapshots.digest_tensors import Generators  # noqa: PLC0415 - needs torch

        self._generators = Generators()
        for owner in (dataloader._BaseDataLoaderIter, Ahead):
            patches.replace(owner, "__next__", self._fetching(owner.__next__))
        patches.replace(torch.autograd, "backward", self._backward(torch.autograd.backward))
        patches.replace(GradScaler, "step", self._scaled(GradScaler.step))
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._guarded(self._before_step)),
            optimizer.register_optimizer_step_post_hook(self._guarded(self._after_step)),
        ]

    def remove(self) -> None:
        """Remove the hooks that are no patches."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _guarded(self, hook: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        from torch.compiler import is_dynamo_compiling as is_compiling  # noqa: PLC0415

        def guarded(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if is_compiling() or not self._is_on():
                return None
            try:
                return hook(optimizer, args, kwargs)
            except Exception as error:
                record_error("digest", error)
                return None

        return guarded

    # --- the hooks ------------------------------------------------------------------------------

    def _fetching(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        trackers, is_grad_enabled = self._trackers, self._torch_state.is_grad_enabled

        @functools.wraps(original)
        def __next__(self_: Any) -> Any:  # noqa: N807
            try:
                tracker = trackers.t
                if (
                    not self._is_on()
                    or tracker.is_ahead
                    or tracker.inside & LOAD
                    or not is_grad_enabled()
                ):
                    return original(self_)
                rng = self._take_rng()
                batch = original(self_)
                try:
                    self._fetched(rng, batch)
                except Exception as error:
                    record_error("digest", error)
                return batch
            except BaseException as error:
                strip(error)
                raise

        return __next__

    def _fetched(self, rng: Any, batch: Any) -> None:
        from ...snapshots.digest_tensors import batch_tensors  # noqa: PLC0415 - needs torch

        opened, passes = self._open, self._trackers.t.passes
        scope = enclosing_step()
        if passes.evaluation is not None:
            return
        if scope is None and passes.training is None and LOOP_KEY not in CONTEXT.get():
            return  # a loader that is read outside of every step
        opened.has_fetched = True
        if scope is not None and scope is opened.scope:
            self._digest(scope, BATCH, lambda: batch_tensors(batch))
            return
        loop = CONTEXT.get().get(LOOP_KEY)
        is_same_item = scope is None and loop is not None and len(loop.scopes) > 1
        if not is_same_item and (scope is None or scope is not opened.expected):
            if opened.expected is not None and opened.expected._id:
                self._enter(opened.expected)
            opened.waiting.discard()
            opened.rng, opened.expected = None, scope
        # The program may open its own step for the batch, which then replaces the expected one.
        self._digest(None, BATCH, lambda: batch_tensors(batch), rng, batch)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch  # noqa: PLC0415

        is_compiling = torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            try:
                if not self._is_on() or self._is_nested():
                    return original(*args, **kwargs)
                try:
                    self._begin_backward(args[0] if args else kwargs.get("tensors"))
                except Exception as error:
                    record_error("digest", error)
                return original(*args, **kwargs)
            except BaseException as error:
                strip(error)
                raise

        return backward

    def _is_nested(self) -> bool:
        """Return whether a backward pass is part of another one, or is only traced."""
        torch_state = self._torch_state
        if self._trackers.t.inside & (BACKWARD | LOAD) or torch_state.graph_task() != -1:
            return True
        import torch  # noqa: PLC0415

        tracing = getattr(torch._guards, "TracingContext", None)
        return tracing is not None and tracing.try_get() is not None

    def _begin_backward(self, roots: Any) -> None:
        from ...snapshots.digest_tensors import roots_of  # noqa: PLC0415 - needs torch

        scope = enclosing_step()
        self._take_rng_late(scope)
        self._digest(scope, LOSS, lambda: roots_of(roots))

    def _take_rng_late(self, scope: Any) -> None:
        """Read the random number generators now, if no earlier event has shown the new step."""
        opened = self._open
        is_new = scope is None or scope is not opened.scope
        if is_new and opened.rng is None and not opened.waiting:
            opened.rng = self._take_rng()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Digest the gradients now, or return arguments with a closure that digests them."""
        stepping = self._trackers.t.stepping
        if stepping is not None and (stepping.optimizer != id(optimizer) or stepping.depth > 1):
            return None  # part of another optimizer's step
        scope = enclosing_step()
        self._take_rng_late(scope)
        if scope is not None:
            self._enter(scope)
        self._open.has_opaque_closure = False
        closure, put = closure_of(optimizer, args, kwargs)
        if closure is None:
            self._digest_gradients(scope, optimizer)
            return None
        if type(closure) not in REPLACEABLE:
            self._open.has_opaque_closure = True
            return None

        @functools.wraps(closure)
        def digested(*inner: Any, **named: Any) -> Any:
            try:
                result = closure(*inner, **named)
                if self._is_on():
                    try:
                        self._digest_gradients(scope, optimizer)
                    except Exception as error:
                        record_error("digest", error)
                return result
            except BaseException as error:
                strip(error)
                raise

        return put(digested)

    def _digest_gradients(self, scope: Any, optimizer: Any) -> None:
        self._digest(scope, GRADS, lambda: self._tensors_of(optimizer).gradients())

    def _after_step(self, optimizer: Any, _: Any, __: Any) -> None:
        if self._trackers.t.stepping is None:
            self._stepped(optimizer)

    def _stepped(self, optimizer: Any) -> None:
        """Digest the model and the optimizer after its step."""
        opened = self._open
        if opened.has_opaque_closure:
            opened.has_opaque_closure = False
            self._digest_gradients(opened.scope, optimizer)
        if self._is_due(opened.scope):
            tensors = functools.cache(lambda: self._tensors_of(optimizer))
            self._digest(opened.scope, WEIGHTS, lambda: tensors().weights())
            self._digest(opened.scope, OPTIMIZER, lambda: tensors().state())
        if not opened.has_fetched:
            opened.rng = self._take_rng()  # the next step may begin now
        opened.has_fetched = False

    def _scaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        trackers = self._trackers

        @functools.wraps(original)
        def step(self_: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                tracker = trackers.t
                before = tracker.stepped
                result = original(self_, optimizer, *args, **kwargs)
                try:
                    if self._is_on() and tracker.stepped == before and self_.is_enabled():
                        self._skipped(tracker, optimizer)
                except Exception as error:
                    record_error("digest", error)
                return result
            except BaseException as error:
                strip(error)
                raise

        return step

    def _skipped(self, tracker: Any, optimizer: Any) -> None:
        """Digest a step that GradScaler skipped, as if its optimizer had changed nothing."""
        scope = enclosing_step()
        iteration = tracker.iteration or tracker.loaderless.iteration
        if scope is None and iteration is not None:
            scope = iteration.step
        if scope is not None:
            self._enter(scope)
        self._digest_gradients(scope, optimizer)
        self._stepped(optimizer)

    # --- digests --------------------------------------------------------------------------------

    def _is_on(self) -> bool:
        return state.digests is not None and state.recording and not is_capturing()

    def _is_due(self, scope: Any) -> bool:
        """Return whether the step `scope` is digested; None: the step is not known yet."""
        return any(map(state.digests.is_due, self._numbers(scope)))

    def _numbers(self, scope: Any) -> tuple[int, ...]:
        """Return the numbers that the step `scope` may have; None: the open step, or the next."""
        opened = self._open
        if scope is None:
            return (self._begun,) if opened.scope is None else (opened.number, self._begun)
        return (opened.number if scope is opened.scope else self._begun,)

    def _take_rng(self) -> Any:
        """Read the random number generators, if the next step is digested; None if that fails."""
        try:
            if state.digests.is_due(self._begun):
                from ...snapshots.unseen import unseen  # noqa: PLC0415 - needs torch

                with unseen():
                    return now(), self._generators.states()
        except Exception as error:
            record_error("digest", error)
        return None

    def _tensors_of(self, optimizer: Any) -> Any:
        from ...snapshots.digest_tensors import OptimizerTensors  # noqa: PLC0415 - needs torch
        from ...snapshots.recorder import watched  # noqa: PLC0415

        models = list(self._torch_state.trained)
        if watched.model is not None:
            models.insert(0, watched.model)
        uncalled = self._uncalled
        return OptimizerTensors(optimizer, models, lambda left: uncalled.containing(left, models))

    def _digest(
        self, scope: Any, quantity: str, tensors: Callable[[], Iterable[tuple[str, Any]]],
        rng: Any = None, batch: Any = None,
    ) -> None:  # fmt: skip
        """Digest a quantity of the step `scope`; None: of the step that is entered next.

        `rng` contains the states of the generators before `batch` was fetched.
        """
        opened = self._open
        if scope is not None:
            self._enter(scope)
        if not self._is_due(scope):
            return
        begun = now()
        taken = state.digests.take(quantity, tensors, self._numbers(scope))
        if taken is None:
            return
        if scope is not None:
            self._put(taken)
            innermost = self._trackers.t.open or scope
            add_rare(innermost, now() - begun)
        else:
            opened.waiting.add(taken, rng, batch)

    def _enter(self, scope: Any) -> None:
        """Continue with the step `scope`, which is a new one or the open one."""
        opened = self._open
        if scope is not opened.scope:
            is_of_program = opened.expected is not None and scope is not opened.expected
            begun = 0 if is_of_program else scope._start
            opened.waiting.discard_skipped(begun, is_decided=scope is opened.expected)
            opened.scope, opened.number = scope, self._begun
            self._begun += 1
            opened.expected = None
            opened.occurrences.clear()
            opened.at = scope._start
            rng = opened.waiting.rng or opened.rng
            if rng is not None:
                begun, states = rng
                used = self._generators.used(states)
                taken = state.digests.take(RNG, lambda: used, (opened.number,))
                if taken is not None:
                    self._put(taken, begun)
            opened.rng = None
        for taken in opened.waiting.take():
            self._put(taken)

    def _put(self, taken: Any, begun: int = 0) -> None:
        """Make the mark of a digest of the open step, which was taken at `begun`."""
        opened = self._open
        quantity = taken[0]
        begun = begun or taken[1]
        if not state.digests.is_due(opened.number):
            state.digests.discard(taken)
            return
        occurrence = opened.occurrences.get(quantity, 0)
        opened.occurrences[quantity] = occurrence + 1
        opened.at = max(opened.at + 1, begun)
        state.digests.put(opened.scope, taken, opened.number, occurrence, opened.at)
