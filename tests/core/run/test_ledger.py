"""The ledger: each nanosecond of a rank is in exactly one account."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cirron_otel.core.records.rows import IndexedSpan
from cirron_otel.core.run.accounts import BY_RULE, OVERRIDING, account_of
from cirron_otel.core.run.figures import ledger_fold, outside
from cirron_otel.core.run.figures.ledger import Lane, Ledger, by_training
from cirron_otel.core.run.figures.ledger_fold import LedgerFold
from cirron_otel.core.run.figures.outside import OutsideScopes, RankScopes
from cirron_otel.core.run.figures.places import PlacesFold
from cirron_otel.core.run.figures.sweep import Interval, sweep
from cirron_otel.core.run.load.lanes import RankSums
from cirron_otel.core.run.load.tree import ScopeTree
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import ABSENT, PART, STRING, UNIT, Block, Texts
from cirron_otel.semconv import PLACE
from tests.kit.examples import examples
from tests.kit.generators.cpu_waits import with_cpu_waits
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trainings import with_trainings
from tests.kit.generators.trees import hostile, random_spool, training
from tests.kit.ledger_identities import assert_exact

from .spools import Files, written

NAMES = ("data_load", "forward", "backward", "mine", "eval", "save_checkpoint", "all_reduce")


class Unit(NamedTuple):
    """A unit with its parts: name, start, duration, device time."""

    start: int
    ns: int
    parts: Sequence[tuple[str, int, int] | tuple[str, int, int, int]] = ()
    rank: int = 0
    index: int = -1
    pid: int = 1
    thread: int = 1
    training: int = 0


def blocks(units: Sequence[Unit], texts: Texts) -> tuple[Block, Block]:
    rows, parts = [], []
    for no, unit in enumerate(units):
        index = texts.token(str(unit.index if unit.index >= 0 else no))
        rows.append({
            "no": no, "rank": unit.rank, "pid": unit.pid, "thread": unit.thread, "idx": index,
            "start_ns": unit.start, "ns": unit.ns, "parent": -1, "error": -1, "flags": 0,
            "training": unit.training, "parts": len(unit.parts),
        })  # fmt: skip
        for name, start, ns, *gpu in unit.parts:
            parts.append({
                "unit": no, "no": no, "name": texts.token(name), "ns": ns, "wall_ns": ns,
                "start_ns": start, "gpu_ns": gpu[0] if gpu else ABSENT,
            })  # fmt: skip
    return (
        {name: np.array([row.get(name, ABSENT) for row in rows], np.int64) for name in UNIT},
        {name: np.array([part[name] for part in parts], np.int64) for name in PART},
    )


def ledger_of(
    units: Sequence[Unit],
    scopes: Sequence[Interval] = (),
    sessions: Sequence[tuple[int, int]] = (),
    extent: tuple[int, int] | None = None,
) -> Ledger:
    texts = Texts()
    empty = OutsideScopes(ScopeTree({}), (), texts)
    empty.of_rank = lambda *_: RankScopes(  # type: ignore[method-assign]
        [each._replace(name=texts.token("scope")) for each in scopes], sessions=list(sessions)
    )
    sums = {}
    for rank in {unit.rank for unit in units}:
        own = [unit for unit in units if unit.rank == rank]
        first, last = extent or (own[0].start, max(unit.start + unit.ns for unit in own))
        sums[rank] = RankSums(len(own), first, last)
    fold = LedgerFold(texts, sums, empty, lambda _: None)
    fold.add(*blocks(units, texts))
    found = fold.finish()
    assert found is not None
    return found


def counting(intervals: Sequence[Interval], at: int) -> Interval | None:
    """The interval that counts at a time, found among all of them."""
    opened = [each for each in intervals if each.start <= at < each.end]
    if not opened:
        return None
    inner = min(opened, key=place)
    around = [o for o in opened if o.overrides and o.start <= inner.start and inner.end <= o.end]
    return min(around, default=inner, key=place)


def place(each: Interval) -> tuple[int, int, int, str, str]:
    return -each.start, -each.depth, each.end - each.start, each.account, each.text


def drawn(chance: random.Random, first: int, last: int) -> Interval:
    start = chance.randint(first, last)
    name = chance.choice(NAMES)
    account = account_of(name)
    end = start + chance.choice([-3, 0, 1, 4, 10, 30])
    return Interval(start, end, chance.randint(0, 1), account, 0, account in OVERRIDING)


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(1000, 200)))
def test_sweep_of_random_intervals(seed: int) -> None:
    chance = random.Random(seed)
    intervals = [drawn(chance, 0, 60) for _ in range(chance.randrange(9))]
    found = {at: each for start, end, each in sweep(intervals) for at in range(start, end)}
    for at in range(-5, 120):
        expected = counting(intervals, at)
        assert (found.get(at) and found[at].account) == (expected and expected.account)


@pytest.mark.parametrize("tokens", [(3, 4), (4, 3)])
def test_names_decide_between_scopes_with_equal_times(tokens: tuple[int, int]) -> None:
    """Tokens are numbered in the order of the reader."""
    both = [Interval(0, 9, 0, "other_scopes", token, text=text)
            for token, text in zip(tokens, ("batch", "step"), strict=True)]  # fmt: skip
    for intervals in (both, both[::-1]):
        assert [each.text for _, _, each in sweep(intervals)] == ["batch"]


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(1000, 200)))
def test_random_lane(seed: int) -> None:
    """The accounts of a lane ahead of all moves are those of a walk from moment to moment."""
    chance = random.Random(seed)
    units, now, training = [], 100, 0
    for _ in range(chance.randint(1, 3)):  # no more, so that there is no warm-up and no stall
        now += chance.choice([0, 0, 3, 10])
        length = chance.choice([0, 5, 20, 40])
        intervals = [drawn(chance, now - 3, now + length) for _ in range(chance.randrange(5))]
        parts = [(name_of(each), each.start, max(each.end - each.start, 0)) for each in intervals]
        units.append(Unit(now, length, parts, training=training))
        now += length
        training += chance.choice([0, 0, 1, -1])
    scopes = [drawn(chance, 80, now + 10) for _ in range(chance.randrange(4))]
    first, last = 90, now + 20
    ledger = ledger_of(units, scopes, extent=(first, last))
    assert_exact(ledger)
    [lane] = ledger.lanes
    assert lane.totals == walked(units, scopes, first, last)


def name_of(interval: Interval) -> str:
    return next(name for name in NAMES if account_of(name) == interval.account)


def walked(
    units: Sequence[Unit], scopes: Sequence[Interval], first: int, last: int
) -> dict[str, int]:
    totals: Counter[str] = Counter()
    end = max((unit.start + unit.ns for unit in units), default=first)
    for at in range(first, last):
        unit = next((u for u in units if u.start <= at < u.start + u.ns), None)
        if unit is not None:
            inside = [
                Interval(
                    max(start, unit.start), min(start + ns, unit.start + unit.ns), 0,
                    account_of(name), NAMES.index(name), account_of(name) in OVERRIDING,
                )
                for name, start, ns, *_ in unit.parts
            ]  # fmt: skip
            found = counting(inside, at)
            totals["unattributed" if found is None else found.account] += 1
            continue
        found = counting(scopes, at)
        account = None if found is None else found.account
        if at < units[0].start or at >= end:
            other = "start_up" if at < units[0].start else "shut_down"
            totals[account if account in OVERRIDING else other] += 1  # type: ignore[index]
        else:
            is_known = account in outside._BETWEEN
            later = next(place for place, each in enumerate(units) if each.start > at)
            rises = units[later].training > units[later - 1].training
            other = "idle" if rises and found is None else "between_units"
            totals[account if is_known else other] += 1  # type: ignore[index]
    return {account: ns for account, ns in totals.items() if ns}


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(300, 60)))
def test_generated_spools(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, files in (("run", run_spool(seed)), ("tree", random_spool(seed))):
        check_spool(tmp_path / name, with_cpu_waits(seed, with_trainings(seed, files)))
    monkeypatch.setattr(ledger_fold, "MOST_CELLS", 50)
    check_spool(tmp_path / "joined", with_trainings(seed, run_spool(seed)))


def test_odd_spools(tmp_path: Path) -> None:
    check_spool(tmp_path / "hostile", hostile())
    check_spool(tmp_path / "ranks", training(3, 30))


def check_spool(folder: Path, files: Files) -> None:
    reader = written(folder, files)
    with open_run(reader, reader) as run:
        if run.ledger is not None:
            assert_exact(run.ledger)


def phases(start: int, times: dict[str, int]) -> list[tuple[str, int, int]]:
    found = []
    for name, ns in times.items():
        found.append((name, start, ns))
        start += ns
    return found


def test_ranks_wait_in_backward_for_the_slowest() -> None:
    units = []
    for rank in range(3):
        now = 1000 * rank  # clocks of hosts may differ
        for at in range(20):
            loading = 60 if rank == 1 else 10
            times = {"data_load": loading, "forward": 20, "backward": 100 - loading - 20}
            units.append(Unit(now, 100, phases(now, times), rank, at))
            now += 100
    ledger = ledger_of(units)
    assert_exact(ledger)
    waiting = [lane.totals.get("waiting_for_ranks", 0) for lane in ledger.lanes]
    assert waiting == [50 * 19, 0, 50 * 19]  # the first unit has no unit ahead of it
    assert ledger.lanes[0].totals["backward"] == 20 * 20 + 50


def test_ranks_wait_in_collectives_if_backward_passes_end_apart() -> None:
    units = []
    for rank in range(2):
        for at in range(20):
            loading, backward = (60 if rank else 10), 30 + (at * 7 + rank * 3) % 11
            times = {"data_load": loading, "backward": backward}
            times["all_reduce"] = 120 - loading - backward
            units.append(Unit(120 * at, 120, phases(120 * at, times), rank, at))
    ledger = ledger_of(units)
    assert_exact(ledger)
    first, second = ledger.lanes
    assert second.totals.get("waiting_for_ranks", 0) == 0
    differences = [50 + (at * 7) % 11 * -1 + (at * 7 + 3) % 11 for at in range(1, 20)]
    assert first.totals["waiting_for_ranks"] == sum(differences)
    assert first.totals["backward"] == sum(30 + (at * 7) % 11 for at in range(20))


def test_ranks_wait_in_forward_if_all_end_it_together() -> None:
    """So they do if the weights are sharded."""
    units = []
    for rank in range(2):
        for at in range(20):
            loading = 60 if rank == 1 else 10 + at % 2
            times = {"data_load": loading, "forward": 100 - loading, "backward": 100}
            units.append(Unit(200 * at, 200, phases(200 * at, times), rank, at))
    ledger = ledger_of(units)
    assert_exact(ledger)
    waiting = [lane.totals.get("waiting_for_ranks", 0) for lane in ledger.lanes]
    assert waiting == [sum(50 - at % 2 for at in range(1, 20)), 0]


def test_ranks_wait_in_forward_for_one_that_is_slow_in_some_units() -> None:
    units = []
    for rank in range(2):
        for at in range(40):
            loading = 60 if rank == 1 and at >= 30 else 20
            times = {"data_load": loading, "forward": 100 - loading, "backward": 100}
            units.append(Unit(200 * at, 200, phases(200 * at, times), rank, at))
    ledger = ledger_of(units)
    waiting = [lane.totals.get("waiting_for_ranks", 0) for lane in ledger.lanes]
    assert waiting == [10 * 40, 0]


def test_ranks_that_are_not_synchronised_wait_for_nobody() -> None:
    units = [
        Unit(100 * (1 + rank) * at, 100, phases(100 * (1 + rank) * at, {"backward": 50}), rank, at)
        for rank in range(2) for at in range(20)
    ]  # fmt: skip
    for lane in ledger_of(units).lanes:
        assert "waiting_for_ranks" not in lane.totals


def run_of(times: Sequence[dict[str, int]], gap: int = 0, **columns: int) -> list[Unit]:
    units, now = [], 0
    for each in times:
        ns = sum(each.values())
        units.append(Unit(now, ns, phases(now, each), **columns))  # type: ignore[arg-type]
        now += ns + gap
    return units


def test_slow_first_units_are_warm_up_without_their_input() -> None:
    steady = {"data_load": 10, "forward": 50, "backward": 40}
    first = {"data_load": 300, "forward": 500, "backward": 90}
    [lane] = ledger_of(run_of([first, {**steady, "forward": 150}, *[steady] * 20])).lanes
    assert lane.totals["warm_up"] == 450 + 50 + 100
    assert lane.totals["input"] == 300 + 21 * 10
    assert lane.totals["forward"] == 22 * 50


def test_compilation_in_first_units_is_not_warm_up() -> None:
    steady = {"forward": 50, "backward": 40}
    first = {"compile": 300, "forward": 90, "backward": 40}
    [lane] = ledger_of(run_of([first, *[steady] * 20])).lanes
    assert lane.totals["compilation"] == 300
    assert lane.totals["warm_up"] == 40


def test_ranks_wait_on_their_devices() -> None:
    units = []
    for rank in range(2):
        for at in range(20):
            loading = 50 if rank else 10
            parts: list[tuple[str, int, int, int]] = [
                ("data_load", 100 * at, loading, 0), ("forward", 100 * at + loading, 2, 20),
                ("backward", 100 * at + loading + 2, 3, 80 - loading),
            ]  # fmt: skip
            units.append(Unit(100 * at, 100, parts, rank, at))
    ledger = ledger_of(units)
    assert_exact(ledger)
    waiting = [lane.totals.get("waiting_for_ranks", 0) for lane in ledger.lanes]
    assert waiting == [40 * 19, 0]


def test_units_that_a_later_process_repeats_are_lost() -> None:
    once = run_of([{"forward": 10}] * 8)
    again = [
        unit._replace(start=unit.start + 200, index=at + 5, pid=2,
                      parts=phases(unit.start + 200, {"forward": 10}))
        for at, unit in enumerate(once)
    ]  # fmt: skip
    units = [*(unit._replace(index=at) for at, unit in enumerate(once)), *again]
    ledger = ledger_of(units, sessions=[(0, 100), (150, 300)])
    assert_exact(ledger)
    [lane] = ledger.lanes
    assert lane.totals["lost"] == 30
    assert lane.number.tolist() == [*range(8), *range(5, 13)]
    assert lane.totals["shut_down"] == 100 - 80
    assert lane.totals["paused"] == 50
    assert lane.restarts == [(8, {"shut_down": 20, "paused": 50, "start_up": 50})]


def test_wait_for_the_device_moves_into_the_phases_that_lack_it() -> None:
    units, now = [], 0
    for _ in range(6):
        parts = [("forward", now, 5, 40), ("backward", now + 5, 5, 40)]
        units.append(Unit(now, 100, parts))
        now += 100
    [lane] = ledger_of(units).lanes
    assert lane.totals == {"forward": 6 * 40, "backward": 6 * 40, "unattributed": 6 * 20}
    assert lane.device is not None
    assert lane.device.tolist() == [80] * 6


def test_last_unit_beyond_ten_medians_has_stalled() -> None:
    [lane] = ledger_of(run_of([{"forward": 10}] * 9 + [{"forward": 500}])).lanes
    assert lane.totals["stalled"] == 490


def trainings_of(*trainings: Sequence[dict[str, int]], pause: int) -> list[Unit]:
    """Trainings one after the other, with a pause between."""
    units: list[Unit] = []
    for number, times in enumerate(trainings):
        begin = units[-1].start + units[-1].ns + pause if units else 0
        units += [
            each._replace(start=each.start + begin, training=number,
                          parts=[(name, at + begin, ns) for name, at, ns, *_ in each.parts])
            for each in run_of(times)
        ]  # fmt: skip
    return units


@pytest.mark.parametrize("seed", range(20))
def test_places_of_trainings_are_their_units_in_order(seed: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, 1 + seed, int(generator.integers(1, 50)))
    training = np.sort(numbers) if seed % 2 else numbers
    every = np.arange(len(training))
    expected = [np.flatnonzero(training == each).tolist() for each in np.unique(training)]
    parts = by_training(training)
    assert [every[each].tolist() for each in parts] == expected
    for places, units in zip(parts, expected, strict=True):
        assert isinstance(places, slice) == (units[-1] - units[0] + 1 == len(units))


def test_time_between_trainings_is_idle_outside_of_scopes() -> None:
    units = trainings_of([{"forward": 10}] * 3, [{"forward": 20}] * 3, pause=100)
    scopes = [Interval(40, 60, 0, "checkpoint", 0, True), Interval(70, 75, 0, "forward", 0)]
    ledger = ledger_of(units, scopes)
    assert_exact(ledger)
    assert ledger.lanes[0].totals == {
        "forward": 90, "checkpoint": 20, "between_units": 5, "idle": 75,
    }  # fmt: skip


def test_time_ahead_of_a_lower_number_is_between_units() -> None:
    units = trainings_of([{"forward": 10}] * 3, [{"forward": 20}] * 3, pause=100)
    falling = [each._replace(training=1 - each.training) for each in units]
    assert ledger_of(falling).lanes[0].totals == {"forward": 90, "between_units": 100}


@pytest.mark.parametrize(
    ("numbers", "is_restarted", "counted"),
    [
        ([0, 0, 1, 1], False, ["between_units"] * 2),
        ([1, 1, 0, 0], False, ["between_units"] * 3),
        ([0, 1, 0, 1], False, ["between_units"]),
        ([0, 0, 1, 1], True, ["between_units"] * 2),
        ([1, 1, 0, 0], True, ["between_units"] * 2),
        ([0, 0, 0, 0], True, ["between_units"] * 2),
    ],
)
def test_samples_count_in_gaps_that_are_between_units(
    numbers: list[int], is_restarted: bool, counted: list[str]
) -> None:
    """Samples of a gap count if its time does. The third unit may begin another process."""
    units = [
        Unit(100 * at, 40, training=number, pid=1 + (is_restarted and at > 1))
        for at, number in enumerate(numbers)
    ]
    ledger = ledger_of(units)
    assert ledger.lanes[0].totals.get("between_units", 0) == 60 * len(counted)
    texts = Texts()
    fold = PlacesFold(texts)
    rows = [
        {"rank": 0, "name": texts.token(PLACE), "type": STRING, "ts_ns": 100 * at + 70,
         "value": texts.token("train.py:9 (main) in step")}
        for at in range(3)
    ]  # fmt: skip
    fold.add({name: np.array([row[name] for row in rows], np.int64) for name in rows[0]})
    samples = fold.result(ledger, BY_RULE)
    assert {name: each[0].samples for name, each in samples.items()} == Counter(counted)


def test_first_units_of_each_training_are_warm_up() -> None:
    fast = [{"forward": 40}, *[{"forward": 10}] * 9]
    slow = [{"forward": 150}, *[{"forward": 100}] * 9]
    ledger = ledger_of(trainings_of(fast, slow, pause=50))
    assert_exact(ledger)
    assert ledger.lanes[0].totals == {"forward": 1100, "warm_up": 30 + 50, "idle": 50}
    assert ledger.trainings == [0, 1]


def test_last_unit_is_compared_with_its_training() -> None:
    slow = [{"forward": 500}] * 5
    [lane] = ledger_of(trainings_of([{"forward": 10}] * 20, slow, pause=0)).lanes
    assert "stalled" not in lane.totals
    slow[-1] = {"forward": 6000}
    [lane] = ledger_of(trainings_of([{"forward": 10}] * 20, slow, pause=0)).lanes
    assert lane.totals["stalled"] == 5500


def test_ranks_do_not_wait_in_the_first_unit_of_a_training() -> None:
    """A rank that builds its second model for longer is idle for less time."""
    units = []
    for rank, pause in enumerate((10, 400)):
        of_rank = trainings_of([{"forward": 50, "backward": 50}] * 20,
                               [{"forward": 50, "backward": 50}] * 20, pause=pause)  # fmt: skip
        units += [each._replace(rank=rank, index=at) for at, each in enumerate(of_rank)]
    ledger = ledger_of(units)
    assert_exact(ledger)
    assert [lane.totals["idle"] for lane in ledger.lanes] == [10, 400]
    assert all("waiting_for_ranks" not in lane.totals for lane in ledger.lanes)


def test_trainings_in_two_threads_have_a_lane_each() -> None:
    """A thread that begins after another one's end continues its lane."""
    units = [Unit(10 * at, 10, phases(10 * at, {"forward": 9}), thread=2) for at in range(5)]
    units += [Unit(10 * at, 10, phases(10 * at, {"backward": 8}), thread=4) for at in range(7)]
    units += [Unit(60 + at, 1, index=at, thread=3) for at in range(2)]
    units.sort(key=lambda unit: unit.start)
    ledger = ledger_of(units)
    assert_exact(ledger)
    assert [(lane.rank, lane.thread) for lane in ledger.lanes] == [(0, 1), (0, 2)]
    forward, backward = ledger.lanes
    assert (forward.totals["forward"], len(forward.start)) == (45, 7)
    assert (backward.totals["backward"], len(backward.start)) == (56, 7)


