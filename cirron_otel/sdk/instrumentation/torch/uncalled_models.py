"""Find the models of parameters that no called model contains.

A resumed training may call its models in another order than the complete run. So the names of
parameters must not depend on which models this process has called already.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from ...tracing.own_attributes import own_attributes
from .tensor_references import TensorReference, references
from .torch_state import TrainedModels


class UncalledModels:
    """The models that were not called yet, as far as optimizers train them."""

    def __init__(self) -> None:
        self._called: tuple[int, ...] = ()
        """The ids of the called models at the last search."""
        self._searched: dict[int, TensorReference] = {}
        """The parameters that were searched for, by id."""
        self._models = TrainedModels()

    def containing(self, parameters: Sequence[Any], called: Sequence[Any]) -> list[Any]:
        """Return the outermost models that contain some of `parameters`, and none of `called`.

        Searches all objects of the process, once for each parameter, and again if `called` changes.
        """
        ids = tuple(map(id, called))
        if ids != self._called:
            self._called, self._models = ids, TrainedModels()
            self._searched.clear()
        if not all(map(self._is_searched, parameters)):
            for each in parameters:
                self._searched[id(each)] = references.of(each)
            for model in _search({id(each) for each in parameters}, called):
                self._models.add(model)
        return list(self._models)

    def _is_searched(self, parameter: Any) -> bool:
        reference = self._searched.get(id(parameter))
        return reference is not None and reference.get() is parameter


def _search(parameters: set[int], called: Sequence[Any]) -> list[Any]:
    from torch.nn import Module  # noqa: PLC0415 - the program has imported it

    modules = [each for each in gc.get_objects() if issubclass(type(each), Module)]
    parents: dict[int, list[Any]] = {}
    for module in modules:
        for child in _dictionary(module, "_modules").values():
            parents.setdefault(id(child), []).append(module)
    excluded = _closure(called, parents)
    owners = [
        each
        for each in modules
        if not parameters.isdisjoint(map(id, _dictionary(each, "_parameters").values()))
    ]
    around = _closure([each for each in owners if id(each) not in excluded], parents, excluded)
    return [
        module
        for module in around.values()
        if all(id(each) in excluded for each in parents.get(id(module), ()))
    ]


def _closure(
    modules: Sequence[Any], parents: dict[int, list[Any]], excluded: Any = ()
) -> dict[int, Any]:
    """Return modules and all modules around them, except those that are excluded, by id."""
    closure: dict[int, Any] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if id(module) not in closure and id(module) not in excluded:
            closure[id(module)] = module
            waiting += parents.get(id(module), ())
    return closure


def _dictionary(module: Any, name: str) -> dict[str, Any]:
    values = own_attributes(module).get(name)
    return values if isinstance(values, dict) else {}
