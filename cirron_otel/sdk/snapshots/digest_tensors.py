"""Name the tensors of each quantity that is digested (docs/digests.md, "Quantities")."""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ..tracing.own_attributes import own_attributes
from .digest_parts import Unreadable
from .tensors import named_tensors

Named = tuple[str, Any]
_MOST_DEPTH = 8
_MOST_OBJECTS = 10_000
_INT64 = 1 << 63


class Generators:
    """The random number generators of the process.

    Python and NumPy seed theirs from the operating system, so that the states differ in every run
    of a program that neither seeds nor uses them. They count once their state has changed.
    """

    def __init__(self) -> None:
        self._idle = _readable_states()
        """The states of the generators that have not changed."""
        self._used: set[str] = set()

    def states(self) -> list[Named]:
        """Return the states now; pass them to `used` once the step has used the generators."""
        torch = sys.modules["torch"]
        states: list[Named] = [
            (name, data if isinstance(data, Unreadable) else _bytes(data))
            for name, data in self._look().items()
        ]
        states.append(("torch", torch.default_generator.get_state()))
        if torch.cuda.is_initialized():
            for number, generator in enumerate(torch.cuda.default_generators):
                states.append((f"cuda:{number}", generator.get_state()))
        return states

    def used(self, states: list[Named]) -> list[Named]:
        """Return the states of the generators that count by now."""
        self._look()
        return [
            each for each in states if each[0] not in self._idle or isinstance(each[1], Unreadable)
        ]

    def _look(self) -> dict[str, bytes | Unreadable]:
        states = _host_states()
        for name, data in states.items():
            if isinstance(data, Unreadable) or name in self._used:
                continue
            if self._idle.setdefault(name, data) != data:
                del self._idle[name]
                self._used.add(name)
        return states


def _readable_states() -> dict[str, bytes]:
    states = _host_states().items()
    return {name: data for name, data in states if not isinstance(data, Unreadable)}


def _host_states() -> dict[str, bytes | Unreadable]:
    """Return the states of the generators of Python and NumPy, which a program may replace."""
    states: dict[str, bytes | Unreadable] = {"python": _read(_python_state)}
    if "numpy.random" in sys.modules:
        states["numpy"] = _read(_numpy_state)
    return states


def _read(state: Callable[[], bytes]) -> bytes | Unreadable:
    try:
        return state()
    except Exception as error:
        return Unreadable(error)


def _python_state() -> bytes:
    _, words, gauss = random.getstate()
    return array("I", words).tobytes() + _double(gauss)


def _numpy_state() -> bytes:
    state = sys.modules["numpy.random"].get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return repr(state).encode()
    inner = state["state"]
    tail = struct.pack("<qqd", inner["pos"], state["has_gauss"], state["gauss"])
    return bytes(inner["key"].tobytes() + tail)


def batch_tensors(batch: Any) -> Iterator[Named]:
    """Yield the tensors in nested lists, tuples, dictionaries and plain objects.

    Calls no method that the program defines: it may compute the items, or draw random numbers.
    """
    torch = sys.modules["torch"]
    if issubclass(type(batch), torch.Tensor):
        yield "batch", batch
    else:
        yield from _tensors_in(torch, batch, "", [], [_MOST_OBJECTS])


def _tensors_in(
    torch: Any, thing: Any, path: str, around: list[int], left: list[int]
) -> Iterator[Named]:
    """Yield the tensors of an object; `around` contains the ids of the objects around it."""
    left[0] -= 1
    if issubclass(type(thing), torch.Tensor):
        yield path, thing
        return
    if len(around) >= _MOST_DEPTH or left[0] < 0 or id(thing) in around:
        return
    inside = [*around, id(thing)]
    for key, inner in _items(thing):
        yield from _tensors_in(torch, inner, f"{path}.{key}" if path else key, inside, left)


def _items(thing: Any) -> Iterable[tuple[str, Any]]:
    kind = type(thing)
    if issubclass(kind, UserDict):
        thing = own_attributes(thing).get("data")
        kind = type(thing)
    if issubclass(kind, dict):
        pairs = enumerate(dict.items(thing))
        return [(_key(key, place), value) for place, (key, value) in pairs]
    if issubclass(kind, (list, tuple)):
        values = list(list.__iter__(thing) if issubclass(kind, list) else tuple.__iter__(thing))
        names = getattr(kind, "_fields", None) or map(str, range(len(values)))
        return list(zip(names, values, strict=False))
    return list(own_attributes(thing).items())


def _key(key: Any, place: int) -> str:
    """Return the name of a dictionary's key; the key's place, if it has a type of its own."""
    return str(key) if type(key) in _PLAIN_KEYS else str(place)


_PLAIN_KEYS = frozenset({str, int, float, bool, type(None)})


def roots_of(roots: Any) -> list[Named]:
    """Return the tensors that `backward` is called on."""
    torch = sys.modules["torch"]
    if issubclass(type(roots), torch.Tensor):
        return [("loss", roots)]
    try:
        things = _again_iterable(roots)
    except TypeError as error:
        return [("loss", Unreadable(error))]
    tensors = [each for each in things if issubclass(type(each), torch.Tensor)]
    if len(tensors) == 1:
        return [("loss", tensors[0])]
    return [(f"loss.{number}", each) for number, each in enumerate(tensors)]


def _again_iterable(things: Any) -> Iterable[Any]:
    """Return an iterable that can be read again, by `backward`. Raises TypeError otherwise."""
    kind = type(things)
    if issubclass(kind, list):
        return list.__iter__(things)
    if issubclass(kind, tuple):
        return tuple.__iter__(things)
    if kind in _VIEWS:
        return list(things)
    raise TypeError(f"{kind.__name__} cannot be read without a change")