def test_units_of_threads_in_turn_are_one_lane() -> None:
    units = [Unit(10 * at, 10, thread=at % 3) for at in range(9)]
    [lane] = ledger_of(units).lanes
    assert (lane.thread, len(lane.start)) == (None, 9)


def test_units_that_overlap_are_busy_or_idle() -> None:
    units = [Unit(10 * at, 15, index=at) for at in range(5)] + [Unit(100, 5, index=5)]
    [lane] = ledger_of(units).lanes
    assert lane.totals == {"busy": 55 + 5, "idle": 100 - 55}


def test_one_overlap_is_cut() -> None:
    """A clock that is set back does not make a lane one of overlapping units."""
    units = [Unit(100 * at - (1 if at > 10 else 0), 100, phases(100 * at, {"forward": 90}))
             for at in range(20)]  # fmt: skip
    ledger = ledger_of(units)
    assert_exact(ledger)
    assert "busy" not in ledger.lanes[0].accounts


def test_lost_units_do_not_change_the_median_of_the_warm_up() -> None:
    units: list[Unit] = []
    for process in range(3):
        begin = 10_000 * process
        units += [
            Unit(begin + 30 * at, 30, phases(begin + 30 * at, {"forward": 30}), 0, at, process)
            for at in range(40)
        ]
    [lane] = ledger_of(units).lanes
    assert lane.totals["lost"] == 2 * 40 * 30
    assert "warm_up" not in lane.totals


