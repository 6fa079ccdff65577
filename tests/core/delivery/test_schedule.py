"""Which batch is next after failures of every kind, by a clock that the test sets."""

from __future__ import annotations

import pytest

from cirron_otel.core.delivery import schedule
from cirron_otel.core.delivery.batch_queue import BatchQueue
from cirron_otel.core.delivery.errors import MisconfiguredError, PushError, UnreachableError
from cirron_otel.core.delivery.retry_policy import Backoff, FailureKind, RetryPolicy, kind_of
from cirron_otel.core.delivery.schedule import Schedule

DOWN = UnreachableError("down", status="no answer")
BUSY = UnreachableError("busy", status="429 Too Many Requests")
FORBIDDEN = MisconfiguredError("no", status="403 Forbidden")
FAULT = UnreachableError("fault", status="500 Internal Server Error")
MISSING = MisconfiguredError("no", status="404 Not Found")


class Lane:
    """A queue of batches whose lanes are the first letter of their names."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.schedule = Schedule(RetryPolicy(Backoff(jitter=0)), lambda: self.now)
        self.queue = BatchQueue(self.schedule, lambda name: name[0])
        for name in names:
            self.queue.add(name)

    def fails(self, error: PushError, expected: str) -> bool:
        name = self.queue.take()
        assert name == expected
        is_hopeless = self.schedule.failed(self.queue.lane(name), [name], error)
        if is_hopeless:
            self.queue.forget(name)
        else:
            self.queue.put_back(name)
        return is_hopeless

    def passes(self, *expected: str) -> None:
        for each in expected:
            name = self.queue.take()
            assert name == each
            self.schedule.passed(self.queue.lane(name), [name])
            self.queue.forget(name)


@pytest.mark.parametrize("error", [DOWN, FORBIDDEN, FAULT])
def test_a_failure_holds_back_one_batch_and_an_outage_keeps_the_order(error: PushError) -> None:
    one = Lane("a1", "a2", "a3", "a4")
    one.fails(error, "a1")
    one.passes("a2")
    one.fails(error, "a3")
    one.fails(error, "a4")
    assert one.queue.take() is None
    one.queue.add("a5")
    one.fails(error, "a5")  # the third in a row: the lane waits
    one.queue.add("a6")
    assert one.queue.take() is None
    one.now = one.queue.opens()
    one.passes("a1", "a3", "a4", "a5", "a6")


def test_repeated_failures_do_not_close_the_lane() -> None:
    one = Lane("a1", "a2")
    for _ in range(50):
        for name in ("a1", "a2"):
            one.now = max(one.now, one.queue.opens())
            one.fails(FAULT, name)
    assert one.now > 1000
    one.queue.add("a3")
    one.passes("a3")


def test_batches_whose_lane_changes_move_with_all_others_of_the_new_lane() -> None:
    """The failures of the batches that move count for neither lane any more."""
    one = Lane("a1", "a2", "a3", "a4", "a5", "a6")
    withheld = {"a1", "a2", "a4"}
    one.queue._lane_of = lambda name: "held" if name in withheld else name[0]
    for name in ("a1", "a2", "a3"):
        one.fails(DOWN, name)
    assert one.queue.take() is None
    one.now = one.queue.opens()
    assert one.queue.take() == "a1"
    assert one.queue.move(["a1"])
    one.queue.put_back("a1")
    lanes = [one.queue.lane(name) for name in sorted(one.queue)]
    assert lanes == ["held", "held", "a", "held", "a", "a"]
    assert [one.queue.tries(name) for name in sorted(one.queue)] == [0, 0, 1, 0, 0, 0]
    assert not one.queue.move(["a1"])
    taken = {one.queue.take() for _ in range(6)}
    assert taken == {"a1", "a2", "a3", "a4", "a5", "a6"}


def test_lanes_take_turns() -> None:
    one = Lane("a1", "a2", "a3", "b1", "c1")
    one.passes("a1", "b1", "c1", "a2", "a3")


def test_a_lane_that_is_rate_limited_waits_alone() -> None:
    one = Lane("a1", "a2", "b1")
    one.fails(BUSY, "a1")
    one.passes("b1")
    assert one.queue.take() is None
    one.now = one.queue.opens()
    one.passes("a1", "a2")


@pytest.mark.parametrize(("error", "closes"), [(DOWN, True), (FAULT, True), (FORBIDDEN, False)])
def test_eight_lanes_that_fail_in_a_row_close_the_target(error: PushError, closes: bool) -> None:
    """Seven do not; and a refusal of credentials concerns its own lane only."""
    one = Lane(*(f"{lane}1" for lane in "abcdefgh"))
    for lane in "abcdefg":
        one.fails(error, f"{lane}1")
    one.passes("h1")
    again = Lane(*(f"{lane}1" for lane in "abcdefghi"))
    for lane in "abcdefgh":
        again.fails(error, f"{lane}1")
    assert again.queue.take() == (None if closes else "i1")


def test_one_batch_probes_a_lane_that_opens_after_the_first_one_failed_again() -> None:
    one = Lane("a1", "a2", "a3", "a4", "a5", "a6")
    for name in ("a1", "a2", "a3"):
        one.fails(DOWN, name)
    assert one.queue.take() is None
    one.now = one.queue.opens()
    one.fails(DOWN, "a1")
    one.fails(DOWN, "a4")
    assert one.queue.take() is None
    one.now = one.queue.opens()
    one.fails(DOWN, "a1")
    one.passes("a5", "a1", "a2", "a3", "a4", "a6")


def test_a_batch_that_failed_has_a_turn_among_endless_new_ones() -> None:
    one = Lane("a000")
    one.fails(FAULT, "a000")
    one.now += 3600
    turns = []
    for number in range(1, 20):
        one.queue.add(f"a{number:03d}")
        turns.append(one.queue.take())
        one.schedule.passed("a", [turns[-1]])
        one.queue.forget(turns[-1])
    assert "a000" in turns[:8]


def test_retry_after_is_honoured_even_when_waits_are_shortened() -> None:
    """The end of the process does not change that; other waits end then."""
    asked = UnreachableError("busy", status="429", retry_after=100.0)
    one = Lane("a1", "b1", "b2", "b3", "b4")
    one.fails(asked, "a1")
    assert 100 <= one.schedule.opens("a") <= 101
    for name in ("b1", "b2", "b3"):
        one.fails(FORBIDDEN, name)
    assert one.queue.take() is None
    one.schedule.shorten_waits()
    one.passes("b1", "b2", "b3", "b4")
    assert one.queue.take() is None
    assert one.queue.opens() == 100
    alone = Lane("c1")
    alone.fails(FAULT, "c1")
    assert alone.queue.take() is None
    alone.schedule.shorten_waits()
    alone.passes("c1")


def test_a_group_that_fails_twice_is_sent_batch_by_batch() -> None:
    one = Lane("a1", "a2", "a3")
    for _ in range(2):
        one.now = max(one.now, one.queue.opens())
        group = [one.queue.take(), one.queue.take_with("a1"), one.queue.take_with("a1")]
        assert group == ["a1", "a2", "a3"]
        assert not one.schedule.failed("a", ["a1", "a2", "a3"], FAULT)
        for name in ("a1", "a2", "a3"):
            one.queue.put_back(name)
    one.now = one.queue.opens()
    assert one.queue.take() == "a1"
    assert one.queue.take_with("a1") is None


def test_a_batch_that_cannot_be_read_is_given_up_after_twenty_tries() -> None:
    one = Lane("a1")
    for number in range(1, 21):
        one.now = max(one.now, one.queue.opens())
        assert one.queue.take() == "a1"
        assert one.queue.failed("a1", OSError("cannot be read")) == (number == 20)


def test_lanes_without_batches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were accepted at once, and of those that failed all but some."""
    monkeypatch.setattr(schedule, "_MOST_LANES", 10)
    one = Lane()
    for number in range(100):
        lane, name = f"lane {number}", f"{number}"
        one.schedule.failed(lane, [name], FAULT)
        one.schedule.passed(lane, [name])
        assert not one.schedule._lanes
    for number in range(100):
        one.schedule.failed(f"lane {number}", [f"{number}"], FORBIDDEN)
        one.schedule.forget([f"{number}"])
        assert len(one.schedule._lanes) <= 21