_VIEWS = frozenset({type({}.values()), type({}.keys()), set, frozenset})


class _Candidate(NamedTuple):
    """A model that an optimizer trains."""

    places: list[int]
    """Those of its parameters among the parameters of the optimizer."""
    tensors: list[Named]

    @property
    def key(self) -> Any:
        """The place of the model among others, whichever of them has been called first.

        Of a model and one of its parts, the model comes first; of a model and a wrapper of it, the
        wrapper.
        """
        names = [name for name, _ in self.tensors]
        return self.places[0], -len(names), self.places, -sum(map(len, names)), names


class OptimizerTensors:
    """The tensors of an optimizer's step, under the names of the models that it trains."""

    def __init__(
        self, optimizer: Any, models: Iterable[Any],
        find: Callable[[list[Any]], Iterable[Any]] | None = None,
    ) -> None:  # fmt: skip
        """Name the parameters of `optimizer`; it may train only some of `models`.

        `find` returns more models, which contain the given parameters.
        """
        self._optimizer = optimizer
        self._groups: list[dict[str, Any]] = list(optimizer.param_groups)
        self._parameters: list[tuple[Any, str]] = []
        """The parameters with the names that they have if no model contains them."""
        for number, group in enumerate(self._groups):
            for place, parameter in enumerate(group["params"]):
                self._parameters.append((parameter, f"group{number}.{place}"))
        self._weights: list[Named] = []
        self._names: dict[int, str] = {}
        """The names of parameters and buffers by their ids."""
        self._unreadable: list[Named] = []
        """The models whose parameters and buffers could not be listed."""
        self._add_models(models, find)
        for parameter, name in self._parameters:
            if id(parameter) not in self._names:
                self._names[id(parameter)] = name
                self._weights.append((name, parameter))

    def _add_models(
        self, models: Iterable[Any], find: Callable[[list[Any]], Iterable[Any]] | None
    ) -> None:
        candidates = self._candidates(models)
        known = {id(each) for candidate in candidates for _, each in candidate.tensors}
        left = [each for each, _ in self._parameters if id(each) not in known]
        if left and find is not None:
            candidates += self._candidates(find(left))
        if len(candidates) > 1:
            candidates.sort(key=lambda each: each.key)
        count = 0
        for candidate in candidates:
            new = [each for each in candidate.tensors if id(each[1]) not in self._names]
            count += bool(new)
            for name, tensor in new:
                shown = name if count == 1 else f"{count}:{name}"
                self._names[id(tensor)] = shown
                self._weights.append((shown, tensor))

    def _candidates(self, models: Iterable[Any]) -> list[_Candidate]:
        """Return those of `models` that contain parameters of the optimizer."""
        places = {id(each): place for place, (each, _) in enumerate(self._parameters)}
        candidates = []
        for model in models:
            try:
                tensors = named_tensors(model)
            except Exception as error:
                self._unreadable.append((type(model).__name__, Unreadable(error)))
                continue
            trained = sorted(places[id(each)] for _, each in tensors if id(each) in places)
            if trained:
                candidates.append(_Candidate(trained, tensors))
        return candidates

    def gradients(self) -> list[Named]:
        """Return the gradients of the optimizer's parameters."""
        names = self._names
        return [
            (names[id(each)], each.grad) for each, _ in self._parameters if each.grad is not None
        ]

    def weights(self) -> list[Named]:
        """Return the parameters and buffers of the models; parameters without a model come last."""
        return self._weights + self._unreadable

    def state(self) -> Iterator[Named]:
        """Yield the optimizer's state, and the options of its groups."""
        torch = sys.modules["torch"]
        left = [_MOST_OBJECTS * 100]
        state = self._optimizer.state
        for parameter, _ in self._parameters:
            if parameter in state:
                yield from _values_in(torch, state[parameter], self._names[id(parameter)], 0, left)
        for number, group in enumerate(self._groups):
            options = {key: value for key, value in group.items() if key not in _NO_OPTIONS}
            yield from _values_in(torch, options, f"group{number}", 0, left)


_NO_OPTIONS = ("params", "param_names")


def _values_in(torch: Any, thing: Any, path: str, depth: int, left: list[int]) -> Iterator[Named]:
    """Yield tensors, and numbers and texts as tensors."""
    left[0] -= 1
    if isinstance(thing, torch.Tensor):
        yield path, thing
    elif isinstance(thing, (bool, int, float, str)):
        yield path, _scalar(torch, thing)
    elif isinstance(thing, (dict, UserDict, list, tuple)) and depth < _MOST_DEPTH and left[0] >= 0:
        for key, inner in _items(thing):
            yield from _values_in(torch, inner, f"{path}.{key}", depth + 1, left)


def _scalar(torch: Any, value: bool | int | float | str) -> Any:
    if isinstance(value, bool):
        return torch.tensor(value, dtype=torch.bool, device="cpu")
    if isinstance(value, float):
        return torch.tensor(float(value), dtype=torch.float64, device="cpu")
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return torch.tensor(int(value), dtype=torch.int64, device="cpu")
    return _bytes(str(value).encode("utf-8", "surrogatepass"))


def _double(value: float | None) -> bytes:
    return b"" if value is None else struct.pack("<d", value)


def _bytes(data: bytes) -> Any:
    """Return bytes as a tensor."""
    torch = sys.modules["torch"]
    if not data:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
