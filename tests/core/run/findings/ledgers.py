"""Ledgers of jobs with known times: ranks that wait for each other at the end of backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cirron_otel.core.run.figures.ledger import Lane, Ledger

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9
USUAL: Mapping[str, float] = {
    "input": 1, "transfer": 0.5, "forward": 30, "loss": 2, "backward": 50, "optimizer": 8,
    "unattributed": 2, "between_units": 2,
}  # fmt: skip
"""The mean times of a unit, ms."""
NAMES: Mapping[str, str] = {
    "input": "data_load", "transfer": "h2d", "forward": "forward", "loss": "loss",
    "backward": "backward", "optimizer": "optimizer_step", "evaluation": "validation",
    "checkpoint": "save_checkpoint", "logging": "log_metrics", "other_scopes": "rollout",
}  # fmt: skip
_LATE = ("optimizer", "unattributed", "logging", "other_scopes")
"""The accounts after the waiting phase of a unit."""
Times = dict[str, np.ndarray]
"""By account: ranks by units, ms."""


def second_from(ledger: Ledger, unit: int) -> Ledger:
    """Return the ledger with the units from one on in a second training."""
    for lane in ledger.lanes:
        lane.training = (np.arange(len(lane.ns)) >= unit).astype(np.int64)
    return ledger


def trainings_of(ledger: Ledger, units: int) -> Ledger:
    """Return the ledger with a training for each so many units."""
    for lane in ledger.lanes:
        lane.training = np.arange(len(lane.ns)) // units
    return ledger


def job(
    ranks: int = 1,
    units: int = 100,
    *,
    noise: float = 0.0,
    seed: int = 0,
    plant: Callable[[Times], None] | None = None,
    outside_ms: Mapping[str, float] | None = None,
    epochs: int = 1,
    is_synchronised: bool = True,
    usual: Mapping[str, float] = USUAL,
) -> Ledger:
    """Return the ledger of a job; `plant` changes the times of its phases."""
    generator = np.random.default_rng(seed)
    times: Times = {}
    for account, ms in usual.items():
        factor = np.exp(noise * generator.standard_normal((ranks, units)) - noise**2 / 2)
        times[account] = ms * factor
    if plant is not None:
        plant(times)
    accounts = {name: np.rint(each * MS).astype(np.int64) for name, each in times.items()}
    late = sum((accounts[name] for name in _LATE if name in accounts), np.zeros((ranks, units)))
    early = sum(
        (each for name, each in accounts.items() if name not in (*_LATE, "backward")),
        np.zeros((ranks, units)),
    )
    own = (early + np.c_[np.zeros(ranks), late[:, :-1]]).astype(np.int64)
    waiting = accounts.get("backward", np.zeros((ranks, units), np.int64)).copy()
    if ranks > 1 and is_synchronised:
        waiting = (own + waiting).max(axis=0) - own
        wait = np.maximum(np.minimum(waiting - waiting.min(axis=0), own.max(axis=0) - own), 0)
        accounts["backward"] = waiting - wait
        accounts["waiting_for_ranks"] = wait
    cycles = sum(accounts.values(), np.zeros((ranks, units), np.int64))
    outside = {name: round(ms * MS) for name, ms in (outside_ms or {}).items()}
    length = int(cycles.sum(axis=1).max()) + sum(outside.values())
    lanes = []
    for rank in range(ranks):
        ends = START_NS + outside.get("start_up", 0) + np.cumsum(cycles[rank])
        gap = accounts.get("between_units", np.zeros((ranks, units), np.int64))[rank]
        of_rank = {name: each[rank] for name, each in accounts.items() if each[rank].any()}
        rest = length - int(cycles[rank].sum()) - sum(outside.values())
        lane = Lane(
            rank=rank if ranks > 1 else None, host=f"host{rank // 8}",
            start=ends - cycles[rank] + gap, ns=cycles[rank] - gap, number=np.arange(units),
            epoch=np.arange(units) * epochs // units,
            accounts=of_rank, waiting=waiting[rank], own=own[rank],
            outside={**outside, "ended": rest} if rest else dict(outside),
        )  # fmt: skip
        lane.parts = {
            (name, NAMES[name]): int(each.sum()) for name, each in of_rank.items() if name in NAMES
        }
        lanes.append(lane)
    return Ledger(START_NS, START_NS + length, lanes, [str(each) for each in range(epochs)])


def price_ns(
    ranks: int, units: int, plant: Callable[[Times], None], *, noise: float = 0.0, seed: int = 0
) -> int:
    """Return what a job with the same noise would save without the planted cause, rank-ns."""
    planted = job(ranks, units, plant=plant, noise=noise, seed=seed)
    return planted.total_ns - job(ranks, units, noise=noise, seed=seed).total_ns