def test_a_dead_target_is_asked_rarely() -> None:
    names = [f"{chr(97 + lane)}{number}" for lane in range(20) for number in range(50)]
    one, attempts = Lane(*names), 0
    while one.now < 3600:
        name = one.queue.take()
        if name is None:
            one.now = one.queue.opens()
            continue
        attempts += 1
        one.schedule.failed(one.queue.lane(name), [name], DOWN)
        one.queue.put_back(name)
    assert 100 < attempts < 400
    found = []
    while name := one.queue.take():
        one.schedule.passed(one.queue.lane(name), [name])
        one.queue.forget(name)
        found.append(name)
    assert sorted(found) == sorted(names)  # all of them at once, when it is back


@pytest.mark.parametrize(("error", "patience_s"), [(FORBIDDEN, 600), (MISSING, 60)])
def test_a_lane_is_given_up_only_while_others_are_accepted(
    error: PushError, patience_s: int
) -> None:
    one = Lane("a1")
    for _ in range(100):
        one.now = max(one.now, one.queue.opens())
        assert not one.fails(error, "a1")
    assert one.now > 3600
    one.queue.add("b1")
    one.passes("b1")
    one.now = one.queue.opens()
    assert one.fails(error, "a1")
    two = Lane("a1")
    two.fails(error, "a1")
    two.queue.add("b1")
    two.passes("b1")
    two.now = patience_s
    assert not two.fails(error, "a1")
    two.now = max(two.queue.opens(), patience_s + 1)
    assert two.fails(error, "a1")


