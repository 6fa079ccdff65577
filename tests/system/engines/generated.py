"""Generated recordings of every producer, and recordings that are read as one."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tests.kit.generators.cpu_waits import with_cpu_waits
from tests.kit.generators.disturbed_spools import disturbed
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trainings import with_trainings
from tests.kit.generators.trees import random_spool
from tests.kit.spools.made import encoded
from tests.system.sick_runs.case import Case
from tests.system.sick_runs.drawing import Setting, draw_plan
from tests.system.sick_runs.plan import simulate
from tests.system.sick_runs.producers import PRODUCERS, write

from .relations import Files

MOST_TOGETHER: Final = 1 << 12
"""The most recordings that can be one."""
_RANKS: Final = 32
"""More than the ranks of a recording."""
_DISTURBED: Final = 0.4
_ENDS: Final = ((), ("backward",), ("forward", "backward"))
_LARGE: Final = 13
"""One simulated run in 20 is large: it has up to 16 ranks."""
_DIGITS: Final = 5
"""The first digits of an id, which have the number of its recording."""


def recording(seed: int) -> Files:
    """Return the files of a recording: of any producer, a random tree, or a disturbed one."""
    chance = random.Random(seed)
    kind = chance.random()
    if kind < 0.5:
        files = run_spool(seed)
    elif kind < 0.65:
        files = random_spool(seed, chance.choice([10, 40, 120]))
    else:
        files = _simulated(seed)
    files = with_cpu_waits(seed, with_trainings(seed, files))
    return disturbed(chance, files) if chance.random() < _DISTURBED else files


def _simulated(seed: int) -> Files:
    """Return a healthy run of one of the producers of the simulated runs."""
    chance = np.random.default_rng(seed)
    is_large = seed % 20 == _LARGE
    setting = Setting(
        _ENDS[seed % 3], ranks=(1, 16 if is_large else 4), units=(5, 100 if is_large else 12),
        has_device=bool(chance.random() < 0.3),
    )  # fmt: skip
    plan = draw_plan(chance, setting)
    producer = list(PRODUCERS)[int(chance.integers(len(PRODUCERS)))]
    case = Case("identities", seed, producer, plan, simulate(plan))
    case.values["loss"] = chance.random((plan.ranks, plan.units))
    return write(case)


def is_for_engines(files: Files) -> bool:
    """Return whether engines read a recording: it is not foreign, and its units are steps."""
    batches = [json.loads(data) for _, data in files]
    names = {span.get("name") for batch in batches for span in batch["spans"]}
    return "step" in names and not any(
        "resource_spans" in json.dumps(batch.get("otel") or {}) or batch["sdk_version"] == "otlp"
        for batch in batches
    )


def together(recordings: Sequence[Files]) -> Files:
    """Return the files of some recordings as those of one, with ids and ranks of their own."""
    assert len(recordings) <= MOST_TOGETHER
    return [_renamed(number, data) for number, files in enumerate(recordings) for _, data in files]


def _renamed(number: int, data: bytes) -> tuple[str, bytes]:
    batch = json.loads(data)
    batch["batch_id"] = f"{int(batch['batch_id'], 16) ^ (number << 48):032x}"
    for span in batch["spans"]:
        span["id"], span["parent_id"] = _id(number, span["id"]), _id(number, span["parent_id"])
        span["mark_ids"] = [_id(number, each) for each in span.get("mark_ids", ())]
        if type(span.get("rank")) is int:
            span["rank"] += number * _RANKS
    for mark in batch["marks"]:
        mark["id"], mark["span_id"] = _id(number, mark["id"]), _id(number, mark["span_id"])
    header = batch.get("otel")
    if isinstance(header, dict) and "session" in header:
        header["session"] = _id(number, header["session"])
    return f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)


def _id(number: int, id_: Any) -> Any:
    """Return an id of a recording; its first digits are those of a small number."""
    if number and isinstance(id_, str) and len(id_) == 32:
        with contextlib.suppress(ValueError):  # it is not a number
            return f"{int(id_[:_DIGITS], 16) ^ number << 8:05x}{id_[_DIGITS:]}"
    return id_
