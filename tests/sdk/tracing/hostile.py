"""Arguments that nobody should pass, and somebody will."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from opentelemetry.trace import SpanContext, TraceFlags


class HostileError(RuntimeError):
    """What hostile objects raise."""


def _raise(*_: Any, **__: Any) -> Any:
    raise HostileError("hostile")


_METHODS = (
    "str", "repr", "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "index", "int", "float",
    "len", "iter", "next", "contains", "getitem", "getattr", "format", "fspath", "call", "enter",
    "exit", "add", "radd", "sub", "truediv", "neg", "abs", "trunc", "await", "aiter", "bytes",
    "length_hint", "reduce_ex", "copy", "deepcopy", "instancecheck", "set", "setattr",
)  # fmt: skip


def _hostile(name: str, base: type, **more: Any) -> type:
    body = {f"__{method}__": _raise for method in _METHODS} | more
    return type(name, (base,), body)


Everything = _hostile("Everything", object)
Lying = _hostile("Lying", object, __class__=property(_raise))


def _spoilt(name: str, base: type, *methods: str) -> Any:
    return type(name, (base,), dict.fromkeys(methods, _raise))


Name = _spoilt("Name", str, "__str__", "__repr__", "__hash__", "__eq__", "startswith", "encode")
Number = _spoilt(
    "Number", int, "__int__", "__index__", "__str__", "__repr__", "__eq__", "__lt__", "__le__",
    "__gt__", "__ge__", "__hash__",
)  # fmt: skip
Real = _spoilt("Real", float, "__float__", "__str__", "__repr__", "__eq__", "__hash__")
Mapped = _spoilt(
    "Mapped", dict, "items", "keys", "values", "get", "copy", "__iter__", "__len__", "__bool__"
)
Listed = _spoilt("Listed", list, "__iter__", "__len__", "__bool__", "__getitem__")


class Tensor:
    """A tensor whose device is gone."""

    dtype = "float32"
    shape = ()
    device = "cpu"
    item = _raise


class Far(Tensor):
    """One that is on a device, and fails when it is read there."""

    device = SimpleNamespace(type="cuda")

    def detach(self) -> Far:
        return self

    def clone(self) -> Far:
        return self


def self_referencing() -> list[Any]:
    endless: list[Any] = []
    endless += [endless] * 10
    return endless


def self_containing() -> dict[str, Any]:
    endless: dict[str, Any] = {}
    endless |= {"a": endless, "b": [endless, endless]}
    return endless


def deep() -> Any:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    return value


def values() -> dict[str, Any]:
    """Each of them new, by a name for people."""
    return {
        "everything raises": Everything(),
        "class raises": Lying(),
        "raising str": Name("name"),
        "raising int": Number(3),
        "raising float": Real(0.5),
        "raising dict": Mapped(a=1),
        "raising list": Listed([1]),
        "tensor": Tensor(),
        "far tensor": Far(),
        "none": None,
        "class": Everything,
        "object": object(),
        "function": _raise,
        "generator": (number for number in itertools.count()),
        "huge text": "x" * 1_100_000,
        "surrogates": "\ud800 \udfff",
        "nul": "a\0b",
        "empty": "",
        "huge int": 10**5000,
        "negative": -1,
        "nan": float("nan"),
        "infinity": float("inf"),
        "complex": 1j,
        "bytes": b"\xff\x00",
        "list": [1, "a", None],
        "endless list": self_referencing(),
        "endless dict": self_containing(),
        "deep": deep(),
        "odd keys": {1: 2, None: 3, (): 4, "\ud800": 5},
        "set": {1, 2},
        "span context": SpanContext(1, 2, False, TraceFlags(1)),
        "exception": HostileError("x"),
        "true": True,
        "ellipsis": ...,
    }
