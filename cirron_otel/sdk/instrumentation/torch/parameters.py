"""References to trained parameters.

`torch.utils.swap_tensors` rejects a tensor that has a weak reference. It converts parameters that
are subclasses of tensors, such as those of FSDP2, and after
`torch.__future__.set_swap_module_params_on_conversion(True)` all parameters.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ..patches import Patches

_FAR = 10_000


class ParameterReference:
    """A reference to a parameter that neither keeps it alive nor prevents its conversion."""

    __slots__ = ("__weakref__", "get")

    def __init__(self, parameter: Any) -> None:
        self.get: Callable[[], Any] = weakref.ref(parameter)
        """Returns the parameter; None if it has been freed, or while it is converted."""


class ParameterReferences:
    """The reference to each parameter that the hooks watch."""

    def __init__(self) -> None:
        self._references: weakref.WeakValueDictionary[int, ParameterReference] = (
            weakref.WeakValueDictionary()
        )

    def of(self, parameter: Any) -> ParameterReference:
        """Return the reference to a parameter."""
        found = self._known(parameter)
        if found is None:
            found = self._references[id(parameter)] = ParameterReference(parameter)
        return found

    def first_trained(self, module: Any) -> ParameterReference | None:
        """Return the first parameter that is trained; None without one."""
        trained = None
        with contextlib.suppress(Exception):
            trained = next(
                each for each in module.parameters() if each.requires_grad and each.is_leaf
            )
        return None if trained is None else self.of(trained)

    def of_gradients(self, tensors: Any) -> ParameterReference | None:
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
                for reference, parameter in released:
                    reference.get = weakref.ref(parameter)

        patches.replace_function([utils], "swap_tensors", swap_tensors)

    def _known(self, parameter: Any) -> ParameterReference | None:
        found = self._references.get(id(parameter))
        return None if found is None or found.get() is not parameter else found

    def _release(self, parameters: Any) -> list[tuple[ParameterReference, Any]]:
        """Remove the weak references to some parameters; return both, to restore them."""
        released = []
        try:
            for parameter in parameters:
                reference = self._known(parameter)
                if reference is not None:
                    reference.get = _nothing
                    released.append((reference, parameter))
        except Exception as error:
            record_error("torch", error)
        return released


def _nothing() -> None:
    pass
