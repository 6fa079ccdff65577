"""The simulated times: ranks that wait for each other, devices, restarts, and planted prices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from .causes import account, plant, steady, straggler
from .drawing import Setting, draw_plan
from .plan import BETWEEN, COMPUTE, PAUSED, START_UP, Plan, simulate
from .settings import APART, DDP, DDP_DEVICE, FSDP, ONE
from .special import restarted

SEEDS = range(6)


def plan_of(setting: Setting, seed: int, *, most: int = 60) -> Plan:
    least = min(setting.units[0], most)
    return draw_plan(np.random.default_rng(seed), replace(setting, units=(least, most)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("setting", [DDP, FSDP], ids=["DDP", "FSDP"])
def test_all_ranks_end_a_synchronised_segment_at_the_same_time(setting: Setting, seed: int) -> None:
    plan = plan_of(setting, seed)
    times = simulate(plan)
    for name in plan.synchronised:
        assert (times.end[name] == times.end[name][0]).all()
        waiting = times.end[name] - times.start[name] - times.own[name]
        assert waiting.min() == 0
        assert (waiting.min(axis=0) == 0).all(), "the slowest rank does not wait"
        assert waiting.max() > 0
    assert (times.end["optimizer_step"] != times.end["optimizer_step"][0]).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_apart_spend_only_their_own_time(seed: int) -> None:
    plan = plan_of(APART, seed)
    times = simulate(plan)
    for name in times.own:
        assert (times.end[name] - times.start[name] == times.own[name]).all()
    spent = sum(own.sum(axis=1) for own in times.own.values())
    begun = np.rint(plan.late + plan.start_up).astype(np.int64)
    assert (times.last == begun + spent + np.rint(plan.shut_down).astype(np.int64)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("setting", [ONE, DDP, FSDP, APART])
def test_segments_follow_each_other_without_gaps(setting: Setting, seed: int) -> None:
    plan = plan_of(setting, seed)
    times = simulate(plan)
    names = [PAUSED, START_UP, BETWEEN, *plan.order, *plan.after]
    for name, following in itertools.pairwise(names):
        assert (times.end[name] == times.start[following]).all()
    assert (times.end[names[-1]][:, :-1] == times.start[names[0]][:, 1:]).all()
    assert (times.unit_start == times.start[plan.order[0]]).all()
    assert (times.unit_end == times.end[plan.order[-1]]).all()


def test_a_late_rank_delays_the_first_meeting_of_all() -> None:
    plan = plan_of(DDP, 1)
    late = replace(plan, late=plan.late + 5 * plan.unit_ns * (np.arange(plan.ranks) == 1))
    delay = simulate(late).end["backward"][0, 0] - simulate(plan).end["backward"][0, 0]
    assert 3 * plan.unit_ns < delay <= 5 * plan.unit_ns + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_host_launches_what_the_device_runs(seed: int) -> None:
    plan = plan_of(DDP_DEVICE, seed)
    assert plan.device is not None
    times, on_host = simulate(plan), simulate(replace(plan, device=None))
    for name in COMPUTE:
        assert (times.device[name] == on_host.end[name] - on_host.start[name]).all()
    host = sum(times.end[name] - times.start[name] for name in COMPUTE[:-1])
    device = sum(times.device[name] for name in COMPUTE[:-1])
    assert (host < device * 0.31).all()
    assert (times.unit_end <= on_host.unit_end).all()
    if plan.device.wait == "between":
        assert (times.unit_end < on_host.unit_end).all()
    else:
        assert (times.unit_end == on_host.unit_end).all()
    if plan.device.wait == "optimizer_step":
        assert (times.end["optimizer_step"] == on_host.end["optimizer_step"]).all()
    assert times.extent == on_host.extent


def test_a_restarted_run_repeats_units_after_a_pause() -> None:
    chance = np.random.default_rng(3)
    plan = restarted(chance, plan_of(DDP, 3))
    assert plan is not None
    times = simulate(plan)
    first = int(np.flatnonzero(plan.lives)[0])
    assert sorted(set(plan.numbers.tolist())) == list(range(plan.numbers.max() + 1))
    assert plan.numbers[first] <= plan.numbers[first - 1] + 1
    ahead = times.unit_start[:, first] - times.unit_end[:, first - 1]
    after = sum(times.own[name][:, first - 1] for name in plan.after)
    spent = sum(times.own[name][:, first] for name in (PAUSED, START_UP, BETWEEN))
    assert (ahead == spent + after).all()
    assert (times.own[PAUSED][:, first] > 0).all()


def test_ranks_with_fewer_units_leave_the_others_alone() -> None:
    plan = plan_of(DDP, 2)
    plan.counts[0] = plan.units // 2
    times = simulate(plan)
    last = plan.units // 2 - 1
    assert len({int(end) for end in times.end["backward"][:, last]}) == 1
    assert times.last[0] < times.last[1:].min()
    others = times.end["backward"][1:, -1]
    assert (others == others[0]).all()


@pytest.mark.parametrize("price", [0.03, 0.2, 0.6])
@pytest.mark.parametrize("setting", [ONE, DDP, FSDP, APART])
def test_a_steady_cause_costs_its_price(setting: Setting, price: float) -> None:
    chance, plan = np.random.default_rng(5), plan_of(setting, 5)
    plan.ns["data_load"] *= 0.1
    cause = steady("INPUT_BOUND", "data_load")(chance, plan)
    planted = plant(plan, [cause], [price])
    spent = planted.times.own["data_load"].sum()
    assert spent / planted.times.total == pytest.approx(price, abs=2e-5)
    assert planted.costs == [account("data_load")(planted.plan, planted.times)]


@pytest.mark.parametrize("price", [0.03, 0.2, 0.6])
def test_a_straggler_costs_what_all_ranks_lose(price: float) -> None:
    chance, plan = np.random.default_rng(6), plan_of(DDP, 6)
    cause = straggler("INPUT_STRAGGLER", "data_load")(chance, plan)
    planted = plant(plan, [cause], [price])
    lost = planted.times.total - simulate(plan).total
    assert lost / planted.times.total == pytest.approx(price, abs=2e-5)
    slow = planted.times.own["data_load"].sum(axis=1) - simulate(plan).own["data_load"].sum(axis=1)
    assert tuple(np.flatnonzero(slow)) == cause.ranks


def test_two_causes_have_both_prices_at_once() -> None:
    chance, plan = np.random.default_rng(7), plan_of(DDP, 7)
    causes = [
        straggler("COMPUTE_STRAGGLER", "forward")(chance, plan),
        steady("WAIT_HEAVY", "~end")(chance, plan),
    ]
    planted = plant(plan, causes, [0.3, 0.15])
    shares = [cost / planted.times.total for cost in planted.costs]
    assert shares == pytest.approx([0.3, 0.15], abs=1e-3)
