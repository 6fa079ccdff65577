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
from ...sdk.errors import record_error
from ...sdk.phase import Phase
from ...sdk.scope import NO_SESSION
from ...sdk.state import CONTEXT, SCOPE_KEY, state
from ..patches import Patches
from .kinds import NO_TRANSFER, TRANSFER
from .shared import Shared
from .tracker import Tracker
from .trackers import Trackers

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

    def _before(self, step_over: Callable[[], None]) -> Callable[[], None]:
        def over() -> None:
            copies = self._trackers.t.copies
            if copies is not None:
                copies.over()
            step_over()

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
            copies = None if size is None else _begin(tracker, size)
            if copies is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                copies.copied(error)
                raise
            copies.copied()
            _follow(tracker, self, result)
            return result

        return copy


def _follow(tracker: Tracker, tensor: Any, copy: Any) -> None:
    """The copy is a part of the tensor's batch, where the pass fetches ahead. Raises nothing."""
    try:
        own = tracker.passes.training
        if own is not None and own.pending is not None:
            own.pending.moved(tensor, copy)
    except Exception as error:
        tracker.failed(error)


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


_END: Any = Phase._end


class Copies(Phase):
    """The scope of copies that follow one another. While it may grow it is not finished, whoever
    says so.
    """

    _tracker: Tracker
    _grows: list[bool]
    """Empty when nothing follows any more; who empties it draws the conclusions."""
    _is_due: bool
    """Whether it would be finished, but for what may follow."""
    _around: Any
    """The scope that is current between the copies."""
    _begun: int
    """Scopes begun in the thread up to now."""

    def opened(self, tracker: Tracker) -> None:
        """It is open, and the first copy is made."""
        self._tracker, self._grows, self._is_due = tracker, [True], False
        self._around, self._begun = None, _begun()

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
        """It may be sealed, unless it may still grow."""
        if self._grows:
            self._is_due = True
        else:
            super().finish()

    def goes_on(self) -> bool:
        """Whether a copy now follows: nothing began or ended in this thread since the last one."""
        return (
            bool(self._grows)
            and _begun() == self._begun
            and _get().get(SCOPE_KEY, NO_SESSION) is self._around
            and now() - self._until <= GAP_NS
        )

    def follow(self, size: int) -> None:
        """A copy that follows begins."""
        attrs: Any = self._attrs
        attrs["copies"] += 1
        attrs["bytes"] += size
        self._before = self._tracker.inside
        self._tracker.inside |= TRANSFER

    def copied(self, error: BaseException | None = None) -> None:
        """A copy is over."""
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
            return  # the flush thread took it for over
        if self._stamps is not None:
            tracker.clock.end(self)
        above: Any = self._above
        if (
            self._stamps is not None
            and iteration is not None
            and (above is iteration.step or above is iteration.micro)
        ):
            iteration.stamp(self._stamps)
        self._until = now()
        if error is not None:
            self._fail(error)
        for some in (tracker.passes.evaluation, tracker.passes.training):
            if some is not None and above is some.scope:
                some.reached = max(some.reached, self._until)

    def over(self) -> None:
        """Nothing follows. On any thread, if it is due."""
        try:
            self._grows.pop()
        except IndexError:
            return
        if self._tracker.copies is self:
            self._tracker.copies = None
        if self._is_due:
            self._tracker.settle(self)

    def look_after(self) -> None:
        """On the flush thread: what nothing can follow any more is over."""
        if self._is_due and now() - self._until > _STALE_NS:
            self.over()


def _begin(tracker: Tracker, size: int) -> Copies | None:
    """The scope that a copy belongs to; None where it is to have none."""
    try:
        copies: Copies | None = tracker.copies
        if copies is not None:
            if copies.goes_on():
                copies.follow(size)
                return copies
            copies.over()
        phase: Any = tracker.enter(TRANSFER, {"copies": 1, "bytes": size})
        if phase is None:
            return None
        phase.__class__ = Copies
        copies = tracker.copies = phase
        phase.opened(tracker)
        return copies
    except Exception as error:
        record_error("torch", error)
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
        record_error("torch", error)
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
