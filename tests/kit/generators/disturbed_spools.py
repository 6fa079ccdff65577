"""Changes to the scopes of spools: overlapping, nested, negative, repeated, lost and odd ones."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.kit.spools.made import encoded

Files = list[tuple[str, bytes]]
Record = dict[str, Any]
_LONG = 10**12
_RARE = 0.05


def disturbed(chance: random.Random, files: Files) -> Files:
    """Return the files with some of their scopes changed, all in one to three ways."""
    ways = chance.sample(_WAYS, chance.randint(1, 3))
    share = chance.choice([_RARE, _RARE, 0.3])
    batches: list[tuple[str, Record | None, bytes]] = []
    for name, data in files:
        batch = None
        with contextlib.suppress(ValueError):
            batch = json.loads(data)
        batches.append((name, batch if isinstance(batch, dict) else None, data))
    spans = [
        span for _, batch, _ in batches if batch is not None for span in batch.get("spans", ())
    ]
    for span in [each for each in spans if _is_timed(each)]:
        if chance.random() < share:
            chance.choice(ways)(chance, span, spans)
    if _repeat in ways and spans:
        _, batch, _ = chance.choice([each for each in batches if each[1] and each[1].get("spans")])
        assert batch is not None
        batch["spans"] += [dict(chance.choice(spans)) for _ in range(3)]
    return [(name, data if batch is None else encoded(batch)) for name, batch, data in batches]


def _is_timed(span: Record) -> bool:
    return isinstance(span.get("start_ns"), int) and isinstance(span.get("end_ns"), int)


def _overlap(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Begin earlier, or end later, than the scopes around it."""
    del spans
    length = abs(span["end_ns"] - span["start_ns"])
    span["start_ns"] -= chance.choice([0, length // 2, 3 * length])
    span["end_ns"] += chance.choice([0, length // 2, 3 * length])


def _turn(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """End ahead of the start, or at it."""
    del spans
    start, end = span["start_ns"], span["end_ns"]
    span["end_ns"] = chance.choice([start, 2 * start - end, start - 1])


def _nest(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Have another parent, which may be below it."""
    span["parent_id"] = chance.choice([chance.choice(spans).get("id"), span.get("id"), None])


def _rename(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Have the name of another scope."""
    name = chance.choice(spans).get("name")
    span["name"] = chance.choice([name, name, "step", "evaluation", "gc", "compile", "log"])


def _move(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Take place at another time, or in another process, thread or rank."""
    other = chance.choice(spans)
    if chance.random() < 0.5 and _is_timed(other):
        length = span["end_ns"] - span["start_ns"]
        span["start_ns"] = other["start_ns"]
        span["end_ns"] = other["start_ns"] + length
        return
    name = chance.choice(["pid", "thread_id", "rank"])
    span[name] = chance.choice([other.get(name), None, 3])


def _time_on_device(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Have a time on the device: none, a negative one, or more than on the host."""
    del spans
    length = span["end_ns"] - span["start_ns"]
    span["gpu_ns"] = chance.choice([0, -5, length, 5 * abs(length), None])


def _far(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Take hours, or begin hours earlier."""
    del spans
    name = chance.choice(["start_ns", "end_ns"])
    span[name] += chance.choice([_LONG, -_LONG])


def _repeat(chance: random.Random, span: Record, spans: Sequence[Record]) -> None:
    """Have the id of another scope."""
    if chance.random() < 0.1:
        span["id"] = chance.choice(spans).get("id")


_WAYS: Sequence[Callable[[random.Random, Record, Sequence[Record]], None]] = (
    _overlap, _turn, _nest, _rename, _move, _time_on_device, _far, _repeat,
)  # fmt: skip
