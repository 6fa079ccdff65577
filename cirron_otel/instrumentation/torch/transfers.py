"""`h2d`: copies to a device, where there is one. Copies that follow one another are one scope.

It cannot be known of a copy whether another follows. So the scope of a run of copies ends with
each of them, and is finished when something else was seen: at the next copy that does not follow,
at the end of a step, or by the flush thread.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import length_hint
from types import MethodType
from typing import Any

from ...sdk.buffers import local
from ...sdk.clock import now
from ...sdk.errors import swallowed
from ...sdk.phase import Phase
from ...sdk.state import CONTEXT, SCOPE_KEY, state
from ..patches import Patches
from .clock import span
from .kinds import NO_TRANSFER, TRANSFER
from .shared import Shared
from .tracker import Tracker, Trackers

GAP_NS = 10_000_000
"""A copy that begins later after the one before does not follow it: the loop did something else."""
_STALE_NS = 1_000_000_000
"""After this the flush thread finishes a run: nothing follows it any more."""

_get = CONTEXT.get


class Transfers:
    """Replaces `Tensor.to` and `Tensor.cuda`."""

    def __init__(self, trackers: Trackers, shared: Shared, kinds: frozenset[str]) -> None:
        """`kinds` are the types of devices that a copy to counts."""
        self._trackers, self._shared = trackers, shared
        self._kinds = kinds

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has them no more."""
        import torch  # noqa: PLC0415

        for name in ("to", "cuda"):
            original = getattr(torch.Tensor, name)
            patches.replace(torch.Tensor, name, Method(original, self._around(name, original)))
        self._shared.step_over = self._before(self._shared.step_over)

    def _before(self, step_over: Callable[[bool], None]) -> Callable[[bool], None]:
        def over(was_forward: bool) -> None:
            run = self._trackers.t.copies
            if run is not None:
                run.over()
            step_over(was_forward)

        return over

    def _around(self, name: str, original: Any) -> Callable[..., Any]:
        import torch  # noqa: PLC0415

        trackers, kinds = self._trackers, self._kinds
        is_compiling = torch.compiler.is_compiling
        # Its own `__torch_function__` is asked first, and calls this for a plain tensor.
        is_overridden = torch.overrides.has_torch_function_unary
        is_named = name in kinds

        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not state.recording or is_overridden(self):
                return original(self, *args, **kwargs)
            tracker = trackers.t
            if tracker.inside & NO_TRANSFER:
                return original(self, *args, **kwargs)
            size = _size(self, args, kwargs, kinds, is_named=is_named)
            run = None if size is None else _begin(tracker, size)
            if run is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                run.copied(error)
                raise
            run.copied()
            return result

        return copy


class Method:
    """A method of a class of C's that is replaced, and passes for it where it is looked up.

    What overrides `torch.Tensor.to` by `__torch_function__` finds functions in tables, which may
    hold the original or this.
    """

    def __init__(self, original: Any, function: Callable[..., Any]) -> None:
        self.__name__, self.__qualname__ = original.__name__, original.__qualname__
        self.__doc__ = original.__doc__
        self.__wrapped__ = original
        self._function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The bound method."""
        return self if instance is None else MethodType(self._function, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the original returns."""
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        """Whether it is this, or the original."""
        return self is other or self.__wrapped__ == other

    def __hash__(self) -> int:
        """That of the original."""
        return hash(self.__wrapped__)

    def __reduce__(self) -> Any:
        """Pickled, it is the original."""
        reduced: Any = self.__wrapped__.__reduce__()
        return reduced


class Copies(Phase):
    """The scope of a run of copies."""

    __slots__ = ()

    run: Run | None
    """None when it is over."""

    def finish(self) -> None:
        """It may be sealed, unless it may still grow."""
        run = self.run
        if run is None:
            super().finish()
        else:
            run.is_due = True


