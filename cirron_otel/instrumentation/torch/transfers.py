"""`h2d`: copies to a device, where there is one."""

from __future__ import annotations

from typing import Any

from ...sdk.state import state
from ..patches import Patches
from .kinds import NO_TRANSFER, TRANSFER
from .tracker import Trackers


class Transfers:
    """Replaces `Tensor.to` and `Tensor.cuda`; copies that follow one another are one scope."""

    def __init__(self, trackers: Trackers, kinds: frozenset[str]) -> None:
        """`kinds` are the types of devices that a copy to counts."""
        self._trackers = trackers
        self._kinds = kinds

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has them no more."""
        import torch  # noqa: PLC0415

        for name in ("to", "cuda"):
            patches.replace(torch.Tensor, name, self._around(name, getattr(torch.Tensor, name)))

    def _around(self, name: str, original: Any) -> Any:
        import torch  # noqa: PLC0415

        trackers, kinds = self._trackers, self._kinds
        is_compiling = torch.compiler.is_compiling

        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            tracker = trackers.t
            if tracker.inside & NO_TRANSFER or not state.recording or self.device.type in kinds:
                return original(self, *args, **kwargs)
            if not _goes_there(args, kwargs, kinds, is_named=name == "cuda"):
                return original(self, *args, **kwargs)
            phase = tracker.enter(TRANSFER, {"bytes": self.nbytes})
            if phase is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                tracker.exit(phase, TRANSFER, error)
                raise
            tracker.exit(phase, TRANSFER)
            return result

        copy.__name__ = copy.__qualname__ = name
        return copy


def _goes_there(
    args: tuple[Any, ...], kwargs: dict[str, Any], kinds: frozenset[str], *, is_named: bool
) -> bool:
    """Whether the arguments name a device of the `kinds`."""
    if is_named:
        return True
    target = kwargs.get("device", args[0] if args else kwargs.get("other"))
    if isinstance(target, str):
        return target.partition(":")[0] in kinds
    if isinstance(target, int) and not isinstance(target, bool):
        return True
    device = getattr(target, "device", target)
    return getattr(device, "type", None) in kinds
