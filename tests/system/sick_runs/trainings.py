"""Several trainings in each process of a run, and causes in one of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .causes import Cause, Draw
from .plan import PAUSED, Plan

FEWEST = 30
"""The minimum number of units in a training."""


def several(chance: np.random.Generator, plan: Plan) -> Plan | None:
    """Divide the units into two or three trainings with other unit times, and pauses between."""
    count = int(chance.integers(2, 4))
    if plan.units < count * FEWEST:
        return None
    spare = np.sort(chance.integers(0, plan.units - count * FEWEST + 1, count - 1))
    firsts = np.r_[0, spare + FEWEST * np.arange(1, count)]
    training = np.searchsorted(firsts, np.arange(plan.units), side="right") - 1
    exponents = chance.choice([-1, 1], count) * chance.uniform(0.5, 1.6, count)
    exponents[0] = 0
    exponents[2:] += exponents[1]
    factors = np.exp(exponents)[training]
    ns = {name: times * factors for name, times in plan.ns.items()}
    pauses = np.zeros((plan.ranks, plan.units))
    pauses[:, firsts[1:]] = chance.uniform(0.5, 40, count - 1) * plan.unit_ns
    scale = float(factors.mean())
    epochs = np.zeros(plan.units, int)
    for number in range(count):
        units = int((training == number).sum())
        epochs[training == number] = np.arange(units) * int(chance.integers(1, 4)) // units
    return replace(
        plan, ns=ns | {PAUSED: pauses}, training=training, epochs=epochs,
        start_up=plan.start_up * scale, shut_down=plan.shut_down * scale, late=plan.late * scale,
    )  # fmt: skip


def in_one(draw: Draw) -> Draw:
    """Return a cause in one of the trainings."""

    def of_plan(chance: np.random.Generator, plan: Plan) -> Cause:
        assert plan.training is not None
        number = int(chance.integers(plan.training[-1] + 1))
        places = np.flatnonzero(plan.training == number)
        first = int(places[0])
        ns, after = (
            {name: times[:, places] for name, times in segments.items()}
            for segments in (plan.ns, plan.after)
        )
        inner = replace(
            plan, units=len(places), ns=ns, after=after, epochs=plan.epochs[places],
            numbers=np.arange(len(places)), lives=plan.lives[places],
            counts=np.full(plan.ranks, len(places)), training=None,
        )  # fmt: skip
        cause = draw(chance, inner)
        pattern = []
        for name, times in cause.pattern:
            spread = np.zeros((plan.ranks, plan.units))
            spread[:, places] = times
            pattern.append((name, spread))
        units = cause.units and tuple((low + first, high + first) for low, high in cause.units)
        return replace(cause, pattern=pattern, units=units)

    return of_plan
