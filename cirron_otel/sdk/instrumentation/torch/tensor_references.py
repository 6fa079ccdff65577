"""References to tensors of the program.

`torch.utils.swap_tensors` rejects a tensor that has a weak reference. Torch calls it to convert
parameters that are subclasses of tensors, as FSDP2 makes them, and after
`torch.__future__.set_swap_module_params_on_conversion(True)` all parameters.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ..patches import Patches

_FAR = 10_000


class TensorReference:
    """A reference to a tensor that neither keeps it alive nor prevents its conversion."""

    __slots__ = ("__weakref__", "get")

    def __init__(self, tensor: Any) -> None:
        self.get: Callable[[], Any] = weakref.ref(tensor)
        """Returns the tensor; None if it has been freed, or after the hooks are removed."""


class TensorReferences:
    """The reference to each tensor that the hooks watch."""

    def __init__(self) -> None:
        self._references: weakref.WeakValueDictionary[int, TensorReference] = (
            weakref.WeakValueDictionary()
        )

    def of(self, tensor: Any) -> TensorReference:
        """Return the reference to a tensor."""
        reference = self._known(tensor)
        if reference is None:
            reference = self._references[id(tensor)] = TensorReference(tensor)
        return reference

    def first_trained(self, module: Any) -> TensorReference | None:
        """Return the first parameter of a module that is trained; None without one."""
        trained = None
        with contextlib.suppress(Exception):
            trained = next(
                each for each in module.parameters() if each.requires_grad and each.is_leaf
            )
        return None if trained is None else self.of(trained)

    def of_gradients(self, tensors: Any) -> TensorReference | None:
        """Return a parameter that gradients of `tensors` reach, or None."""
        tensor = tensors[0] if isinstance(tensors, (tuple, list)) else tensors
        node = getattr(tensor, "grad_fn", None)
        for _ in range(_FAR):
            if node is None:
                return None
            if hasattr(node, "variable"):
                return self.of(node.variable)
            nodes = [each for each, _ in node.next_functions if each is not None]
            node = next((each for each in nodes if hasattr(each, "variable")), None) or (
                nodes[0] if nodes else None
            )
        return None

    def install(self, patches: Patches) -> None:
        """Hook `torch.utils.swap_tensors`. Raises AttributeError if torch lacks it."""
        from torch import utils  # noqa: PLC0415

        original = utils.swap_tensors

        @functools.wraps(original)
        def swap_tensors(*args: Any, **kwargs: Any) -> Any:
            released = self._release((*args, *kwargs.values()))
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                strip(error)
                raise
            finally:
                for reference, tensor in released:
                    reference.get = weakref.ref(tensor)

        patches.replace_function([utils], "swap_tensors", swap_tensors)

    def release_all(self) -> None:
        """Remove all weak references, because the hooks are removed. Raises nothing.

        The objects of the hooks may exist until Python's next garbage collection.
        """
        try:
            for reference in list(self._references.values()):
                reference.get = _nothing
        except Exception as error:
            record_error("torch", error)

    def _known(self, tensor: Any) -> TensorReference | None:
        reference = self._references.get(id(tensor))
        return None if reference is None or reference.get() is not tensor else reference

    def _release(self, tensors: Iterable[Any]) -> list[tuple[TensorReference, Any]]:
        """Replace the weak references to some tensors by strong ones; return both to restore them.

        Other threads still find the tensors.
        """
        released: list[tuple[TensorReference, Any]] = []
        try:
            for tensor in tensors:
                reference = self._known(tensor)
                if reference is not None:
                    reference.get = functools.partial(_same, tensor)
                    released.append((reference, tensor))
        except Exception as error:
            record_error("torch", error)
        return released


references = TensorReferences()
"""The references of this process; a session releases those of its hooks when it ends."""


def _same(tensor: Any) -> Any:
    return tensor


def _nothing() -> None:
    pass