def test_blocking_batch_is_given_up_when_room_is_requested() -> None:
    one = Lane("a1", "b1")
    one.fails(BUSY, "a1")
    one.passes("b1")
    one.schedule.request_room()
    assert one.queue.take() is None
    one.schedule.relieve()
    assert one.fails(BUSY, "a1")
    late = Lane("a1", "b1")
    late.fails(BUSY, "a1")
    late.passes("b1")
    late.schedule.request_room()
    late.now += 11
    late.schedule.relieve()
    assert not late.fails(BUSY, "a1")  # nothing has asked for room for a while
    alone = Lane("a1")
    alone.fails(BUSY, "a1")
    alone.schedule.request_room()
    alone.schedule.relieve()
    assert alone.queue.take() is None  # nothing else is accepted: it may be the target


@pytest.mark.parametrize(("error", "most"), [(FAULT, 20), (MISSING, 5)])
def test_a_batch_is_given_up_that_fails_while_its_lane_is_accepted(
    error: PushError, most: int
) -> None:
    one, tries = Lane("a1"), 1
    one.fails(error, "a1")
    while True:
        one.queue.add(f"a2{tries}")
        one.passes(f"a2{tries}")
        one.now = one.queue.opens()
        if one.fails(error, "a1"):
            break
        tries += 1
    assert tries == most


def test_rate_limiting_never_makes_a_batch_hopeless() -> None:
    one = Lane("a9")
    one.fails(BUSY, "a9")
    for _ in range(30):
        one.now = one.queue.opens()
        one.queue.add("a1")  # an earlier one, which is sent first
        one.passes("a1")
        one.now = max(one.now, one.queue.opens())
        assert not one.fails(BUSY, "a9")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("", FailureKind.NO_ANSWER),
        ("no answer", FailureKind.NO_ANSWER),
        ("503 Service Unavailable", FailureKind.NO_ANSWER),
        ("UNAVAILABLE", FailureKind.NO_ANSWER),
        ("429", FailureKind.RATE_LIMIT),
        ("RESOURCE_EXHAUSTED", FailureKind.RATE_LIMIT),
        ("401 Unauthorized", FailureKind.UNAUTHORIZED),
        ("PERMISSION_DENIED", FailureKind.UNAUTHORIZED),
        ("404 Not Found", FailureKind.FINAL),
        ("431", FailureKind.FINAL),
        ("200 OK", FailureKind.FINAL),
        ("UNIMPLEMENTED", FailureKind.FINAL),
        ("408", FailureKind.SERVER_FAULT),
        ("500", FailureKind.SERVER_FAULT),
        ("INTERNAL", FailureKind.SERVER_FAULT),
    ],
)
def test_kinds(status: str, kind: FailureKind) -> None:
    assert kind_of(UnreachableError("why", status=status)) is kind
    assert kind_of(ValueError(status)) is FailureKind.SERVER_FAULT


def test_forgotten_batches_are_never_taken() -> None:
    """A dead letter that is tried again may wait in line, too, after a kill or a lost cursor."""
    one = Lane("a1", "a2", "a3", "b1")
    one.queue.forget("a2")
    one.queue.forget("a1")
    one.queue.forget("b1")
    one.passes("a3")
    assert one.queue.take() is None
    assert len(one.queue) == 0


@pytest.mark.parametrize("error", [DOWN, BUSY, FORBIDDEN])
def test_past_acceptance_does_not_count_once_all_lanes_fail(error: PushError) -> None:
    """One lane fails first, another is accepted once more; then the target refuses everything."""
    one = Lane("a1", "b1")
    one.fails(error, "a1")
    one.passes("b1")
    one.queue.add("b2")
    one.fails(error, "b2")
    while one.now < 3600:
        one.schedule.request_room()  # the spool is full: there is no room for what the target lacks
        one.schedule.relieve()
        name = one.queue.take()
        if name is None:
            one.now = one.queue.opens()
            continue
        assert not one.schedule.failed(one.queue.lane(name), [name], error)
        one.queue.put_back(name)


def test_past_acceptance_does_not_count_once_the_target_fails() -> None:
    """Although the lane that was accepted last has not failed since."""
    one = Lane("a1", "b1", "c1")
    one.fails(DOWN, "a1")
    one.passes("b1")
    one.fails(DOWN, "c1")
    one.schedule.request_room()
    one.schedule.relieve()
    one.now = one.queue.opens()
    assert not one.fails(DOWN, "a1")
