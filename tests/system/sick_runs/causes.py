"""Causes of lost time: each adds time to a plan, in a pattern that is drawn.

The amount is fitted, so that the cost of the cause is a wanted share of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .plan import BETWEEN, PAUSED, START_UP, Plan, Times, simulate
from .truth import Expected

Added = list[tuple[str, np.ndarray]]
Claim = Callable[[Plan, Times], float]
"""The cost of a cause by the rules of its kind, ns summed over all ranks."""
Draw = Callable[[np.random.Generator, Plan], "Cause"]
_ROUNDS = 40


@dataclass(slots=True)
class Cause:
    """A planted cause. `pattern` is where its time goes; all patterns together add up to 1."""

    kinds: tuple[str, ...]
    pattern: Added
    claim: Claim | None = None
    """None: the cost is what the run takes longer, summed over all ranks."""
    phase: str | None = None
    ranks: tuple[int, ...] | None = None
    units: tuple[tuple[int, int], ...] | None = None
    every: int | None = None
    moving: bool = False
    gain: float = 1.0
    """The cost of one added ns, about."""
    added_ns: float = 0.0

    def added(self) -> Added:
        """Return the time that the cause adds."""
        return [(name, self.added_ns * times) for name, times in self.pattern]

    def expected(self, cost: float, plan: Plan, times: Times) -> Expected:
        """Return the finding that reports the cause."""
        return Expected(
            self.kinds, cost / times.total, cost / assessed_ns(plan, times, self.kinds[0]),
            self.phase, self.ranks, self.units, self.every, self.moving,
        )  # fmt: skip


@dataclass(slots=True)
class Planted:
    """A plan with causes, its times, and the cost of each cause."""

    plan: Plan
    times: Times
    costs: list[float] = field(default_factory=list)


def plant(plan: Plan, causes: Sequence[Cause], prices: Sequence[float], *, by_weight: bool = False
          ) -> Planted:  # fmt: skip
    """Add causes to a plan, so that each has a cost of a wanted share of the run.

    With `by_weight`, it is a share of the time that severities refer to.
    """
    for _ in range(_ROUNDS):
        planted = _planted(plan, causes)
        is_exact = True
        for cause, price, cost in zip(causes, prices, planted.costs, strict=True):
            whole = planted.times.total
            if by_weight:
                whole = assessed_ns(planted.plan, planted.times, cause.kinds[0])
            missing = price * whole - cost
            is_exact &= abs(missing) < 1e-5 * whole
            cause.added_ns = max(0.0, cause.added_ns + missing / (1 - price) / cause.gain)
        if is_exact:
            break
    return planted


def _planted(plan: Plan, causes: Sequence[Cause]) -> Planted:
    sick = plan.with_added([each for cause in causes for each in cause.added()])
    sick.warm_up_ns += sum(each.added_ns for each in causes if each.kinds[0] == "WARM_UP")
    planted = Planted(sick, simulate(sick))
    for cause in causes:
        if cause.claim is not None:
            planted.costs.append(cause.claim(sick, planted.times))
            continue
        others = [each for other in causes if other is not cause for each in other.added()]
        without = simulate(plan.with_added(others))
        planted.costs.append(float(planted.times.total - without.total))
    return planted


def assessed_ns(plan: Plan, times: Times, kind: str) -> float:
    """Return the time that the severity of a kind refers to."""
    if kind in ("START_UP", "WARM_UP", "RESTARTED"):
        return float(times.total)
    lasts = times.unit_end[np.arange(plan.ranks), plan.counts - 1]
    outside = (times.unit_start[:, 0] - times.first.min()).sum() + (times.last.max() - lasts).sum()
    restarts = times.own[PAUSED].sum() + times.own[START_UP].sum()
    return float(times.total - outside - restarts - plan.warm_up_ns)


# Claims.


def account(*names: str) -> Claim:
    """The cost is the complete own time of some segments."""
    return lambda _, times: float(sum(times.own[each].sum() for each in names if each in times.own))


def above_quarter(_: Plan, times: Times) -> float:
    """The cost of an optimizer: what exceeds a quarter of forward and backward."""
    own = times.own
    usual = own["forward"].sum() + own["backward"].sum()
    optimizer = own["optimizer_step"].sum() + (own["zero_grad"].sum() if "zero_grad" in own else 0)
    return float(optimizer - usual / 4)


def above_forward(_: Plan, times: Times) -> float:
    """The cost of a loss: what exceeds the forward."""
    return float(times.own["loss"].sum() - times.own["forward"].sum())


def until_first_unit(_: Plan, times: Times) -> float:
    """The cost of the start: the time ahead of the first unit."""
    return float((times.unit_start[:, 0] - times.first.min()).sum())


def in_first_units(plan: Plan, _: Times) -> float:
    """The cost of slow first units, also of those that every run may have."""
    return plan.warm_up_ns


def steady_weights(plan: Plan, times: Times) -> dict[str, float]:
    """Return the cost of each kind that is paid in every unit, as a share of the assessed time."""
    own = times.own

    def total(*names: str) -> float:
        return float(sum(own[each].sum() for each in names if each in own))

    waits = [name for name in plan.order if name.startswith("~") and name != "~trace"]
    costs = {
        "INPUT_BOUND": total("data_load"), "H2D_BOUND": total("h2d"),
        "WAIT_HEAVY": total(*waits), "BETWEEN_UNITS": total(BETWEEN),
        "EVALUATION_HEAVY": total("eval"), "CHECKPOINT_HEAVY": total("checkpoint_save", "save"),
        "LOGGING_HEAVY": total("log", "log_metrics", "tensorboard"),
    }  # fmt: skip
    if "backward" in own:
        costs["OPTIMIZER_HEAVY"] = above_quarter(plan, times)
        costs["LOSS_HEAVY"] = total("loss") - total("forward")
    return {kind: cost / assessed_ns(plan, times, kind) for kind, cost in costs.items()}


# Patterns.


def everywhere(chance: np.random.Generator, plan: Plan, weights: np.ndarray | None = None
               ) -> np.ndarray:  # fmt: skip
    """Return a pattern of all ranks and units, or of those with weights, with the plan's noise."""
    shape = plan.ranks, plan.units
    weights = np.ones(shape) if weights is None else np.broadcast_to(weights, shape)
    noisy = weights * np.clip(1 + plan.noise * chance.standard_normal(shape), 0.2, 3)
    found: np.ndarray = noisy / noisy.sum()
    return found


