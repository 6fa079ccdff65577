"""Requests, imported recordings, and spans of other services."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from .lives import Life
from .ours import SESSION, session_of

_TRACEML: Final = ("data_load", "h2d", "forward", "backward", "optimizer_step")
_FOREIGN: Final = {"data_load": "fetch", "forward": "transform", "optimizer_step": "store"}
_REQUEST: Final = {"data_load": "preprocess", "forward": "model", "optimizer_step": "postprocess"}


def requests() -> Callable[[Life, str], None]:
    """Requests of a service, with own scopes."""

    def record(life: Life, id_: str) -> None:
        session = life.session
        session_of(life, id_, {})
        for unit in life.units:
            attrs = json.dumps({"request_id": f"{unit.number:032x}"})
            request = session.scope("request", id_, unit.start, unit.end, attrs=attrs)
            for part in unit.parts:
                if part.name in _REQUEST:
                    session.scope(_REQUEST[part.name], request, part.start, part.end)

    return record


def traceml(life: Life, id_: str) -> None:
    """The import of a TraceML recording: sums of phases, laid end to end."""
    session, first = life.session, life.units[0]
    session.thread_id = None
    last = life.units[-1]
    start, end = first.start, max(last.end, first.start + 1)
    attrs = {"source": "traceml", "traceml.session_id": "train", "traceml.training_strategy": "ddp"}
    session.scope(SESSION, None, start, end, id_=id_, attrs=json.dumps(attrs))
    for unit in life.units:
        spent = unit.end - unit.fetched
        of_step = {"traceml.phases_are_sums": True, "traceml.step_time_ns": spent}
        step = session.scope("step", id_, unit.start, unit.end, index=unit.number + 1,
                             attrs=json.dumps(of_step | life.peaks(unit)))  # fmt: skip
        at = unit.start
        for part in unit.parts:
            if part.name in _TRACEML:
                session.scope(part.name, step, at, at + part.end - part.start, gpu=part.gpu)
                at += part.end - part.start
        life.sample(unit, id_)


def stormlog(life: Life, id_: str) -> None:
    """The import of a Stormlog recording: phases, and samples of memory."""
    session = life.session
    attrs = {"status": "completed", "source": "stormlog.tracker", "session_id": id_}
    session.scope(SESSION, None, life.start, life.end, id_=id_, attrs=json.dumps(attrs))
    for unit in life.units:
        step = session.scope("train", id_, unit.start, unit.end,
                             attrs=json.dumps({"epoch": unit.epoch}))  # fmt: skip
        for part in unit.parts:
            session.scope(part.name, step, part.start, part.end)
        life.sample(unit, step)


def dgrr(life: Life, id_: str) -> None:
    """The import of a DGRR trace: updates without times, as marks on the session."""
    attrs = {"source": "dgrr", "dgrr.step_count": len(life.units), "dgrr.untimed": True}
    session = life.session
    session.rank = None
    session.scope(SESSION, None, 0, 0, id_=id_, attrs=json.dumps(attrs))
    losses = life.case.values["loss"][life.rank]
    for unit in life.units:
        of_mark = {"record": unit.number, "step_id": unit.number, "batch": unit.number % 4}
        session.mark(id_, "dgrr.step", float(losses[unit.place]), 0, attrs=json.dumps(of_mark))


def foreign(life: Life, id_: str) -> None:
    """Spans of another service: a root, and items with parts."""
    session = life.session
    session.thread_id = None
    scope = {"scope": {"name": "worker", "version": "1"}, "spans": 1}
    resource = {"attributes": {"service.name": "worker"}}
    session.resource_spans = json.dumps(
        {"resource_spans": [{"resource": resource, "scope_spans": [scope]}]}
    )
    session.scope("pipeline", None, life.start, life.end, id_=id_)
    for unit in life.units:
        item = session.scope("item", id_, unit.start, unit.end,
                             attrs=json.dumps({"item": unit.number}))  # fmt: skip
        for part in unit.parts:
            if part.name in _FOREIGN:
                session.scope(_FOREIGN[part.name], item, part.start, part.end)
