"""Draws the plan of a healthy run: its size, its times, its noise, and what is usual in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .plan import BETWEEN, Device, Plan

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16)
UNITS: Final = (10, 2000)
NOISE: Final = (0.0, 0.2)
PRICE: Final = (0.03, 0.6)
MOST_SPANS: Final = 50_000
_USUAL_SPANS: Final = 14_000
_FOLLOWERS: Final = {
    "compile": "forward", "all_reduce": "optimizer_step",
    "reduce_scatter": "optimizer_step",
}  # fmt: skip
"""The segments that follow further segments; the others are at the end of the unit."""
WAITS: Final = ("end", "optimizer_step", "between")


@dataclass(frozen=True, slots=True)
class Setting:
    """The kind of run from which a plan is drawn."""

    synchronised: tuple[str, ...] = ()
    """The segments at whose end all ranks meet: none, those of DDP, or those of FSDP."""
    ranks: tuple[int, int] = (1, 1)
    """The smallest and the largest number of ranks."""
    units: tuple[int, int] = UNITS
    has_device: bool = False
    epochs: tuple[int, int] = (1, 8)
    noise: tuple[float, float] = NOISE
    extent_s: tuple[float, float] | None = None
    """The range of the run's extent without a cause, in seconds; None for any."""
    parts: tuple[str, ...] = ()
    """Further segments of each unit, before the end of the unit, without usual time."""
    always: tuple[str, ...] = ()
    """Segments that every run has, of those that only some have."""
    without: tuple[str, ...] = ()
    """Segments that the producer does not record."""
    has_spikes: bool = True
    """Whether a few units may take longer, all together less than any rule reports."""
    has_ends: bool = True
    """Whether the time ahead of the first unit and after the last one is recorded."""
    is_bare: bool = False
    """Whether there are no evaluations, checkpoints and logging scopes."""


