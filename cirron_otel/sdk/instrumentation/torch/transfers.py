"""Record copies to a device as `h2d`. Consecutive copies share one scope.

When a copy ends, it is not known whether another copy follows. So each copy sets the end of the
shared scope, and the scope is finished later: at the next copy that is not consecutive, at the end
of a step, or by the flush thread.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import length_hint
from types import MethodType
from typing import Any

from ...session.errors import record_error
from ...tracing.buffers import local
from ...tracing.clock import now
from ...tracing.hidden_frames import as_caller, strip
from ...tracing.phase import Phase
from ...tracing.scope import NO_SESSION
from ...tracing.state import CONTEXT, SCOPE_KEY, state
from ..patches import Patches
from .kinds import NO_TRANSFER, TRANSFER
from .torch_state import TorchState
from .tracker import Tracker
from .trackers import Trackers

GAP_NS = 10_000_000
"""Maximum gap between consecutive copies, ns: in a longer gap, the loop did something else."""
_STALE_NS = 1_000_000_000
"""Age, in ns, at which the flush thread finishes the scope, because no more copies can follow."""

_get = CONTEXT.get


class Transfers:
    """Replaces `Tensor.to` and `Tensor.cuda`."""

    def __init__(self, trackers: Trackers, torch_state: TorchState, kinds: frozenset[str]) -> None:
        """`kinds` are the device types to which copies are recorded."""
        self._trackers, self._torch_state = trackers, torch_state
        self._kinds = kinds

    def install(self, patches: Patches) -> None:
        """Replace the methods. Raises AttributeError if this torch lacks them."""
        import torch  # noqa: PLC0415

        for name in ("to", "cuda"):
            original = getattr(torch.Tensor, name)
            patches.replace(torch.Tensor, name, Method(original, self._wrap(name, original)))
        self._torch_state.on_step_end = self._before(self._torch_state.on_step_end)

    def _before(self, on_step_end: Callable[[], None]) -> Callable[[], None]:
        def over() -> None:
            copies = self._trackers.t.copies
            if copies is not None:
                copies.over()
            on_step_end()

        return over

    def _wrap(self, name: str, original: Any) -> Callable[..., Any]:
        import torch  # noqa: PLC0415

        trackers, kinds = self._trackers, self._kinds
        is_compiling = torch.compiler.is_compiling
        # A tensor's own `__torch_function__` takes precedence; it calls `copy` for a plain tensor.
        is_overridden = torch.overrides.has_torch_function_unary
        is_named = name in kinds

        invoke = as_caller(original)

        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            try:
                if not state.recording or is_overridden(self):
                    return invoke(self, *args, **kwargs)
                tracker = trackers.t
                if tracker.inside & NO_TRANSFER:
                    return invoke(self, *args, **kwargs)
                size = _size(self, args, kwargs, kinds, is_named=is_named)
                copies = None if size is None else _begin(tracker, size)
                if copies is None:
                    return invoke(self, *args, **kwargs)
                try:
                    result = invoke(self, *args, **kwargs)
                except BaseException as error:
                    copies.copied(error)
                    raise
                copies.copied()
                _follow(tracker, self, result)
                return result
            except BaseException as error:
                strip(error)
                raise

        return copy


def _follow(tracker: Tracker, tensor: Any, copy: Any) -> None:
    """Add the copy to the tensor's batch, if the pass fetches ahead. Raises nothing."""
    try:
        training = tracker.passes.training
        if training is not None and training.unused is not None:
            training.unused.moved(tensor, copy)
    except Exception as error:
        tracker.failed(error)


