"""The two state machines of the sampler: failing readers, and alerts with hysteresis."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.sdk.sampling.alerts import HYSTERESIS, THRESHOLDS, AlertState
from cirron_otel.sdk.sampling.reader_state import FIRST_PAUSE_S, LONGEST_PAUSE_S, ReaderState

BORDERS = [level - fall for _, level in THRESHOLDS for fall in (0, HYSTERESIS)]
SHARES = st.one_of(st.floats(0.0, 1.2), st.sampled_from(BORDERS))


@given(st.lists(SHARES, max_size=60))
def test_between_two_alerts_of_a_level_the_share_fell_below_it(shares: list[float]) -> None:
    state = AlertState()
    alerts = [state.crossed(share) for share in shares]
    for name, threshold in THRESHOLDS:
        raised = [place for place, alert in enumerate(alerts) if alert and alert[0] == name]
        for before, after in pairwise(raised):
            assert min(shares[before:after]) < threshold - HYSTERESIS
        for place in raised:
            assert shares[place] >= threshold


@given(st.lists(SHARES, max_size=60))
def test_the_first_crossing_of_a_level_raises_it_or_a_higher_one(shares: list[float]) -> None:
    state = AlertState()
    alerts = [state.crossed(share) for share in shares]
    for _, threshold in THRESHOLDS:
        first = next((n for n, share in enumerate(shares) if share >= threshold), None)
        if first is not None:
            alert = alerts[first]
            assert alert is not None
            assert threshold <= alert[1] <= shares[first]


def test_the_levels_of_one_rise_and_fall() -> None:
    state = AlertState()
    shares = (0.5, 0.86, 0.84, 0.86, 0.96, 0.94, 0.96, 0.79, 0.97, 0.5, 0.9)
    names = [alert and alert[0] for alert in map(state.crossed, shares)]
    warning, critical = "memory.warning", "memory.critical"
    assert names == [
        None, warning, None, None, critical, None, None, None, critical, None, warning
    ]  # fmt: skip


def test_the_borders_belong_to_the_upper_side() -> None:
    for (name, level), below in zip(THRESHOLDS, (0.9, 0.0), strict=True):
        state = AlertState()
        state.crossed(below)  # the lower level is raised, if there is one
        assert state.crossed(level) == (name, level)
        assert state.crossed(level - HYSTERESIS) is state.crossed(level) is None
        state.crossed(level - HYSTERESIS - 1e-9)
        assert state.crossed(level) == (name, level)


@given(st.lists(st.booleans(), max_size=40), st.floats(0, 1e6))
def test_one_notice_at_each_end_of_a_failure(outcomes: list[bool], begun: float) -> None:
    state = ReaderState()
    now, failing = begun, 0
    for works in outcomes:
        if not state.is_due(now):
            now += LONGEST_PAUSE_S
        assert state.is_due(now)
        if works:
            assert state.succeeded() == failing
            failing = 0
        else:
            assert state.failed(now) == (failing == 0)
            failing += 1
            assert not state.is_due(now)
    assert state.failures == failing


def test_the_pause_doubles_up_to_its_limit_and_starts_over() -> None:
    state = ReaderState()
    for _ in range(2):
        now, pauses = 100.0, []
        for _ in range(9):
            state.failed(now)
            pause = FIRST_PAUSE_S
            while not state.is_due(now + pause):
                pause *= 2
            pauses.append(min(pause, LONGEST_PAUSE_S))
            now += pause
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert state.succeeded() == 9
