"""Waits for a CPU in the processes of a spool: marks as the sampler writes them, and odd ones."""

from __future__ import annotations

import random
from typing import Any

from cirron_otel.semconv import CPU_WAIT_NS
from tests.kit.spools.made import encoded, mark

from .trainings import Files, parsed

_ODD: tuple[tuple[str, Any], ...] = (
    ("int", -1), ("int", 0), ("int", 2**63 - 1), ("int", 2**63), ("float", 5e6), ("bool", True),
    ("string", "5"),
)  # fmt: skip
_FIRST = 1 << 51


def with_cpu_waits(seed: int, files: Files) -> Files:
    """Return the files with readings during the steps of some processes.

    A reading is on a step or on a span of the same batch. Some have the same time, an odd value, or
    more time than there was. Some recordings are unchanged.
    """
    chance = random.Random(f"cpu waits {seed}")  # not related to other choices by the seed
    if chance.random() < 0.5:
        return files
    odd = chance.choice([0.0, 0.0, 0.2])
    batches = [(name, data, parsed(data)) for name, data in files]
    for _, _, batch in batches:
        spans = [span for span in batch.get("spans", ()) if _has_times(span)]
        steps = [span for span in spans if span.get("name") == "step"]
        marks = []
        for step in steps if chance.random() < 0.8 else ():
            if chance.random() < 0.4:
                continue
            ns = max(step["end_ns"] - step["start_ns"], 0)
            kind, value = "int", int(ns * chance.choice([0.01, 0.3, 0.9, 1.5]))
            if chance.random() < odd:
                kind, value = chance.choice(_ODD)
            at = step["start_ns"] + chance.choice([0, ns // 2, ns])
            owner = chance.choice([step, step, chance.choice(spans)]).get("id")
            marks.append(
                mark(_FIRST + chance.getrandbits(50), 1, span_id=owner, name=CPU_WAIT_NS,
                     value_type=kind, value=value, ts_ns=at)
            )  # fmt: skip
        if marks:
            batch["marks"] = [*batch.get("marks", ()), *marks]
    return [(name, encoded(batch) if batch else data) for name, data, batch in batches]


def _has_times(span: dict[str, Any]) -> bool:
    return type(span.get("start_ns")) is int and type(span.get("end_ns")) is int
