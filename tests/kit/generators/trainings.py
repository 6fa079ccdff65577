"""Several trainings in the processes of a spool: the attribute `training` of steps, and marks."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

from tests.kit.spools.made import encoded, mark

Files = list[tuple[str, bytes]]
_ODD: tuple[Any, ...] = (
    0, -1, 1.0, 2.5, "1", True, None, [1], 2**63 - 1, -(2**63), 2**63, 2**70,
)  # fmt: skip


def with_trainings(seed: int, files: Files) -> Files:
    """Return the files with the steps of each process in up to four trainings.

    The numbers rise with the start of the steps, or fall, or are odd values. A named training has a
    mark. Some recordings are unchanged.
    """
    chance = random.Random(f"trainings {seed}")  # not related to other choices by the seed
    way = chance.choice(["none", "rising", "rising", "falling", "odd"])
    batches = [(name, parsed(data), data) for name, data in files]
    steps = sorted(
        (span for _, batch, _ in batches for span in batch.get("spans", ())
         if span.get("name") == "step" and isinstance(span.get("start_ns"), int)),
        key=lambda span: span["start_ns"],
    )  # fmt: skip
    if way == "none" or not steps:
        return files
    by_process: dict[Any, list[dict[str, Any]]] = {}
    for span in steps:
        by_process.setdefault(repr((span.get("pid"), span.get("rank"))), []).append(span)
    for spans in by_process.values():
        count = chance.randint(2, 4)
        for place, span in enumerate(spans):
            number: Any = place * count // len(spans)
            if way == "falling":
                number = count - number
            if way == "odd" and chance.random() < 0.3:
                number = chance.choice(_ODD)
            if number != 0 or way == "odd":
                span["attrs"] = {**_attributes(span), "training": number}
    first = next(batch for _, batch, _ in batches if batch.get("spans"))
    first["marks"] = [
        *first.get("marks", ()),
        mark(1 << 50, 1, span_id=steps[-1].get("id"), name="training", value=1,
             ts_ns=steps[-1]["start_ns"], attrs={"name": "second"}),
    ]  # fmt: skip
    return [(name, encoded(batch) if batch else data) for name, batch, data in batches]


def parsed(data: bytes) -> dict[str, Any]:
    """Return a batch; an empty one if the file is damaged."""
    with contextlib.suppress(ValueError):
        batch = json.loads(data)
        return batch if isinstance(batch, dict) else {}
    return {}


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    attributes = span.get("attrs")
    return attributes if isinstance(attributes, dict) else {}