def steady(kind: str, name: str, claim: Claim | None = None, phase: str | None = "") -> Draw:
    """Each unit of each rank takes longer in a segment; `phase` is its recorded name."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        shown = (None if name.startswith("~") else name) if phase == "" else phase
        return Cause((kind,), [(name, everywhere(chance, plan))], claim or account(name), shown)

    return draw


def collective(name: str) -> Draw:
    """Each unit has a collective, which takes equally long in all ranks once all have arrived."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        of_units = np.clip(1 + plan.noise * chance.standard_normal(plan.units), 0.2, 3)
        pattern = np.broadcast_to(of_units, (plan.ranks, plan.units))
        return Cause(("COMMUNICATION_BOUND",), [(name, pattern / pattern.sum())], account(name))

    return draw


def scopes(kind: str, name: str, *, most: int = 30, at_epochs: bool = False) -> Draw:
    """A scope follows some of the units."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        if at_epochs:
            places = np.diff(plan.epochs, append=plan.epochs[-1] + 1) > 0
        else:
            every = int(chance.integers(1, max(2, min(most, plan.units // 3) + 1)))
            places = np.arange(plan.units) % every == every - 1
        return Cause((kind,), [(name, everywhere(chance, plan, places))], account(name))

    return draw


def first_batches(chance: np.random.Generator, plan: Plan) -> Cause:
    """The first fetch of each epoch is slow."""
    firsts = np.diff(plan.epochs, prepend=-1) > 0
    pattern = everywhere(chance, plan, firsts)
    return Cause(("SLOW_FIRST_BATCH",), [("data_load", pattern)], phase="data_load")


def spikes(name: str, *, regular: bool, kind: str = "SPIKES", phase: str | None = "") -> Draw:
    """A few units take many times as long, in all ranks."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        most = max(2, int(plan.units * 0.06))
        count = int(chance.integers(1 if not regular else 2, most + 1))
        low, high = plan.units // 6, plan.units - 1
        if regular:
            count = max(3, count)
            every = max(2, (high - low) // count)
            offset = low + int(chance.integers(0, every))
            places = np.arange(offset, high, every)
        else:
            every = None
            places = np.sort(chance.choice(np.arange(low, high), count, replace=False))
        weights = np.isin(np.arange(plan.units), places)
        shown = (None if name.startswith("~") else name) if phase == "" else phase
        return Cause(
            (kind,), [(name, everywhere(chance, plan, weights))], phase=shown, every=every,
            units=None if regular else tuple((int(at), int(at)) for at in places),
        )  # fmt: skip

    return draw


def interval(name: str) -> Draw:
    """Some units in a row take longer, in all ranks."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        first, last = _interval(chance, plan)
        numbers = np.arange(plan.units)
        weights = (numbers >= first) & (numbers <= last)
        shown = None if name.startswith("~") else name
        pattern = [(name, everywhere(chance, plan, weights))]
        return Cause(("SLOW_INTERVAL",), pattern, phase=shown, units=((first, last),))

    return draw


def _interval(chance: np.random.Generator, plan: Plan) -> tuple[int, int]:
    length = int(chance.uniform(0.12, 0.35) * plan.units)
    first = int(chance.integers(plan.units // 8, plan.units - length))
    return first, first + length - 1


def growing(name: str, phase: str | None = None) -> Draw:
    """The units take longer and longer after the first fifth."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        place = np.arange(plan.units) / plan.units
        pattern = [(name, everywhere(chance, plan, np.maximum(place - 0.2, 0)))]
        shown = phase or (None if name.startswith("~") else name)
        return Cause(("SLOWING_DOWN",), pattern, phase=shown)

    return draw


def straggler(kind: str, *names: str, part: bool = False, most: int = 4) -> Draw:
    """Some ranks take longer, in all units or in some in a row."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        count = int(chance.integers(1, max(1, min(most, plan.ranks // 4)) + 1))
        ranks = np.sort(chance.choice(plan.ranks, count, replace=False))
        weights = np.isin(np.arange(plan.ranks), ranks)[:, None] * np.ones(plan.units)
        units = None
        if part:
            first, last = _interval(chance, plan)
            numbers = np.arange(plan.units)
            weights = weights * ((numbers >= first) & (numbers <= last))
            units = ((first, last),)
        pattern = [(name, everywhere(chance, plan, weights) / len(names)) for name in names]
        phase = names[0] if len(names) == 1 and not names[0].startswith("~") else None
        return Cause(
            (kind,), pattern, phase=phase, ranks=tuple(int(rank) for rank in ranks), units=units,
            gain=plan.ranks / count,
        )  # fmt: skip

    return draw


def moving(kind: str, name: str) -> Draw:
    """In some of the units one rank takes longer, a different one each time."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        share = chance.uniform(0.3, 1.0)
        slow = chance.random(plan.units) < share
        slow[plan.units // 2] = True
        weights = np.zeros((plan.ranks, plan.units))
        weights[chance.integers(0, plan.ranks, plan.units), np.arange(plan.units)] = slow
        pattern = [(name, everywhere(chance, plan, weights))]
        return Cause((kind,), pattern, phase=name, moving=True, gain=float(plan.ranks))

    return draw


def single_rank_scope(kinds: tuple[str, ...], name: str) -> Draw:
    """One rank has a scope after units, for which the others wait."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        every = int(chance.integers(1, 4))
        weights = np.zeros((plan.ranks, plan.units))
        weights[0] = np.arange(plan.units) % every == 0
        pattern = [(name, everywhere(chance, plan, weights))]
        return Cause(kinds, pattern, gain=float(plan.ranks))

    return draw


def start_up(chance: np.random.Generator, plan: Plan) -> Cause:
    """The process takes long until its first unit."""
    del chance
    pattern = np.zeros((plan.ranks, plan.units))
    pattern[:, 0] = 1 / plan.ranks
    return Cause(("START_UP",), [(BETWEEN, pattern)], until_first_unit)


def warm_up(kind: str, name: str, phase: str | None = None) -> Draw:
    """The first units take longer."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        count = int(chance.integers(1, 6))
        weights = np.where(np.arange(plan.units) < count, 1.0 + chance.random(plan.units), 0)
        claim = account(name) if kind == "COMPILATION" else in_first_units
        return Cause((kind,), [(name, everywhere(chance, plan, weights))], claim, phase)

    return draw