class Run:
    """Copies that followed one another so far, in one thread."""

    def __init__(self, tracker: Tracker, phase: Copies) -> None:
        self.phase = phase
        self.is_due = False
        """Whether the phase would be finished, but for what may follow."""
        self.stamps: Any = None
        self._tracker = tracker
        self._is_over = False
        self._before = 0
        self._around = _get().get(SCOPE_KEY)
        self._begun = _begun()
        self._left = [phase]

    def goes_on(self) -> bool:
        """Whether a copy now follows: nothing began or ended in this thread since the last one."""
        return (
            bool(self._left)
            and _begun() == self._begun
            and _get().get(SCOPE_KEY) is self._around
            and now() - self.phase._until <= GAP_NS
        )

    def resume(self, size: int) -> None:
        """A copy that follows begins."""
        attrs: Any = self.phase._attrs
        attrs["copies"] += 1
        attrs["bytes"] += size
        tracker = self._tracker
        self._before = tracker.inside
        tracker.inside |= TRANSFER

    def copied(self, error: BaseException | None = None) -> None:
        """A copy is over."""
        try:
            if self.phase._until:
                self._extend(error)
            else:
                self._leave(error)
            if error is not None:
                self.over()
        except Exception as problem:
            swallowed("torch", problem)

    def _leave(self, error: BaseException | None) -> None:
        """After the first copy."""
        phase, tracker = self.phase, self._tracker
        if phase._stamps is not None:
            tracker.clock.end(phase)
            self.stamps, phase._stamps = phase._stamps, None
        tracker.exit(phase, TRANSFER, error)
        self._around = _get().get(SCOPE_KEY)
        self._span()

    def _extend(self, error: BaseException | None) -> None:
        phase, tracker = self.phase, self._tracker
        tracker.inside = self._before
        if not self._left:
            return  # the flush thread took it for over
        if self.stamps is not None:
            phase._stamps = self.stamps
            tracker.clock.end(phase)
            self.stamps, phase._stamps = phase._stamps, None
            self._span()
        phase._until = now()
        if error is not None:
            phase._fail(error)
        others = tracker.passes.evaluation
        if others is not None and phase._above is others.scope:
            others.reached = max(others.reached, phase._until)

    def _span(self) -> None:
        """The open step, and micro step, hold it on the stream, too."""
        iteration = self._tracker.iteration
        if self.stamps is not None and iteration is not None:
            for scope in (iteration.step, iteration.micro):
                if scope is not None and self.phase._above in (iteration.step, iteration.micro):
                    span(scope, self.stamps)

    def over(self) -> None:
        """Nothing follows. On any thread, if it is due."""
        try:
            phase = self._left.pop()
        except IndexError:
            return
        phase._stamps, phase.run = self.stamps, None
        if self._tracker.copies is self:
            self._tracker.copies = None
        if self.is_due:
            self._tracker.settle(phase)

    def look_after(self) -> None:
        """On the flush thread: a run that nothing can follow any more is over."""
        if self.is_due and now() - self.phase._until > _STALE_NS:
            self.over()


def _begin(tracker: Tracker, size: int) -> Run | None:
    """The run that a copy belongs to; None where it is to be none."""
    try:
        run: Run | None = tracker.copies
        if run is not None:
            if run.goes_on():
                run.resume(size)
                return run
            run.over()
        phase: Any = tracker.enter(TRANSFER, {"copies": 1, "bytes": size})
        if phase is None:
            return None
        phase.__class__ = Copies
        tracker.copies = phase.run = run = Run(tracker, phase)
        if tracker.clock is not None:
            tracker.clock.begin(phase)
        return run
    except Exception as error:
        swallowed("torch", error)
        return None


def _begun() -> int:
    """Scopes that were begun in this thread so far."""
    buffers = local.b
    return buffers.drawn - length_hint(buffers.ids)


def _size(
    tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kinds: frozenset[str], *,
    is_named: bool,
) -> int | None:  # fmt: skip
    """The bytes of a copy to a device of the `kinds`; None where it is none."""
    try:
        if not (is_named or _goes_there(args, kwargs, kinds)) or tensor.device.type in kinds:
            return None
        try:
            return int(tensor.nbytes)
        except RuntimeError:
            return 0  # a sparse tensor does not say
    except Exception as error:
        swallowed("torch", error)
        return None


def _goes_there(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: frozenset[str]) -> bool:
    """Whether the arguments of `to` name a device of the `kinds`."""
    target = kwargs.get("device", args[0] if args else kwargs.get("other"))
    if isinstance(target, str):
        return target.partition(":")[0] in kinds
    if isinstance(target, int) and not isinstance(target, bool):
        return True
    device = getattr(target, "device", target)
    return getattr(device, "type", None) in kinds
