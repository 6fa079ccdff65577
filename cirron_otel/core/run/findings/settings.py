"""Advice that depends on the configuration of the training, where it is recorded."""

from __future__ import annotations

import math
from typing import Final

from .... import semconv as sc
from ...nouns import count
from .assessment import Assessment
from .words import time

_LESS_WORK: Final = "decode, resize or tokenize once, ahead of the training"
_BATCHES: Final = "copy smaller batches: integers or half precision, and convert on the device"
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
    rest_ns = max(unit_ns - each_ns, 1.0)
    work_ns = each_ns if workers == 0 else workers * unit_ns
    needed = max(math.ceil(work_ns / rest_ns), workers + 1)
    cpus = _cpus(assessment)
    on = "" if cpus is None else f" on {count(cpus, 'CPU')}"
    known = f"num_workers is {workers}{on}; loading takes {time(each_ns)} a {assessment.unit}"
    if cpus is None or needed <= cpus:
        hide = "1 worker hides" if needed == 1 else f"about {needed} workers hide"
        more = f"{known}, {hide} it: DataLoader(num_workers={needed}{options})"
        return (more, less_work), 1.0
    if workers >= cpus:
        return (f"{known}, about {needed} would hide it, more than the CPUs: {less_work}",), 1.0
    saved_ns = unit_ns - max(rest_ns, work_ns / cpus)
    part = min(max(saved_ns / each_ns, 0.0), 1.0) if each_ns else 1.0
    return (f"{known}, about {needed} workers would hide it, and {cpus} a part of it:"
            f" DataLoader(num_workers={cpus}{options})", less_work), part  # fmt: skip


def advice_of(kind: str, assessment: Assessment, usual: Texts) -> Texts:
    """Return the advice of a kind, without what the training already does."""
    facts = assessment.facts
    if kind == "H2D_BOUND" and facts.setting(sc.LOADER_PINNED) is True:
        return ("copy asynchronously: .to(device, non_blocking=True); pin_memory is on", _BATCHES)
    if kind == "OPTIMIZER_HEAVY" and facts.setting(sc.OPTIMIZER_FUSED) is True:
        return usual[1:]
    name = facts.setting(sc.OPTIMIZER_NAME)
    if kind == "OPTIMIZER_HEAVY" and name is not None:
        return (f"a fused optimizer: {name}(..., fused=True), or foreach=True", *usual[1:])
    if kind == "COMMUNICATION_BOUND" and facts.setting(sc.DDP_FIND_UNUSED) is True:
        return ("find_unused_parameters is on: turn it off if every parameter is used", *usual)
    if kind == "FORWARD_HEAVY" and facts.setting(sc.MODEL_COMPILED) is True:
        return ("fewer and larger operations in forward; the model is compiled",)
    return usual


def _cpus(assessment: Assessment) -> int | None:
    """Return the CPUs that each rank may use; None if they are not recorded."""
    facts = assessment.facts
    numbers = [facts.setting(each) for each in (sc.CPU_ALLOWED, sc.CPU_LIMIT)]
    known = [each for each in numbers if isinstance(each, (int, float)) and each > 0]
    if not known:
        return None
    ranks = len({lane.rank for lane in assessment.ledger.lanes})
    hosts = max(len(set(facts.hosts.values())), 1)
    return max(int(min(known) / max(math.ceil(ranks / hosts), 1)), 1)
