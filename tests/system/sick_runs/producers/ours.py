"""Runs as cirron-otel records them."""

from __future__ import annotations

import json
from typing import Final

from .lives import Life, Part

SESSION: Final = "cirron.session"
"""The name of the scope of a session."""


def record(life: Life, id_: str) -> None:
    """cirron-otel: sessions, epochs, steps with phases, evaluations and checkpoints."""
    session = life.session
    session_of(life, id_, dict(life.case.session_attributes))
    for epoch, units in life.epochs():
        of_epoch = session.new_id()
        for unit in units:
            attrs = {"epoch": epoch, "global_step": unit.number, **life.peaks(unit)}
            if unit.training:
                attrs["training"] = unit.training
            step = session.scope("step", of_epoch, unit.start, unit.end, index=unit.in_epoch,
                                 attrs=json.dumps(attrs))  # fmt: skip
            for part in unit.parts:
                session.scope(part.name, step, part.start, part.end, gpu=part.gpu)
            life.mark(unit, step)
            life.sample(unit, step)
            if life.case.overhead is not None:
                spent = int(life.case.times.own[life.case.overhead][life.rank, unit.place])
                session.mark(step, "cirron.overhead_ns", spent, unit.end, kind="summary")
            parent = id_ if unit is units[-1] else of_epoch
            for part in unit.after:
                outside(life, part, parent)
        session.scope("epoch", id_, units[0].start, units[-1].end, index=epoch, id_=of_epoch)
    death = life.case.deaths.get(life.rank)
    if death is not None and death.is_out_of_memory and session.open_scopes:
        attrs = {"reason": "torch.OutOfMemoryError", "backend": "cuda", "device_id": 0}
        innermost = max(session.open_scopes)[1]
        session.mark(innermost, "oom", 2**31, death.at, attrs=json.dumps(attrs))


def session_of(life: Life, id_: str, attrs: dict[str, object]) -> None:
    session, death = life.session, life.case.deaths.get(life.rank)
    if death is not None and death.is_out_of_memory:
        attrs["failure_cause"] = "out of memory"
    session.scope(SESSION, None, life.start, life.end, id_=id_, attrs=json.dumps(attrs))


def outside(life: Life, part: Part, parent: str) -> None:
    scope = life.session.scope(part.name, parent, part.start, part.end)
    if part.name in ("eval", "validation"):
        passes(life, part, scope)


def passes(life: Life, part: Part, parent: str) -> None:
    """Divide the time of an evaluation into a few batches."""
    count, length = 3, part.end - part.start
    for number in range(count):
        start = part.start + length * number // count
        middle, end = start + length // (4 * count), part.start + length * (number + 1) // count
        life.session.scope("data_load", parent, start, middle)
        life.session.scope("forward", parent, middle, end)
