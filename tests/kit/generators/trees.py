"""Spools with random trees, among them all oddities that a report has a rule for."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from cirron_otel.core.records.step_summaries import INSIDE, inside_rows, text_of
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    mark,
    span,
)

NAMES = (
    "cirron.session", "epoch", "step", "step", "step", "step", "micro_step", "data_load", "h2d",
    "forward", "backward", "optimizer_step", "clip_grad", "collective", "eval", "recompute",
    "save_checkpoint", "Load_CHECKPOINT", "all_reduce", "mine", "traceml", "", "request",
)  # fmt: skip
MARKS = (
    "loss", "eval_loss", "lr", "memory", "memory.warning", "hw.temperature", "oom", "grad",
    "process.cpu.utilization", "cirron.overhead_ns", "stormlog.sample", "", "Loss",
)  # fmt: skip
SESSION = {"status": {"code": 2, "message": "ValueError: no"}}


def random_spool(seed: int, size: int = 120) -> list[tuple[str, bytes]]:
    """The batch files of a random recording."""
    chance = random.Random(seed)
    spans = [_span(chance, number, size) for number in range(size)]
    if seed % 3 == 0:
        spans += [dict(chance.choice(spans)) for _ in range(3)]
    marks = [_mark(chance, number, size) for number in range(size // 2)]
    if seed % 4 == 1:
        _summarise(chance, spans, has_both=seed % 8 == 1)
    if seed % 5 == 0:
        _make_odd(chance, spans, marks)
    chance.shuffle(spans)
    count = chance.randint(1, 8)
    batches = [
        made(number, spans=spans[number::count], marks=marks[number::count])
        for number in range(count)
    ]
    return [
        (f"{each['created_ns']:020d}-{each['batch_id']}.json", encoded(each)) for each in batches
    ]


def training(ranks: int, steps: int, seed: int = 0) -> list[tuple[str, bytes]]:
    """The batch files of an ordinary recording: sessions, epochs, steps of four phases, losses."""
    return list(long_training(ranks, steps, seed=seed))


def long_training(
    ranks: int, steps: int, epochs: int = 2, seed: int = 0
) -> Iterator[tuple[str, bytes]]:
    """The files one by one, one of each rank and epoch, with `steps` steps of five spans."""
    chance = random.Random(seed)
    for rank in range(ranks):
        yield from _of_rank(chance, rank, steps, epochs)


def _of_rank(
    chance: random.Random, rank: int, steps: int, epochs: int
) -> Iterator[tuple[str, bytes]]:
    first = (rank + 1) << 32
    session, number, now = first, first, EPOCH_NS
    fields = {"rank": rank, "pid": 100 + rank}
    for epoch in range(epochs):
        number += 1
        of_epoch, begun = number, now
        spans, marks = [], []
        for index in range(steps):
            number += 1
            step, at = number, now
            for name in ("data_load", "forward", "backward", "optimizer_step"):
                number += 1
                took = chance.randint(50, 1000) * (3 if rank == 1 and name == "forward" else 1)
                spans.append(span(number, step, name=name, start_ns=now, end_ns=now + took,
                                  index=None, **fields))  # fmt: skip
                now += took + chance.randint(0, 20)
            spans.append(span(step, of_epoch, index=index, start_ns=at, end_ns=now, **fields))
            marks.append(mark(number, step, value=chance.random(), ts_ns=now))
            now += chance.randint(0, 100)
        spans.append(span(of_epoch, session, name="epoch", index=epoch, start_ns=begun, end_ns=now,
                          **fields))  # fmt: skip
        if epoch == epochs - 1:
            spans.append(span(session, name="cirron.session", index=None, start_ns=EPOCH_NS,
                              end_ns=now, **fields))  # fmt: skip
        batch = made(rank * max(epochs, 10) + epoch, spans=spans, marks=marks)
        yield f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)


def _span(chance: random.Random, number: int, size: int) -> dict[str, Any]:
    """A span; its parent is mostly an earlier one, or else itself, a later or a missing one."""
    parent = chance.choice([
        *[chance.randrange(max(number - 12, 0), max(number, 1))] * 12, number,
        chance.randrange(size), size + chance.randrange(3), None,
    ])  # fmt: skip
    start = EPOCH_NS + chance.randrange(0, 60) * 500
    name = chance.choice(NAMES)
    if name == "cirron.session" and chance.random() < 0.7:
        parent = None
    changes: dict[str, Any] = {
        "name": name,
        "index": chance.choice([None, 0, 1, 2, 2]),
        "start_ns": start,
        "end_ns": start + chance.choice([0, 100, 700, 700, 5000, 20_000, -300]),
        "rank": chance.choice([0, 0, 0, 1, 1, None]),
        "pid": chance.choice([1, 1, 1, 2]),
    }
    if chance.random() < 0.2:
        changes["gpu_ns"] = chance.choice([0, 50, 400, -5])
    if chance.random() < 0.1:
        changes["memory_peak_bytes"] = chance.randrange(10**9)
    if chance.random() < 0.1:
        changes["attrs"] = {
            "cuda.memory_peak_bytes": chance.randrange(10**9),
            **({"memory_samples": 3} if chance.random() < 0.3 else {}),
        }
    if chance.random() < 0.06:
        changes["otel"] = SESSION
    return span(number, parent, **changes)


def _mark(chance: random.Random, number: int, size: int) -> dict[str, Any]:
    kind, value = chance.choice([
        ("float", 0.25), ("float", 1e-7), ("float", 3.0), ("int", 12), ("string", "12"),
        ("string", "é" * 600), ("bool", True), ("float", None), ("float", chance.random()),
    ])  # fmt: skip
    changes: dict[str, Any] = {
        "name": chance.choice(MARKS), "value_type": kind, "value": value,
        "ts_ns": EPOCH_NS + chance.randrange(40) * 700,
    }  # fmt: skip
    if value is None:
        changes["value_nonfinite"] = chance.choice(["nan", "inf"])
    if changes["name"].startswith(("memory", "stormlog")) and chance.random() < 0.7:
        changes |= {
            "value_type": "int", "value": chance.randrange(10**9),
            "attrs": {
                "device_id": chance.choice([0, -1]), "backend": chance.choice(["cuda", "cpu"]),
                "device_used_bytes": 5 * 10**8, "allocator_reserved_bytes": 4 * 10**8,
                "device_total_bytes": 10**9,
            },
        }  # fmt: skip
        changes.pop("value_nonfinite", None)
    elif changes["name"].startswith("hw."):
        changes["attrs"] = {"hw.id": chance.choice(["cuda:0", "cuda:1"])}
    elif changes["name"] == "oom":
        changes["attrs"] = {"reason": "alloc"}
    return mark(number + 10_000, chance.randrange(size), **changes)


def _summarise(chance: random.Random, spans: list[dict[str, Any]], *, has_both: bool) -> None:
    """Replace some steps by their summaries, or add these."""
    for step in [each for each in spans if each["name"] == "step"][:6]:
        inside = [
            each for each in spans
            if each["parent_id"] == step["id"] and each["end_ns"] >= each["start_ns"]
            and each["id"] != step["id"] and each["name"] != "step"
        ]  # fmt: skip
        summary = step | {"attrs": {INSIDE: text_of(inside_rows(step, inside))}}
        if has_both and chance.random() < 0.5:
            spans.append(summary)
        else:
            spans[spans.index(step)] = summary


def _make_odd(
    chance: random.Random, spans: list[dict[str, Any]], marks: list[dict[str, Any]]
) -> None:
    """Change some records so that their columns differ from them."""
    chance.choice(spans).update(name="n" * 600)
    chance.choice(spans).update(index="a")
    chance.choice(spans).update(attrs={"x": float("nan")})
    chance.choice(spans).update(attrs={"x": ["memory_samples"]})
    chance.choice(spans).update(unknown=1)
    chance.choice(spans).update(start_ns=None)
    chance.choice(spans).update(id=None)
    chance.choice(spans).update(id="short")
    chance.choice(marks).update(value=float("inf"))
    chance.choice(marks).update(id=None, name=None)


HOSTILE_ID = "x' OR 1=1 --\\\"`${spark.master}${env:HOME}\x00\x01é"
"""An id that no engine may interpret."""

MARKS_BY_BYTES = ("loss", "Loss", "_loss", "ä\x00loss", "\U0001f600", "\uffee")


def hostile() -> list[tuple[str, bytes]]:
    """The batch files of a recording with texts that SQL, COPY or a collation could change."""
    files = training(ranks=2, steps=12)
    names = {
        "data_load": "B_\\.\n\\.\nb", "forward": "a,\"b\"'c'\\n\x00", "backward": "_Z\t\x01",
        "optimizer_step": "é{x}:y?%s",
    }  # fmt: skip
    changed = []
    for name, data in files:
        batch = json.loads(data)
        for number, each in enumerate(batch["spans"]):
            each["name"] = names.get(each["name"], each["name"])
            if each["name"] == "step" and each["index"] == 3:
                each["otel"] = {"status": {"code": 2, "message": "'; DROP TABLE span; --\x00"}}
            for key in ("id", "parent_id"):
                each[key] = each[key] and each[key].replace("00000001", HOSTILE_ID, 1)
            if number % 7 == 0:
                each["name"] = each["name"].upper()
        for number, each in enumerate(batch["marks"]):
            each["span_id"] = each["span_id"].replace("00000001", HOSTILE_ID, 1)
            each["name"] = ("loss", "Loss", "_loss", "ä\x00loss", "\U0001f600", "\uffee")[
                number % 6
            ]
        changed.append((name, encoded(batch)))
    return changed
