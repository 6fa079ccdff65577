"""The findings on a running job: from the last units, with the numbers of the whole run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cirron_otel.core.durations import SECOND_NS
from cirron_otel.core.run.figures.ledger import Ledger
from cirron_otel.core.run.findings.choices import Choices
from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.core.run.findings.live import Changes, LiveConclusion, LiveFindings, is_stall
from cirron_otel.core.run.findings.thresholds import Limits
from cirron_otel.core.run.stall import Stall
from cirron_otel.core.spool.reader import SpoolReader
from tests.core.analysis.verdicts.growing import CALM, SLOW, GrowingSpool
from tests.core.analysis.verdicts.records import MS

WINDOW = 20


def followed(folder: Path) -> LiveFindings:
    return LiveFindings(SpoolReader(folder), None, Choices(), WINDOW)


def polled(live: LiveFindings, *spools: GrowingSpool) -> LiveConclusion:
    found = live.poll(max(each.records.at for each in spools))
    assert found is not None
    return found


def kinds(found: LiveConclusion) -> set[str]:
    return {each.kind for each in found.findings}


def is_exact(ledger: Ledger) -> bool:
    """Whether the accounts of each lane add up to the extent, and none is negative."""
    extent = ledger.last_ns - ledger.first_ns
    return all(
        sum(lane.totals.values()) == extent
        and min(lane.totals.values()) >= 0
        and sum(lane.parts.values()) <= extent
        for lane in ledger.lanes
    )


def test_slow_input_appears_and_ends_in_a_bounded_window(tmp_path: Path) -> None:
    spool, live = GrowingSpool(tmp_path, world_size=1), followed(tmp_path)
    assert live.poll(0) is None
    for number in range(100):
        spool.write(5, SLOW if 40 <= number < 60 else CALM)
        found = polled(live, spool)
        assert found.units == min(5 * (number + 1), WINDOW)
        assert len(live.followed.state[0]) <= 9
        if not 40 <= number < 64:
            assert kinds(found) == set()
        elif 44 <= number < 60:
            assert kinds(found) == {"INPUT_BOUND"}
            assert found.findings[0].share == pytest.approx(0.5)
    assert found.status == "healthy"
    assert found.headline.startswith("The time of 20 steps is ")


def test_units_are_numbered_over_the_whole_run(tmp_path: Path) -> None:
    spool, live = GrowingSpool(tmp_path, world_size=1), followed(tmp_path)
    for _ in range(40):
        spool.write(5, CALM, loss=1.0)
        assert kinds(polled(live, spool)) == set()
    spool.write(1, CALM, loss="nan")
    found = polled(live, spool)
    assert [(each.kind, each.steps) for each in found.findings] == [("NON_FINITE", [(200, 200)])]


def test_requests_are_followed_in_a_bounded_window(tmp_path: Path) -> None:
    spool, live = GrowingSpool(tmp_path, world_size=1), followed(tmp_path)
    for number in range(40):
        spool.write(5, CALM, unit="request")
        found = polled(live, spool)
        assert (found.unit, found.units) == ("request", min(5 * (number + 1), WINDOW))
    assert len(live.followed.state[0]) <= 9
    facts = live._facts
    assert facts is not None
    assert facts.ledger is not None
    assert int(facts.ledger.lanes[0].number[-1]) == spool.count - 1


def test_the_start_is_not_reported_from_a_later_window(tmp_path: Path) -> None:
    """The session's span, which arrives at the end, begins with the run."""
    spool, live = GrowingSpool(tmp_path, world_size=1), followed(tmp_path)
    spool.records.at += 300 * SECOND_NS
    spool.write(WINDOW, CALM)
    assert kinds(polled(live, spool)) == set()
    for _ in range(20):
        spool.write(5, CALM)
        assert kinds(polled(live, spool)) == set()
    spool.end()
    assert kinds(polled(live, spool)) == set()
    assert live.followed.has_ended


def test_a_short_run_has_the_findings_of_the_complete_one(tmp_path: Path) -> None:
    spool, live = GrowingSpool(tmp_path, world_size=1), followed(tmp_path)
    spool.records.at += 300 * SECOND_NS
    spool.write(5, SLOW)
    assert kinds(polled(live, spool)) == set()
    spool.end()
    assert kinds(polled(live, spool)) == {"START_UP", "INPUT_BOUND"}


def test_a_straggler_of_running_ranks(tmp_path: Path) -> None:
    ranks = [GrowingSpool(tmp_path, rank) for rank in (0, 1)]
    live = followed(tmp_path)
    for number in range(30):
        for rank in ranks:
            slow = 10 if rank.rank == 1 else 0
            rank.write(5, {"data_load": slow, "forward": 10, "backward": 20 - slow})
        found = polled(live, *ranks)
        if number > 4:
            assert kinds(found) == {"INPUT_STRAGGLER"}
            assert found.findings[0].ranks == [1]
    ranks[0].end()
    polled(live, *ranks)
    assert not live.followed.has_ended


