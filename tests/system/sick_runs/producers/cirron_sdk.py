"""Runs as cirron-sdk records them: its hooks, and its helpers."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .lives import Life, Part, Unit
from .ours import SESSION, outside, passes


def _their_session(life: Life, id_: str) -> None:
    attrs = {"pid": life.session.pid, "rank": life.rank, "device": "cpu", "mixed_precision": False}
    life.session.scope(SESSION, None, life.start, life.end, id_=id_, attrs=json.dumps(attrs))


def _fetch(life: Life, unit: Unit, parent: str, at: int) -> None:
    """A point `data_load`, whose attribute is the time of the fetch that ended then."""
    part = unit.part("data_load")
    if part is not None:
        attrs = json.dumps({"data_load_ns": part.end - part.start})
        life.session.scope("data_load", parent, at, at, attrs=attrs)


def _work(life: Life, unit: Unit, parent: str) -> int:
    """The phases that cirron-sdk's hooks record; a loss is one more forward."""
    session, end = life.session, unit.start
    for part in unit.parts:
        if part.name in ("data_load", "zero_grad", "h2d"):
            continue
        name = "forward" if part.name == "loss" else part.name
        attrs = '{"mode": "train"}' if name == "forward" else "{}"
        session.scope(name, parent, part.start, part.end, attrs=attrs)
        end = part.end
    return end


def hooks(life: Life, id_: str) -> None:
    """cirron-sdk's hooks: a fetch is an attribute; an evaluation is an epoch without optimizer."""
    session, number = life.session, 0
    _their_session(life, id_)
    for _, units in life.epochs():
        of_epoch = session.new_id()
        for unit in units:
            begin = unit.fetched
            step = session.scope("step", of_epoch, begin, unit.end, index=unit.in_epoch)
            _fetch(life, unit, step, begin)
            _work(life, unit, step)
            life.mark(unit, step)
            for part in unit.after:
                if part.name != "eval":
                    session.scope(part.name, of_epoch, part.start, part.end)
        session.scope("epoch", id_, units[0].start, units[-1].end, index=number, id_=of_epoch)
        number += 1
        for part in units[-1].after:
            if part.name == "eval":
                of_eval = session.scope("epoch", id_, part.start, part.end, index=number)
                step = session.scope("step", of_eval, part.start, part.end, index=0)
                passes(life, part, step)
                number += 1


def batches(life: Life, id_: str) -> None:
    """cirron-sdk's `ci.epochs` and `ci.batches`: each step is inside the step ahead of it."""
    session, above = life.session, id_
    _their_session(life, id_)
    outer = above
    for epoch, units in life.epochs():
        of_epoch = session.new_id()
        parent = of_epoch
        for unit in units:
            begin = unit.fetched
            step = session.new_id()
            _fetch(life, unit, step, begin)
            part = unit.part("data_load")
            fetch = {"data_load_ns": 0 if part is None else part.end - part.start}
            batch = session.scope("batch", step, begin, unit.end, index=unit.in_epoch,
                                  attrs=json.dumps(fetch))  # fmt: skip
            end = _work(life, unit, batch)
            session.scope("step", parent, begin, max(begin, end), index=unit.in_epoch, id_=step)
            life.mark(unit, batch)
            for part in unit.after:
                session.scope(part.name, of_epoch, part.start, part.end)
            parent = step
        end = units[-1].end
        session.scope("epoch", outer, units[0].start, end, index=epoch, id_=of_epoch)
        outer = of_epoch


def manual(life: Life, id_: str) -> None:
    """cirron-sdk with own scopes: `batch` with its phases, and `validation`."""
    session = life.session
    _their_session(life, id_)
    for epoch, units in life.epochs():
        of_epoch = session.new_id()
        for unit in units:
            batch = session.scope("batch", of_epoch, unit.start, unit.end, index=unit.in_epoch)
            for part in unit.parts:
                session.scope(part.name, batch, part.start, part.end)
            life.mark(unit, batch)
            for part in unit.after:
                name = "validation" if part.name == "eval" else part.name
                outside(life, part._replace(name=name), of_epoch)
        end = max([units[-1].end, *(part.end for part in units[-1].after)])
        session.scope("epoch", id_, units[0].start, end, index=epoch, id_=of_epoch)


def trainer(life: Life, id_: str) -> None:
    """cirron-sdk in transformers' Trainer: two micro steps, and `data_load` beside the steps."""
    session = life.session
    _their_session(life, id_)
    for epoch, units in life.epochs():
        of_epoch = session.new_id()
        for unit in units:
            begin = unit.fetched
            _fetch(life, unit, of_epoch, begin)
            step = session.scope("step", of_epoch, begin, unit.end, index=unit.number)
            work = [each for each in unit.parts if each.name in ("forward", "backward")]
            if len(work) == 2:
                for name, start, end in _halves(*work):
                    session.scope(name, step, start, end)
            last = unit.part("optimizer_step")
            if last is not None:
                session.scope("optimizer_step", step, last.start, last.end)
            life.mark(unit, step)
            for part in unit.after:
                session.scope(part.name, of_epoch, part.start, part.end)
        session.scope("epoch", id_, units[0].start, units[-1].end, index=epoch, id_=of_epoch)


def _halves(forward: Part, backward: Part) -> Iterator[tuple[str, int, int]]:
    """Divide a forward and a backward into those of two micro steps, which take as long."""
    first, second = forward.end - forward.start, backward.end - backward.start
    gap, at = backward.start - forward.end, forward.start
    for half in range(2):
        for name, length in (("forward", first), ("backward", second)):
            part = length // 2 if half == 0 else length - length // 2
            yield name, at, at + part
            at += part
        at += gap if half == 0 else 0