def test_scopes_of_other_threads_have_no_time() -> None:
    texts = Texts()
    spans = [
        (at, IndexedSpan(f"{at:016x}", None, "save_checkpoint", None, 10, 40, 1, 0, thread))
        for at, thread in enumerate((7, 1, None), 1)
    ]
    scopes = OutsideScopes(ScopeTree({None: spans}), (), texts)
    assert len(scopes.of_rank(0, {1}).intervals) == 2
    assert len(scopes.of_rank(0, {1, ABSENT}).intervals) == 3


def test_names_that_resemble_collectives_or_logging() -> None:
    own = ("reduce_lr", "send_email", "gather_metrics", "scatterplot", "log_softmax", "log_probs")
    assert {account_of(name) for name in own} == {"other_scopes"}
    assert account_of("All_Reduce") == account_of("all_gather_into") == "communication"
    assert account_of("log_metrics") == "logging"


def test_rank_without_units_is_start_up(tmp_path: Path) -> None:
    del tmp_path
    texts = Texts()
    sums = {0: RankSums(4, 0, 100), 1: RankSums(1, 10, 20)}
    fold = LedgerFold(texts, sums, OutsideScopes(ScopeTree({}), (), texts), lambda _: None)
    fold.add(*blocks([Unit(0, 100)], texts))
    ledger = fold.finish()
    assert ledger is not None
    assert_exact(ledger)
    assert ledger.lanes[1].totals == {"start_up": 20, "ended": 80}


