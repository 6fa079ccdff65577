"""Made spools: steps of four phases and what a training loop attaches to them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

START_NS = 1_795_197_734_691_234_492
PHASES = ("data_load", "forward", "backward", "optimizer_step")


class Mark(NamedTuple):
    """A mark, without its ids and its time."""

    name: str
    value: Any
    attrs: dict[str, Any] = {}  # noqa: RUF012 - nothing changes it
    kind: str = "point"


def _no_attrs(name: str, step: int) -> dict[str, Any]:
    return {}


def _loss(name: str, step: int) -> list[Mark]:
    return [Mark("loss", random.random())] if name == "step" else []


class Load(NamedTuple):
    """What the scopes of a spool carry."""

    label: str
    marks: Callable[[str, int], list[Mark]] = _loss
    """The marks of a scope, by its name and the number of the step."""
    attrs: Callable[[str, int], dict[str, Any]] = _no_attrs
    """The attributes of a scope, likewise."""


def _numbered_loss(name: str, step: int) -> list[Mark]:
    return [Mark("loss", random.random(), {"step": step})] if name == "step" else []


def _mode(name: str, step: int) -> dict[str, Any]:
    return {"mode": "train"} if name == "forward" else {}


BARE = Load("bare marks and phases")
WITH_ATTRIBUTES = Load("attributes on marks and phases", _numbered_loss, _mode)
LOADS = (WITH_ATTRIBUTES, BARE)
"""Of the benchmarks of the converter."""


def batches(
    number: int, steps: int = 100, *, native: bool = True, load: Load = BARE
) -> Iterator[tuple[str, bytes]]:
    """`number` batches of `steps` steps under one epoch, then the epoch and the session.

    Native ids share the session's lower half, as our own SDK makes them; the others are those of
    cirron-sdk, 16 random bytes.
    """
    lower = os.urandom(8).hex()
    session = os.urandom(8).hex() + lower

    def new_id() -> str:
        return os.urandom(8).hex() + (lower if native else os.urandom(8).hex())

    def close(name: str, own: str, parent: str, index: int | None, start: int, step: int) -> None:
        nonlocal now
        mark_ids = []
        for mark in load.marks(name, step):
            mark_ids.append(new_id())
            marks.append(_mark(mark, mark_ids[-1], own, now))
            now += 1000
        span = _span(own, name, parent, index, start, now, mark_ids)
        spans.append(span | {"attrs": load.attrs(name, step)})

    epoch = new_id()
    now = START_NS
    for batch in range(number):
        spans: list[dict[str, Any]] = []
        marks: list[dict[str, Any]] = []
        for step in range(batch * steps, (batch + 1) * steps):
            own, start = new_id(), now
            for phase in PHASES:
                now += 1_000_000
                close(phase, new_id(), own, None, now - 1_000_000, step)
            close("step", own, epoch, step, start, step)
        yield _sealed(now, spans, marks)
    last = [
        _span(epoch, "epoch", session, 0, START_NS - 1, now + 1),
        _span(session, "cirron.session", None, None, START_NS - 2, now + 2),
    ]
    yield _sealed(now + 3, last, [])


def _mark(mark: Mark, own: str, span_id: str, now: int) -> dict[str, Any]:
    types = {float: "float", int: "int", str: "string", bool: "bool"}
    is_nan = mark.value != mark.value
    record = {
        "id": own,
        "span_id": span_id,
        "name": mark.name,
        "value_type": types[type(mark.value)],
        "value": None if is_nan else mark.value,
        "attrs": mark.attrs,
        "ts_ns": now,
        "kind": mark.kind,
    }
    return record | {"value_nonfinite": "nan"} if is_nan else record


def _span(
    own: str,
    name: str,
    parent: str | None,
    index: int | None,
    start: int,
    end: int,
    marks: Any = (),
) -> dict[str, Any]:
    return {
        "id": own,
        "name": name,
        "parent_id": parent,
        "index": index,
        "start_ns": start,
        "end_ns": end,
        "cpu_ns": None,
        "gpu_ns": None,
        "memory_peak_bytes": None,
        "thread_id": 140429488208768,
        "pid": 17204,
        "rank": 0,
        "attrs": {},
        "mark_ids": list(marks),
    }


def _sealed(now: int, spans: list[Any], marks: list[Any]) -> tuple[str, bytes]:
    batch_id = os.urandom(16).hex()
    batch = {
        "schema_version": 1,
        "sdk_version": "0.3.0+cirron-otel.0",
        "batch_id": batch_id,
        "created_ns": now,
        "spans": spans,
        "marks": marks,
        "snapshots": [],
    }
    return f"{now:020d}-{batch_id}.json", orjson.dumps(batch)


def write(folder: Path, size: int, steps: int = 400) -> int:
    """A spool of about `size` bytes in `folder`; returns its number of spans."""
    spool = folder / "spool"
    spool.mkdir(parents=True)
    per_batch = 1773 * steps
    spans = 0
    for name, data in batches(max(1, size // per_batch), steps):
        (spool / name).write_bytes(data)
        spans += 5 * steps
    return spans - 5 * steps + 2