def draw_plan(chance: np.random.Generator, setting: Setting) -> Plan:
    """Draw a healthy plan."""
    ranks = _ranks(chance, setting.ranks)
    units = _units(chance, setting, ranks)
    unit_ns = float(np.exp(chance.uniform(np.log(4e6), np.log(1e9))))
    if setting.extent_s is not None:
        unit_ns = chance.uniform(*setting.extent_s) * 1e9 / units
    usual = _usual(chance, setting)
    noise = float(chance.uniform(*setting.noise))
    shape = ranks, units
    ns = {
        name: share * unit_ns * jitter(chance, noise, shape) for name, share in usual.items()
    }  # fmt: skip
    ns |= {name: np.zeros(shape) for name in setting.parts}
    work = unit_ns * units
    most = max(1, min(setting.epochs[1], units // 5))
    epochs = int(chance.integers(min(setting.epochs[0], most), most + 1))
    plan = Plan(
        ranks, units, unit_ns, _order(chance, usual, setting.parts), ns, {},
        setting.synchronised if ranks > 1 else (),
        np.arange(units) * epochs // units, np.arange(units), np.zeros(units, int),
        chance.uniform(0.002, 0.05) * work * jitter(chance, noise, (ranks,)),
        chance.uniform(0.0005, 0.008) * work * np.ones(ranks),
        chance.uniform(0, 0.004) * work * chance.random(ranks),
        np.zeros(ranks), np.full(ranks, units), noise=noise,
    )  # fmt: skip
    if not setting.has_ends:
        plan.start_up *= 0
        plan.shut_down *= 0
    if ranks >= 4 and chance.random() < 0.5:
        plan.skew[ranks // 2 :] = np.rint(chance.uniform(-0.004, 0.004) * work)
    if setting.has_device:
        plan.device = Device(float(chance.uniform(0.04, 0.3)), str(chance.choice(WAITS)))
    _add_habits(chance, plan, setting)
    return plan


def jitter(chance: np.random.Generator, noise: float, shape: tuple[int, ...]) -> np.ndarray:
    """Return factors with a mean of about 1 and a standard deviation of `noise`."""
    return np.clip(1 + noise * chance.standard_normal(shape), 0.2, 3.0)


def _ranks(chance: np.random.Generator, limits: tuple[int, int]) -> int:
    sizes = [size for size in SIZES if limits[0] <= size <= limits[1]]
    return int(chance.choice(sizes))


def _units(chance: np.random.Generator, setting: Setting, ranks: int) -> int:
    """Draw a number of units, so that the number of spans is limited."""
    low, high = setting.units
    spans = 9 + len(setting.parts)
    if chance.random() < 0.9:
        high = min(high, _USUAL_SPANS // (ranks * spans))
    high = max(low, min(high, MOST_SPANS // (ranks * spans)))
    return int(np.exp(chance.uniform(np.log(low), np.log(high + 0.99))))


def _usual(chance: np.random.Generator, setting: Setting) -> dict[str, float]:
    """Draw the share of each segment in a unit."""
    forward = chance.uniform(0.2, 0.35)
    backward = forward * chance.uniform(1.2, 2.2)
    shares = {
        BETWEEN: chance.uniform(0.001, 0.02),
        "data_load": chance.uniform(0.002, 0.025),
        "~load": chance.uniform(0.0, 0.01),
        "h2d": chance.uniform(0.001, 0.02) * (chance.random() < 0.5 or "h2d" in setting.always),
        "forward": forward,
        "loss": forward * chance.uniform(0.01, 0.3),
        "zero_grad": 0.002,
        "backward": backward,
        "optimizer_step": (forward + backward) * chance.uniform(0.03, 0.17),
        "~end": chance.uniform(0.002, 0.025),
    }
    whole = sum(shares.values())
    return {
        name: share / whole
        for name, share in shares.items()
        if share > 0 and name not in setting.without
    }


def _order(
    chance: np.random.Generator, usual: dict[str, float], parts: Sequence[str]
) -> tuple[str, ...]:
    order = [name for name in usual if name != BETWEEN]
    if "zero_grad" in order and chance.random() < 0.5:  # at the beginning of the unit, or here
        order.remove("zero_grad")
        order.insert(order.index("forward"), "zero_grad")
    for part in parts:
        follower = _FOLLOWERS.get(part, "~end")
        order.insert(order.index(follower) if follower in order else len(order), part)
    return tuple(order)


def _add_habits(chance: np.random.Generator, plan: Plan, setting: Setting) -> None:
    """Add the usual evaluations, checkpoints, logs, slow first units, spikes and drifts."""
    shape, work = (plan.ranks, plan.units), plan.unit_ns * plan.units
    ends = np.flatnonzero(np.diff(plan.epochs, append=plan.epochs[-1] + 1))
    for name, most in (("eval", 0.08), ("checkpoint_save", 0.02)):
        if not setting.is_bare and chance.random() < 0.5:
            plan.after[name] = np.zeros(shape)
            share = chance.uniform(0, most) * work / len(ends)
            plan.after[name][:, ends] = share * jitter(chance, plan.noise, (plan.ranks, len(ends)))
    if not setting.is_bare and chance.random() < 0.3:
        every = int(chance.integers(1, 1 + max(1, plan.units // 4)))
        logged = np.arange(plan.units) % every == every - 1
        share = chance.uniform(0, 0.02) * work / max(1, logged.sum())
        plan.after["log"] = logged * share * jitter(chance, plan.noise, shape)
    if chance.random() < 0.5:  # slow first units
        weights = np.array([4.0, 2.0, 1.0])[: int(chance.integers(1, 4))]
        slow = chance.uniform(0, 0.03) * work * weights / weights.sum()
        plan.ns["forward"][:, : len(weights)] += slow
        plan.warm_up_ns += float(slow.sum()) * plan.ranks
    if chance.random() < 0.3:  # a drift that no rule may report
        plan.ns["forward"] *= 1 + chance.uniform(-0.03, 0.03) * np.arange(plan.units) / plan.units
    for _ in range(int(chance.integers(0, 4)) if setting.has_spikes else 0):
        spike = chance.uniform(0.5, 6) * plan.unit_ns
        if spike < 0.004 * work:
            unit = int(chance.integers(plan.units // 8, plan.units - 1))
            name = str(
                chance.choice([n for n in ("data_load", "forward", BETWEEN) if n in plan.ns])
            )
            plan.ns[name][int(chance.integers(plan.ranks)), unit] += spike
