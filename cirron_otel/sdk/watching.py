"""`watch`: the model whose weights are looked at."""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

from .errors import swallowed

T = TypeVar("T")


class Watched:
    """The model that was named last, held weakly: the SDK keeps no model alive."""

    def __init__(self) -> None:
        self._reference: Any = None

    def set(self, model: Any) -> None:
        """Watch `model`; None: no model."""
        self._reference = None if model is None else weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model, as long as it lives."""
        return None if self._reference is None else self._reference()


watched = Watched()


def watch(model: T) -> T:
    """Name the model whose weights and gradients snapshots take; returns it unchanged.

    None takes the name back. It is held weakly. Nothing is raised.
    """
    try:
        watched.set(model)
    except Exception as error:
        swallowed("watch", error)
    return model