def test_numbers_are_equal_on_all_ranks() -> None:
    """A rank may start late, or have units that the others lack."""
    units = [Unit(10 * at, 10, index=at) for at in range(6)]
    units += [Unit(10 * at, 10, rank=1, index=at) for at in range(3, 8)]
    first, second = (lane.number.tolist() for lane in ledger_of(units).lanes)
    assert (first, second) == ([0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7])


def test_index_that_occurs_again_in_a_process_is_another_unit() -> None:
    units = [Unit(10 * at, 10, index=at % 3) for at in range(9)]
    [lane] = ledger_of(units).lanes
    assert lane.number.tolist() == list(range(9))
    assert not lane.is_lost.any()


def test_joined_entries_keep_all_sums() -> None:
    times = [{"data_load": 10 + at % 3, "forward": 50} for at in range(50)]
    for at in range(0, 50, 5):
        times[at]["eval"] = 20
    [lane] = ledger_of(run_of(times, gap=5)).lanes
    totals = lane.totals
    assert lane.counts["evaluation"].sum() == 10
    ledger_fold.join(lane, 8)
    assert lane.totals == totals
    assert lane.counts["evaluation"].tolist() == [2, 2, 1, 2, 1, 2, 0]
    assert len(lane.start) == 7
    assert lane.number.tolist() == [0, 8, 16, 24, 32, 40, 48]
    assert isinstance(lane, Lane)


