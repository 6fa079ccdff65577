"""Record `collective`: operations of torch.distributed that the host waits for."""

from __future__ import annotations

import inspect
from typing import Any

from ..patches import Patches
from .checkpoints import tensor_bytes
from .kinds import COLLECTIVE
from .upkeep import ScopeWrapper, constant

_OPERATIONS = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "send_object_list",
)  # fmt: skip


class Collectives:
    """Replaces the functions of torch.distributed, and `wait` of the objects that they return."""

    def __init__(self, wrapper: ScopeWrapper, patches: Patches) -> None:
        self._wrapper, self._patches = wrapper, patches

    def install(self) -> None:
        """Replace the functions. Raises AttributeError if torch has changed."""
        from torch import distributed  # noqa: PLC0415

        if not distributed.is_available():
            return
        from torch.distributed import distributed_c10d  # noqa: PLC0415

        for name in _OPERATIONS:
            original = getattr(distributed_c10d, name, None)
            if original is None:
                continue
            wrapped = self._wrapper.wrap(original, COLLECTIVE, _of_operation(name, original))
            owners = [each for each in (distributed_c10d, distributed) if hasattr(each, name)]
            self._patches.replace_function(owners, name, wrapped)
        work = distributed_c10d.Work
        wrapped = self._wrapper.wrap(work.wait, COLLECTIVE, constant(operation="wait"))
        self._patches.replace(work, "wait", wrapped)


def _of_operation(name: str, original: Any) -> Any:
    """Return a function that returns a call's attributes.

    It returns None for an asynchronous call, which does not wait for the operation.
    """
    parameters = list(inspect.signature(original).parameters)
    place = parameters.index("async_op") if "async_op" in parameters else len(parameters)

    def attributes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        if kwargs.get("async_op") or (len(args) > place and args[place]):
            return None
        attrs: dict[str, Any] = {"operation": name}
        first = args[0] if args else next(iter(kwargs.values()), None)
        size = sum(tensor_bytes(first))
        if size:
            attrs["bytes"] = size
        return attrs

    return attributes
