"""A made spool: steps of five scopes and a mark, as a training loop leaves them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

START_NS = 1_795_197_734_691_234_492
PHASES = ("data_load", "forward", "backward", "optimizer_step")


def batches(number: int, steps: int = 100, *, native: bool = True) -> Iterator[tuple[str, bytes]]:
    """`number` batches of `steps` steps under one epoch, then the epoch and the session.

    Native ids share the session's lower half, as our own SDK makes them; the others are those of
    cirron-sdk, 16 random bytes.
    """
    lower = os.urandom(8).hex()
    session = os.urandom(8).hex() + lower

    def new_id() -> str:
        return os.urandom(8).hex() + (lower if native else os.urandom(8).hex())

    epoch = new_id()
    now = START_NS
    for batch in range(number):
        spans: list[dict[str, Any]] = []
        marks = []
        for step in range(steps):
            own, start = new_id(), now
            for phase in PHASES:
                spans.append(_span(new_id(), phase, own, None, now, now + 1_000_000))
                now += 1_000_000
            mark = {
                "id": new_id(),
                "span_id": own,
                "name": "loss",
                "value_type": "float",
                "value": random.random(),
                "attrs": {},
                "ts_ns": now,
                "kind": "point",
            }
            now += 1000
            marks.append(mark)
            spans.append(_span(own, "step", epoch, batch * steps + step, start, now, [mark["id"]]))
        yield _sealed(now, spans, marks)
    last = [
        _span(epoch, "epoch", session, 0, START_NS - 1, now + 1),
        _span(session, "cirron.session", None, None, START_NS - 2, now + 2),
    ]
    yield _sealed(now + 3, last, [])


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
        "sdk_version": "0.3.0",
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