class Method:
    """Replaces a method of a class written in C, and is equal to the original in look-ups.

    Code that overrides `torch.Tensor.to` with `__torch_function__` looks up functions in tables,
    which may contain the original or this object.
    """

    def __init__(self, original: Any, function: Callable[..., Any]) -> None:
        self.__name__, self.__qualname__ = original.__name__, original.__qualname__
        self.__doc__ = original.__doc__
        self.__wrapped__ = original
        self._function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the bound method."""
        return self if instance is None else MethodType(self._function, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the original."""
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is this object or the original."""
        return self is other or self.__wrapped__ == other

    def __hash__(self) -> int:
        """Return the hash of the original."""
        return hash(self.__wrapped__)

    def __reduce__(self) -> Any:
        """Pickle as the original."""
        reduced: Any = self.__wrapped__.__reduce__()
        return reduced


_END: Any = Phase._end


class CopyRun(Phase):
    """The scope of consecutive copies.

    While more copies may follow, it is not finished, even if `finish` is called or its end is set.
    """

    _tracker: Tracker
    _grows: list[bool]
    """Empty once no more copies can follow. The thread that empties the list finishes the scope."""
    _is_due: bool
    """Whether the scope can be finished as soon as no more copies can follow."""
    _around: Any
    """The scope that is current between the copies."""
    _scopes_begun: int
    """Number of scopes begun in the thread so far."""

    def opened(self, tracker: Tracker) -> None:
        """Record that the scope is open, and that its first copy is running."""
        self._tracker, self._grows, self._is_due = tracker, [True], False
        self._around, self._scopes_begun = None, _scopes_begun()

    @property
    def _end(self) -> int:
        end: int = _END.__get__(self)
        return end

    @_end.setter
    def _end(self, end: int) -> None:
        if self._grows:
            self._is_due = True
        else:
            _END.__set__(self, end)

    def finish(self) -> None:
        """Finish the scope, unless a copy may still follow."""
        if self._grows:
            self._is_due = True
        else:
            super().finish()

    def goes_on(self) -> bool:
        """Return whether a copy now continues this scope.

        It does if no scope has begun or ended in this thread since the last copy, and that copy
        ended at most GAP_NS ago.
        """
        return (
            bool(self._grows)
            and _scopes_begun() == self._scopes_begun
            and _get().get(SCOPE_KEY, NO_SESSION) is self._around
            and now() - self._until <= GAP_NS
        )

    def follow(self, size: int) -> None:
        """Begin another copy in the run."""
        attrs: Any = self._attrs
        attrs["copies"] += 1
        attrs["bytes"] += size
        self._before = self._tracker.inside
        self._tracker.inside |= TRANSFER

    def copied(self, error: BaseException | None = None) -> None:
        """End a copy."""
        try:
            if self._around is not None:
                self._extend(error)
            else:
                self._tracker.exit(self, TRANSFER, error)
                self._around = _get().get(SCOPE_KEY, NO_SESSION)
            if error is not None:
                self.over()
        except Exception as problem:
            record_error("torch", problem)

    def _extend(self, error: BaseException | None) -> None:
        tracker, iteration = self._tracker, self._tracker.iteration
        tracker.inside = self._before
        if not self._grows:
            return  # the flush thread has finished the scope
        if self._stamps is not None:
            tracker.clock.end(self)
        parent_scope: Any = self._above
        if (
            self._stamps is not None
            and iteration is not None
            and (parent_scope is iteration.step or parent_scope is iteration.micro)
        ):
            iteration.stamp(self._stamps)
        self._until = now()
        if error is not None:
            self._fail(error)
        for loader_pass in (tracker.passes.evaluation, tracker.passes.training):
            if loader_pass is not None and parent_scope is loader_pass.scope:
                loader_pass.reached = max(loader_pass.reached, self._until)

    def over(self) -> None:
        """Record that no more copies follow. May be called on any thread once the scope is due."""
        try:
            self._grows.pop()
        except IndexError:
            return
        if self._tracker.copies is self:
            self._tracker.copies = None
        if self._is_due:
            self._tracker.settle(self)

    def finish_if_stale(self) -> None:
        """On the flush thread, end the scope if no more copies can follow."""
        if self._is_due and now() - self._until > _STALE_NS:
            self.over()


def _begin(tracker: Tracker, size: int) -> CopyRun | None:
    """Return the scope that a copy belongs to; None if the copy is not recorded."""
    try:
        copies: CopyRun | None = tracker.copies
        if copies is not None:
            if copies.goes_on():
                copies.follow(size)
                return copies
            copies.over()
        phase: Any = tracker.enter(TRANSFER, {"copies": 1, "bytes": size})
        if phase is None:
            return None
        phase.__class__ = CopyRun
        copies = tracker.copies = phase
        phase.opened(tracker)
        return copies
    except Exception as error:
        record_error("torch", error)
        return None


def _scopes_begun() -> int:
    """Return the number of scopes begun in this thread so far."""
    buffers = local.b
    return buffers.drawn - length_hint(buffers.ids)


def _size(
    tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kinds: frozenset[str], *,
    is_named: bool,
) -> int | None:  # fmt: skip
    """Return the size in bytes of a copy to a device type in `kinds`; None for any other call."""
    try:
        if not (is_named or _goes_there(args, kwargs, kinds)) or tensor.device.type in kinds:
            return None
        try:
            return int(tensor.nbytes)
        except RuntimeError:
            return 0  # the size of a sparse tensor is unknown
    except Exception as error:
        record_error("torch", error)
        return None


def _goes_there(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: frozenset[str]) -> bool:
    """Return whether the arguments of `to` specify a device whose type is in `kinds`."""
    target = kwargs.get("device", args[0] if args else kwargs.get("other"))
    if isinstance(target, str):
        return target.partition(":")[0] in kinds
    if isinstance(target, int) and not isinstance(target, bool):
        return True
    device = getattr(target, "device", target)
    return getattr(device, "type", None) in kinds
