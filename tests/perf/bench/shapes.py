"""Loads beside the two of `workload`: other shapes of marks and attributes that people write.

`python -m tests.perf.bench shapes` prints each one's ratios, so that none falls off a cliff unseen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .workload import WITH_ATTRIBUTES, Load, Mark


def _on_steps(make: Callable[[int], list[Mark]]) -> Callable[[str, int], list[Mark]]:
    return lambda name, step: make(step) if name == "step" else []


def _of(phase: str, make: Callable[[int], dict[str, Any]]) -> Callable[[str, int], dict[str, Any]]:
    return lambda name, step: make(step) if name == phase else {}


def _numbered(name: str, value: Any, step: int, kind: str = "point") -> Mark:
    return Mark(name, value, {"step": step}, kind)


def _three(step: int) -> dict[str, Any]:
    return {"step": step, "epoch": step // 100, "lr": random.random()}


_MODE = WITH_ATTRIBUTES.attrs
_LOSS = WITH_ATTRIBUTES.marks

SHAPES = [
    Load(
        "three attributes", _on_steps(lambda s: [Mark("loss", random.random(), _three(s))]), _MODE
    ),
    Load(
        "attributes that differ on each phase", _LOSS, lambda _, s: {"lr": random.random(), "n": s}
    ),
    Load("a text that differs", _LOSS, _of("data_load", lambda s: {"file": f"/data/{s:05d}.tar"})),
    Load("marks on each phase", lambda n, s: [_numbered(n + "_ms", random.random(), s)], _MODE),
    Load("marks on phases, bare", lambda n, _: [Mark(n + "_ms", random.random())]),
    Load(
        "four marks a step",
        _on_steps(
            lambda s: [_numbered(n, random.random(), s) for n in ("loss", "acc", "lr", "gn")]
        ),
        _MODE,
    ),
    Load(
        "names and texts beyond ASCII",
        _on_steps(
            lambda s: [Mark("perte é中", random.random(), {"étape": s, "texte": f"日本 {s}"})]
        ),
        _of("forward", lambda s: {"modé": f"träin{s % 7}"}),
    ),
    Load("text marks", _on_steps(lambda s: [_numbered("note", f"step {s}", s)]), _MODE),
    Load("bool marks", _on_steps(lambda s: [_numbered("ok", s % 3 == 0, s)]), _MODE),
    Load("int marks", _on_steps(lambda s: [_numbered("seen", s * 7, s)]), _MODE),
    Load("NaN marks", _on_steps(lambda s: [_numbered("loss", float("nan"), s)]), _MODE),
    Load("summary marks", _on_steps(lambda s: [_numbered("loss", 0.5, s, "summary")]), _MODE),
    Load("null and bool attributes", _LOSS, lambda _, s: {"a": None, "b": s % 2 == 0}),
    Load(
        "nested attributes",
        _on_steps(lambda s: [Mark("loss", random.random(), {"shape": [s, 3, 224]})]),
        _of("forward", lambda s: {"cfg": {"lr": random.random(), "b": [s, 2]}}),
    ),
    Load(
        "ends at the same time",
        lambda n, s: _LOSS(n, s) if s % 3 == 0 else [],
        lambda n, s: {"k": s} if (s + len(n)) % 2 else {},
    ),
    Load("reserved names", _LOSS, _of("forward", lambda s: {"thread.id": s, "cirron.x": 1})),
]