def test_long_gaps_in_units_have_names() -> None:
    units = []
    for at in range(6):
        begin = 100 * at
        parts = [("data_load", begin, 10), ("forward", begin + 50, 20), ("backward", begin + 71, 9)]
        units.append(Unit(begin, 100, parts))
    [lane] = ledger_of(units).lanes
    gaps = {name: ns for (account, name), ns in lane.parts.items() if account == "unattributed"}
    assert gaps == {"between data_load and forward": 6 * 40, "after backward": 6 * 20}
    assert lane.totals["unattributed"] == 6 * 61


def test_speed_includes_evaluations_and_leaves_out_the_warm_up() -> None:
    steady = {"data_load": 10, "forward": 50, "eval": 40}
    [lane] = ledger_of(run_of([{"forward": 900}, *[steady] * 20], gap=5)).lanes
    assert "warm_up" in lane.totals
    ns = sum(int(each.sum()) for name, each in lane.accounts.items() if name != "warm_up")
    assert lane.units_per_second == pytest.approx(21 * 1e9 / ns)
    assert 20 * 105 <= ns <= 21 * 105


def test_speed_of_overlapping_units_is_their_number_in_their_extent() -> None:
    [lane] = ledger_of([Unit(100 * at, 150) for at in range(10)]).lanes
    assert lane.units_per_second == pytest.approx(10 * 1e9 / (900 + 150))


def test_many_ranks_are_joined_to_the_maximum_number_of_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    units = [
        unit
        for rank in range(20)
        for unit in run_of([{"data_load": 10, "forward": 50}] * 64, gap=5, rank=rank)
    ]
    complete = ledger_of(units)
    cells = sum(map(ledger_fold._cells, complete.lanes))
    monkeypatch.setattr(ledger_fold, "MOST_CELLS", cells // 4)
    joined = ledger_of(units)
    assert {lane.size for lane in joined.lanes} == {4}
    assert joined.totals == complete.totals
    assert_exact(joined)


def test_scopes_around_units_are_transparent() -> None:
    spans = [
        IndexedSpan(id="f" * 16, parent_id=None, name="fit", start_ns=0, end_ns=100, rank=0),
        IndexedSpan(id="e" * 16, parent_id="f" * 16, name="mine", start_ns=5, end_ns=9, rank=0),
    ]
    tree = ScopeTree({None: [(1, spans[0])], "f" * 16: [(2, spans[1])]})
    texts = Texts()
    scopes = OutsideScopes(tree, ["f" * 16], texts).of_rank(0)
    assert [(each.start, each.end) for each in scopes.intervals] == [(5, 9)]
