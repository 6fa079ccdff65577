"""Pairs of simulated runs with exact times: equal but for noise, or with a planted change."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.run.choosing import open_chosen_run
from cirron_otel.core.run.comparison import CostChange, compare_costs
from cirron_otel.core.run.costs import LedgerCosts, costs_of
from cirron_otel.core.spool.reader import SpoolReader
from tests.system.sick_runs.case import Case
from tests.system.sick_runs.causes import (
    Cause,
    Draw,
    everywhere,
    growing,
    scopes,
    steady,
    straggler,
)
from tests.system.sick_runs.drawing import Setting, draw_plan, jitter
from tests.system.sick_runs.plan import BETWEEN, Plan, Times, simulate
from tests.system.sick_runs.producers import write
from tests.system.sick_runs.settings import (
    DDP,
    FSDP,
    HOOKS,
    MANUAL,
    ONE,
    TRACEML,
    at_least,
    without_spikes,
)

UNITS: Final = 100
NOISE: Final = (0.0, 0.1)


@dataclass(frozen=True)
class Change:
    """A planted change: `share` of the usual time of a unit is added, by a pattern of units."""

    name: str
    setting: Setting
    cause: Draw | None
    """None for two equal runs."""
    account: str | None = None
    producer: str = "cirron-otel"
    is_removed: bool = False
    """Whether A has the time, and B does not."""
    has_stalls: bool = False
    """Whether units of both runs stall at random."""
    waiting: bool = False
    """Whether the time appears in the ranks that wait: all but the one that is slow."""


def _in(segment: str, account: str, setting: Setting = ONE, **more: object) -> Change:
    cause = steady("ANY", segment)
    return Change(f"{segment}, {account}", setting, cause, account, **more)  # type: ignore[arg-type]


def every(number: int, segment: str) -> Draw:
    """Each unit of a multiple of a number takes longer."""
    return lambda chance, plan: _patterned(
        segment, np.arange(plan.units) % number == number - 1, chance, plan
    )


def one_stall(segment: str) -> Draw:
    """One of the units in the middle takes longer."""

    def draw(chance: np.random.Generator, plan: Plan) -> Cause:
        at = int(chance.integers(plan.units // 4, plan.units // 2))
        return _patterned(segment, np.arange(plan.units) == at, chance, plan)

    return draw


def _patterned(segment: str, where: np.ndarray, chance: np.random.Generator, plan: Plan) -> Cause:
    return Cause(("ANY",), [(segment, everywhere(chance, plan, where))])


_DATA, _FORWARD = _in("data_load", "input"), _in("forward", "forward")
_EVALUATION = Change("eval", ONE, scopes("ANY", "eval", at_epochs=True), "evaluation")
_LOGGING = Change("log", ONE, scopes("ANY", "log", most=4), "logging")
_FOUR: Final = replace(DDP, ranks=(4, 4))

CHANGES: Final[Sequence[Change]] = (
    _DATA, _FORWARD, _EVALUATION, _LOGGING,
    *(replace(each, name=f"{each.name}, removed", is_removed=True)
      for each in (_DATA, _FORWARD, _EVALUATION, _LOGGING)),
    _in("h2d", "transfer", replace(ONE, always=("h2d",))),
    _in("loss", "loss"),
    _in("zero_grad", "optimizer"),
    _in("backward", "backward"),
    _in("optimizer_step", "optimizer"),
    _in("~load", "unattributed"),
    _in("~end", "unattributed"),
    _in(BETWEEN, "between_units"),
    Change("checkpoint_save", ONE, scopes("ANY", "checkpoint_save"), "checkpoint"),
    *(Change(f"every {number}, {segment}", ONE, every(number, segment), account)
      for number, segment, account in (
          (5, "data_load", "input"), (5, "forward", "forward"), (5, BETWEEN, "between_units"),
          (15, "data_load", "input"), (15, BETWEEN, "between_units"))),
    *(Change(f"one stall, {segment}", ONE, one_stall(segment), account)
      for segment, account in (("data_load", "input"), ("backward", "backward"))),
    Change("growing, data_load", ONE, growing("data_load"), "input"),
    _in("data_load", "input", DDP),
    _in("forward", "forward", DDP),
    _in(BETWEEN, "between_units", DDP),
    _in("backward", "backward", FSDP),
    *(Change(f"straggler, {segment}", _FOUR, straggler("ANY", segment, most=1),
             "waiting_for_ranks", waiting=True)
      for segment in ("data_load", "forward")),
    _in("data_load", "input", HOOKS, producer="hooks"),
    _in("loss", "loss", MANUAL, producer="manual"),
    _in("forward", "forward", replace(TRACEML, ranks=(1, 1)), producer="traceml"),
)  # fmt: skip
EQUAL: Final[Sequence[Change]] = tuple(
    Change(f"equal, {name}", setting, None, producer=producer)
    for name, setting, producer in (
        ("one rank", ONE, "cirron-otel"),
        ("DDP", DDP, "cirron-otel"),
        ("FSDP", FSDP, "cirron-otel"),
        ("cirron-sdk", HOOKS, "hooks"),
    )
)
STALLING: Final = Change("equal, stalls", ONE, None, has_stalls=True)


@dataclass(frozen=True)
class Outcome:
    """The comparison of a pair, and the planted difference per unit, ns."""

    found: CostChange
    planted_ns: float


def compared(change: Change, seed: int) -> Outcome:
    """Draw both runs of a change, and compare them."""
    chance = np.random.default_rng([zlib.crc32(change.name.encode()), seed])
    setting = without_spikes(at_least(change.setting, UNITS), UNITS)
    plan = draw_plan(chance, replace(setting, noise=(0.0, 0.0)))
    noise = float(chance.uniform(*NOISE))
    a, b = (_noisy(plan, chance, noise) for _ in range(2))
    if change.has_stalls:
        a, b = (each.with_added([("forward", _random_stalls(chance, each))]) for each in (a, b))
    planted = 0.0
    if change.cause is not None:
        cause = change.cause(chance, plan)
        cause.added_ns = chance.uniform(0.15, 0.6) * plan.unit_ns * plan.units * plan.ranks
        b = b.with_added(cause.added())
        planted = cause.added_ns / plan.units / plan.ranks
    if change.is_removed:
        a, b, planted = b, a, -planted
    cases = [Case(change.name, seed, change.producer, each, simulate(each)) for each in (a, b)]
    if change.waiting:
        before, after = (_waiting(each.plan, each.times) for each in cases)
        planted = (after - before) / plan.units / plan.ranks
    limits = thresholds_of("run")
    found = compare_costs(*map(_costs, cases), limits["diff.moderate"], limits["diff.material"])
    return Outcome(found, planted)


def _waiting(plan: Plan, times: Times) -> float:
    """Return the time for which ranks wait for others, ns, the sum of all ranks."""
    return float(sum(
        (times.end[name] - times.start[name] - times.own[name]).sum() for name in plan.synchronised
    ))  # fmt: skip


def _random_stalls(chance: np.random.Generator, plan: Plan) -> np.ndarray:
    """Return the time of independent stalls, about one in 25 units."""
    shape = plan.ranks, plan.units
    long: np.ndarray = plan.unit_ns * chance.uniform(2, 8, shape)
    return np.where(chance.random(shape) < 0.04, long, 0)


def _noisy(plan: Plan, chance: np.random.Generator, noise: float) -> Plan:
    """Return a plan with noise in all times."""
    shape = plan.ranks, plan.units
    return replace(
        plan,
        noise=noise,
        ns={name: each * jitter(chance, noise, shape) for name, each in plan.ns.items()},
        after={name: each * jitter(chance, noise, shape) for name, each in plan.after.items()},
    )


def _costs(case: Case) -> LedgerCosts | None:
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        spool.mkdir()
        for name, data in write(case):
            (spool / name).write_bytes(data)
        with open_chosen_run(SpoolReader(folder), None) as (_, run):
            return costs_of(run.ledger)
