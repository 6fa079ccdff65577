"""Advice that depends on the configuration of the training, if it is recorded."""

from __future__ import annotations

import math
from typing import Final

from .... import semconv as sc
from ...nouns import count
from .assessment import Assessment
from .words import time

_LESS_WORK: Final = "decode, resize or tokenize once, ahead of the training"
_BATCHES: Final = "copy smaller batches: integers or half precision, and convert on the device"
_MOST_WORKERS: Final = 64
"""If hiding the loading needs more workers than these, the advice names no number."""
_FUSED: Final = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""The optimizers of torch with the argument `fused`."""
Texts = tuple[str, ...]


def loading_advice(assessment: Assessment, each_ns: float) -> tuple[Texts, float]:
    """Return the advice on loading that takes `each_ns` of each unit.

    The second value is the part of the cost that the first advice saves. With `n` workers that are
    always busy, a batch costs one worker `n` units; loading is hidden if they deliver a batch in
    the rest of a unit.
    """
    facts, unit_ns = assessment.facts, assessment.unit_ns
    workers = facts.setting(sc.LOADER_WORKERS)
    pinned = facts.setting(sc.LOADER_PINNED) is not True and bool(assessment.parts("transfer"))
    options = ", persistent_workers=True" + (", pin_memory=True" if pinned else "")
    less_work = f"less work per sample: {_LESS_WORK}"
    if type(workers) is not int or workers < 0:
        more = f"fetch batches ahead in worker processes: DataLoader(num_workers=...{options})"
        return (more, less_work), 1.0
    rest_ns = unit_ns - each_ns
    work_ns = each_ns if workers == 0 else workers * unit_ns
    cpus = _cpus(assessment)
    on = "" if cpus is None else f" on {count(cpus, 'CPU')}"
    known = f"num_workers is {workers:,}{on}; loading takes {time(each_ns)} a {assessment.unit}"
    if rest_ns <= 0 or work_ns > _MOST_WORKERS * rest_ns:
        return (less_work, f"more workers, which hide only a part of it: {known}"), 1.0
    needed = max(math.ceil(work_ns / rest_ns), workers + 1)
    if cpus is None or needed <= cpus:
        hide = "1 worker hides" if needed == 1 else f"about {needed:,} workers hide"
        more = f"{known}, {hide} it: DataLoader(num_workers={needed}{options})"
        return (more, less_work), 1.0
    if workers >= cpus:
        return (f"{less_work}; {known}, about {needed:,} would hide it",), 1.0
    saved_ns = unit_ns - max(rest_ns, work_ns / cpus)
    part = min(max(saved_ns / each_ns, 0.0), 1.0) if each_ns else 1.0
    return (f"{known}, about {needed:,} workers would hide it, and {cpus} a part of it:"
            f" DataLoader(num_workers={cpus}{options})", less_work), part  # fmt: skip


def advice_of(kind: str, assessment: Assessment, usual: Texts) -> Texts:
    """Return the advice of a kind, without what the training already does."""
    facts = assessment.facts
    if kind == "H2D_BOUND" and facts.setting(sc.LOADER_PINNED) is True:
        return ("copy asynchronously: .to(device, non_blocking=True); pin_memory is on", _BATCHES)
    name = facts.setting(sc.OPTIMIZER_NAME)
    if kind == "OPTIMIZER_HEAVY" and facts.setting(sc.OPTIMIZER_FUSED) is True:
        return usual[1:]
    if kind == "OPTIMIZER_HEAVY" and name in _FUSED:
        is_foreach = facts.setting(sc.OPTIMIZER_FOREACH) is True
        other = "" if is_foreach else ", or foreach=True"
        return (f"a fused optimizer: {name}(..., fused=True){other}", *usual[1:])
    if kind == "OPTIMIZER_HEAVY" and name is not None:
        return (*usual[1:], f"a fused optimizer in place of {name}")
    if kind == "COMMUNICATION_BOUND" and facts.setting(sc.DDP_FIND_UNUSED) is True:
        return ("find_unused_parameters is on: turn it off if every parameter is used", *usual)
    if kind == "FORWARD_HEAVY" and facts.setting(sc.MODEL_COMPILED) is True:
        return ("fewer and larger operations in forward; the model is compiled",)
    return usual


def _cpus(assessment: Assessment) -> int | None:
    """Return the CPUs that each rank may use; None if they are unknown.

    Ranks of a host share its CPUs, unless each may use other ones.
    """
    facts = assessment.facts
    allowed, limit, total = (
        facts.setting(each) for each in (sc.CPU_ALLOWED, sc.CPU_LIMIT, sc.CPU_COUNT)
    )
    allowed = allowed if type(allowed) is int and allowed > 0 else total
    if type(allowed) is not int or allowed <= 0:
        return None
    ranks = {lane.rank for lane in assessment.ledger.lanes}
    hosts = facts.hosts
    if len(ranks) > 1 and not ranks <= hosts.keys():
        return None
    on_host = max((list(hosts.values()).count(each) for each in hosts.values()), default=1)
    is_shared = type(total) is not int or allowed * on_host > total
    cpus = allowed / on_host if is_shared else allowed
    if isinstance(limit, (int, float)) and limit > 0:
        cpus = min(cpus, limit)
    return max(int(cpus), 1)