@pytest.mark.parametrize("failed", [0, 1])
def test_a_failed_rank_remains_while_the_others_run(failed: int, tmp_path: Path) -> None:
    ranks = [GrowingSpool(tmp_path, rank) for rank in (0, 1)]
    live, other = followed(tmp_path), ranks[1 - failed]
    for rank in ranks:
        rank.write(30, CALM)
    ranks[failed].end("ValueError: no more data")
    for _ in range(40):
        other.write(5, CALM)
        found = polled(live, *ranks)
        assert [(each.kind, each.ranks) for each in found.findings] == [("FAILED", [failed])]
    assert len(live.followed.state[0]) <= 12
    facts = live._facts
    assert facts is not None
    assert facts.ledger is not None
    [lane] = facts.ledger.lanes
    assert (lane.rank, int(lane.number[-1])) == (other.rank, other.count - 1)


def test_a_window_of_few_units_is_reported_once_it_is_full(tmp_path: Path) -> None:
    spool = GrowingSpool(tmp_path, world_size=1)
    live = LiveFindings(SpoolReader(tmp_path), None, Choices(), 10)
    for expected in (set(), {"INPUT_BOUND"}, {"INPUT_BOUND"}):
        spool.write(5, SLOW)
        assert kinds(polled(live, spool)) == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_window_adds_up(seed: int, tmp_path: Path) -> None:
    """Ranks with other speeds, gaps and numbers of steps in a batch; some end earlier."""
    chance = random.Random(seed)
    ranks = [GrowingSpool(tmp_path, rank, world_size=3) for rank in range(3)]
    live = followed(tmp_path)
    for number in range(25):
        for rank in ranks:
            if rank.rank and number > 20:
                continue
            rank.records.at += chance.choice([0, 0, 30 * MS])
            phases = {"data_load": chance.randint(0, 9), "": 2, "forward": 5 * (rank.rank + 1)}
            rank.write(chance.randint(1, 9), phases)
        polled(live, *ranks)
        facts = live._facts
        assert facts is not None
        assert facts.ledger is not None
        assert is_exact(facts.ledger)
        first = facts.ledger.lanes[0]
        assert int(first.number[-1]) == ranks[0].count - 1


def test_the_silence_of_a_rank(tmp_path: Path) -> None:
    """It counts from the poll that saw the last unit, and only while the rank runs."""
    spool, live = GrowingSpool(tmp_path, world_size=1), followed(tmp_path)
    spool.write(30, CALM)
    now = spool.records.at + 3600 * SECOND_NS  # another clock
    polled(live, spool)
    spool.write(1, CALM)
    for seconds, expected in ((0, False), (2.9, False), (3, True), (4, True)):
        found = live.poll(now + round(seconds * SECOND_NS))
        assert found is not None
        assert ("STALLED" in kinds(found)) == expected
    spool.end()
    found = live.poll(now + 5 * SECOND_NS)
    assert found is not None
    assert "STALLED" not in kinds(found)


@pytest.mark.parametrize(
    ("seconds", "median_ms", "longest_s", "scopes", "expected"),
    [
        (3, 10, 0, ("step", "exchange"), True),
        (2.9, 10, 0, ("step", "exchange"), False),
        (9, 1000, 0, (), False),
        (10, 1000, 0, (), True),
        (30, 10, 40, (), False),
        (50, 10, 40, (), True),
        (500, 10, 0, ("epoch", "validation", "forward"), False),
        (600, 10, 0, ("epoch", "validation", "forward"), True),
        (500, 0, 0, (), False),
    ],
)
def test_what_is_a_stall(
    seconds: float, median_ms: int, longest_s: int, scopes: tuple[str, ...], expected: bool
) -> None:
    stall = Stall(
        0, round(seconds * SECOND_NS), median_ms * MS, scopes, longest_s * SECOND_NS
    )  # fmt: skip
    assert is_stall(stall, Limits()) == expected


def test_changes() -> None:
    def finding(kind: str, share: float | None = 0.3, severity: str = "critical") -> Finding:
        return Finding(kind, severity, None, share, "")  # type: ignore[arg-type]

    changes = Changes()

    def of(*findings: Finding) -> list[tuple[str, str]]:
        return [(change, each.kind) for change, each in changes.of(findings)]

    assert of(finding("INPUT_BOUND")) == [("appeared", "INPUT_BOUND")]
    assert of(finding("INPUT_BOUND", 0.4)) == []
    assert of(finding("INPUT_BOUND", 0.46)) == [("changed", "INPUT_BOUND")]
    assert of(finding("INPUT_BOUND", 0.46, "warning")) == [("changed", "INPUT_BOUND")]
    assert of(finding("STALLED", None)) == [("ended", "INPUT_BOUND"), ("appeared", "STALLED")]
    assert of(finding("STALLED", None)) == []
    assert of() == [("ended", "STALLED")]


def test_a_small_share_changes_only_by_a_noticeable_amount() -> None:
    changes = Changes()
    assert list(changes.of([Finding("SPIKES", "warning", None, 0.02, "")]))
    assert not list(changes.of([Finding("SPIKES", "warning", None, 0.06, "")]))
    assert list(changes.of([Finding("SPIKES", "warning", None, 0.075, "")]))
