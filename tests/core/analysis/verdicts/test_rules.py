"""Every threshold just below, at, and above; the formulas; the order of the verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cirron_otel.core.analysis.verdicts.thresholds import THRESHOLDS, thresholds_of
from cirron_otel.core.analysis.verdicts.window import (
    NonFinite,
    OutsideSteps,
    RankSteps,
    Stall,
    StepWindow,
    Utilization,
)
from cirron_otel.errors import UsageError

from .windows import (
    GB,
    STEP,
    diagnosed,
    means,
    memory,
    quiet,
    severity,
    verdict,
    window,
)

POLICIES = ("live", "run")
EPSILON = 1e-6
"""The distance from a threshold, in steps: 1 ns of 1 ms."""


@pytest.mark.parametrize(("policy", "need"), [("live", 20), ("run", 50)])
def test_warm_up(policy: str, need: int) -> None:
    late = means(input=1, forward=1)
    few, enough = (window(late, policy=policy, steps=n) for n in (need - 1, need))
    found = diagnosed(few)
    assert [each.kind for each in found.verdicts] == ["WARMUP"]
    assert found.not_assessed["INPUT_BOUND"] == f"{need - 1} aligned steps: {need} are needed"
    assert diagnosed(enough).primary.kind == "INPUT_BOUND"
    nothing = diagnosed(window(late, policy=policy, steps=0)).primary
    assert nothing.kind == "WARMUP"
    assert "ci.scope('step')" in nothing.next != found.primary.next


LEVELS = [
    ("input", "live", 0.25, 0.35),
    ("input", "run", 0.30, 0.40),
    ("wait", "live", 0.15, 0.25),
    ("wait", "run", 0.18, 0.28),
    ("compute", "live", 0.85, 0.92),
    ("compute", "run", 0.88, 0.94),
]
KINDS = {"input": "INPUT_BOUND", "wait": "WAIT_HEAVY", "compute": "COMPUTE_BOUND"}


def with_share(part: str, share: float, policy: str) -> StepWindow:
    """Return a window whose only part of interest has this share of the step."""
    whole = 1_000_000 * share
    if part == "input":
        return window(quiet(input=whole / STEP), policy=policy)
    if part == "wait":
        return window(means(step=STEP, forward=(STEP - whole) / STEP), policy=policy)
    return window(means(forward=whole / STEP, augment=(STEP - whole) / STEP), policy=policy)


@pytest.mark.parametrize(("part", "policy", "warn", "crit"), LEVELS)
def test_shares_of_a_step(part: str, policy: str, warn: float, crit: float) -> None:
    expected = [
        (warn - EPSILON, None), (warn, "warn"), (warn + EPSILON, "warn"),
        (crit - EPSILON, "warn"), (crit, "crit"), (crit + EPSILON, "crit"),
    ]  # fmt: skip
    for share, level in expected:
        found = verdict(with_share(part, share, policy), KINDS[part])
        assert (found.severity if found else None) == level, share
        if found is not None:
            assert found.share == pytest.approx(share, abs=1e-9)
            assert found.score is None


@pytest.mark.parametrize(("policy", "limit"), [("live", 0.06), ("run", 0.05)])
def test_the_skew_of_the_input(policy: str, limit: float) -> None:
    for skew, level in ((limit - EPSILON, "crit"), (limit, "crit"), (limit + EPSILON, None)):
        inputs = (1.0, 1.0, 1.0 + skew)
        of = window(*(quiet(input=each) for each in inputs), policy=policy)
        assert severity(of, "INPUT_BOUND", "straggler.warn=9", "straggler.crit=9") == level


@pytest.mark.parametrize(("policy", "limit"), [("live", 0.06), ("run", 0.05)])
def test_the_skew_of_the_clean_compute(policy: str, limit: float) -> None:
    # Forward alone: without a backward pass, no rank's compute contains a wait for another.
    for skew, level in ((limit - EPSILON, "crit"), (limit, "crit"), (limit + EPSILON, None)):
        parts = (1.0, 1.0, 1.0 + skew)
        of = window(*(means(forward=each, step=each * STEP) for each in parts), policy=policy)
        assert severity(of, "COMPUTE_BOUND", "straggler.warn=9", "straggler.crit=9") == level


def test_input_may_exceed_the_step() -> None:
    found = verdict(window(quiet(input=2.775)), "INPUT_BOUND")
    assert found is not None
    assert found.share == pytest.approx(2.775)


def test_a_run_that_is_bound_by_input_gets_the_remedies() -> None:
    found = verdict(window(quiet(input=1)), "INPUT_BOUND")
    assert found is not None
    assert found.next == (
        "more workers and prefetching: DataLoader(num_workers=..., prefetch_factor=...), or less"
        " work per sample"
    )


@pytest.mark.parametrize(("policy", "warn", "crit"), [("live", 0.10, 0.20), ("run", 0.10, 0.18)])
def test_the_score_of_a_straggler(policy: str, warn: float, crit: float) -> None:
    """With three ranks the median is a rank that is not slow; the typical step is 1 ms."""
    expected = [
        (warn - EPSILON, None), (warn, "warn"), (warn + EPSILON, "warn"),
        (crit - EPSILON, "warn"), (crit, "crit"), (crit + EPSILON, "crit"),
    ]  # fmt: skip
    for score, level in expected:
        slow = means(forward=0.5 + score, augment=0.5, step=(1 + score) * STEP)
        fast = means(forward=0.5, augment=0.5)
        found = verdict(window(fast, fast, slow, policy=policy), "COMPUTE_STRAGGLER")
        assert (found.severity if found else None) == level, score
        if found is not None:
            assert found.score == pytest.approx(score, abs=1e-9)
            assert found.share is None
            assert (found.ranks, found.phase) == ([2], "compute")


SLOW = {
    "input": (means(input=0.5, forward=0.5, backward=0.5), "INPUT_STRAGGLER"),
    "h2d": (means(h2d=0.5, forward=0.5, backward=0.5, step=1.5 * STEP), "H2D_STRAGGLER"),
    "compute": (means(forward=1.0, backward=0.5, step=1.5 * STEP), "COMPUTE_STRAGGLER"),
    "wait": (means(forward=0.5, backward=0.5, step=1.5 * STEP), "WAIT_STRAGGLER"),
}
FAST = means(forward=0.5, backward=1.0, step=1.5 * STEP)
"""A rank that waits in its backward pass for the slow one, for half a step."""


@pytest.mark.parametrize("phase", SLOW)
def test_the_straggler_is_named_after_its_largest_excess(phase: str) -> None:
    slow, kind = SLOW[phase]
    found = diagnosed(window(FAST, slow)).primary
    assert (found.kind, found.ranks, found.phase) == (kind, [1], phase)
    assert found.evidence["excess_ns"][phase] == 0.25 * STEP  # above the median of two ranks


@pytest.mark.parametrize(
    ("h2d", "kind"),
    [(0.4, "STRAGGLER"), (0.4 - EPSILON, "STRAGGLER"), (0.4 / 1.25, "INPUT_STRAGGLER")],
)
def test_mixed_excesses(h2d: float, kind: str) -> None:
    """The straggler is named if the largest excess is at least 1.25 times the second."""
    fast = means(forward=1.0, step=2 * STEP, augment=1.0)
    slow = means(forward=1.0, step=2 * STEP + h2d * STEP, augment=1.0, input=0.4, h2d=h2d)
    found = diagnosed(window(fast, fast, slow)).primary
    assert found.kind == kind
    assert found.phase == (None if kind == "STRAGGLER" else "input")


def test_dominance_just_below() -> None:
    fast = means(forward=1.0, step=2 * STEP, augment=1.0)
    h2d = 0.4 / 1.25 + EPSILON
    slow = means(forward=1.0, step=2 * STEP + h2d * STEP, augment=1.0, input=0.4, h2d=h2d)
    assert diagnosed(window(fast, fast, slow)).primary.kind == "STRAGGLER"


def test_a_straggler_in_a_scope_of_the_users() -> None:
    """Its scope is neither compute nor wait, so the straggler is plain, and the scope is named."""
    fast = means(forward=0.5, backward=1.0, step=1.6 * STEP, augment=0.1)
    slow = means(forward=0.5, backward=0.5, step=1.6 * STEP, augment=0.6)
    found = diagnosed(window(fast, slow)).primary
    assert (found.kind, found.phase, found.ranks) == ("STRAGGLER", "augment", [1])


def test_single_rank_is_not_a_straggler() -> None:
    found = diagnosed(window(quiet()))
    assert found.primary.kind == "BALANCED"
    assert found.not_assessed["STRAGGLER"] == "needs 2 ranks"
    missing = diagnosed(window(quiet(), quiet(), missing_ranks=[2, 3]))
    assert missing.not_assessed["STRAGGLER"] == "no step of rank 2, 3 is recorded"


def test_compute_bound_is_healthy() -> None:
    found = verdict(window(means(forward=1.0)), "COMPUTE_BOUND")
    assert found is not None
    assert (found.severity, found.is_failure) == ("crit", False)
    assert verdict(window(means(forward=1.0, input=0.30)), "COMPUTE_BOUND") is None
    assert verdict(window(means(forward=1.0, input=0.30 - EPSILON)), "COMPUTE_BOUND") is not None


PRESSURE = [(92 * GB - 1, None), (92 * GB, "warn"), (92 * GB + 1, "warn"),
            (97 * GB - 1, "warn"), (97 * GB, "crit"), (97 * GB + 1, "crit")]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("peak", "level"), PRESSURE)
def test_pressure(policy: str, peak: int, level: str | None) -> None:
    of = window(quiet(), quiet(), policy=policy, memory=[memory(0, GB), memory(1, peak)])
    found = verdict(of, "HIGH_PRESSURE")
    assert (found.severity if found else None) == level
    if found is not None:
        assert (found.ranks, found.share) == ([1], pytest.approx(peak / (100 * GB)))


def test_memory_needs_50_steps_and_a_capacity() -> None:
    few = window(quiet(), memory=[memory(0, 99 * GB, steps=49)])
    assert severity(few, "HIGH_PRESSURE") is None
    assert diagnosed(few).not_assessed["CREEP"] == "49 steps with a peak: 50 are needed"
    assert severity(window(quiet(), memory=[memory(0, 99 * GB)]), "HIGH_PRESSURE") == "crit"
    unknown = window(quiet(), memory=[memory(0, 99 * GB, capacity=None)])
    assert diagnosed(unknown).not_assessed["HIGH_PRESSURE"] == (
        "the capacity of the device is not recorded"
    )
    assert diagnosed(window(quiet())).not_assessed["HIGH_PRESSURE"] == (
        "no step has a peak of device memory"
    )


IMBALANCES = [
    (1.2, 0.30, "warn"), (1.2 - 1e-9, 0.30, None), (1.2 + 1e-9, 0.30, "warn"),
    (1.2, 0.30 - 1e-9, None), (1.2, 0.30 + 1e-9, "warn"),
    (1.3, 0.50, "crit"), (1.3 - 1e-9, 0.50, "warn"), (1.3 + 1e-9, 0.50, "crit"),
    (1.3, 0.50 - 1e-9, "warn"), (1.3, 0.50 + 1e-9, "crit"),
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("ratio", "pressure", "level"), IMBALANCES)
def test_imbalance(policy: str, ratio: float, pressure: float, level: str | None) -> None:
    middle = 390 * GB
    peak = round(middle * ratio)
    capacity = peak / pressure
    peaks = [
        memory(rank, each, capacity=capacity) for rank, each in enumerate([middle, middle, peak])
    ]
    of = window(quiet(), quiet(), quiet(), policy=policy, memory=peaks)
    assert severity(of, "IMBALANCE") == level


@pytest.mark.parametrize(
    ("growth", "kind", "level"),
    [
        (2**30 - 1, "CREEP_EARLY", "info"),
        (2**30, "CREEP_CONFIRMED", "warn"),
        (2**30 + 1, "CREEP_CONFIRMED", "warn"),
    ],
)
def test_creep(growth: int, kind: str, level: str) -> None:
    worst = memory(0, 9 * GB, course=(8 * GB, 8 * GB + 1, 8 * GB + growth))
    other = memory(1, 8 * GB, course=(GB, GB + 1, GB + 2))
    of = window(quiet(), quiet(), memory=[worst, other])
    assert severity(of, kind) == level
    assert {each.kind for each in diagnosed(of).verdicts} == {"BALANCED", kind}


@pytest.mark.parametrize("course", [(2, 2, 3), (1, 3, 3), (3, 2, 4), (1, 3, 2)])
def test_no_creep_unless_it_grows_all_the_time(course: tuple[int, int, int]) -> None:
    steady, grown = memory(1, 8, course=course), memory(0, 9 * GB, course=(0, GB, 9 * GB))
    of = window(quiet(), quiet(), memory=[grown, steady])
    assert severity(of, "CREEP_CONFIRMED") is None
    of = window(quiet(), memory=[memory(0, 9, course=course)])
    assert severity(of, "CREEP_EARLY") is None


def test_stalled() -> None:
    second = 10**9
    silences = [
        (10 * second - 1, None), (10 * second, "crit"), (10 * second + 1, "crit"),
    ]  # fmt: skip
    for silent, level in silences:
        stall = Stall(3, silent, second, ("step", "backward"))
        of = window(quiet(), policy="live", stalls=[stall])
        found = verdict(of, "STALLED")
        assert (found.severity if found else None) == level
        if found is not None:
            assert (found.ranks, found.phase) == ([3], "backward")
            assert diagnosed(of).primary.kind == "STALLED"


def test_a_stall_of_short_steps() -> None:
    """Batches arrive once a second, so a shorter silence is no stall."""
    second = 10**9
    for silent, level in ((3 * second - 1, None), (3 * second, "crit"), (3 * second + 1, "crit")):
        of = window(quiet(), policy="live", stalls=[Stall(0, silent, 7, ())])
        assert severity(of, "STALLED") == level


def test_utilization() -> None:
    def cpu(value: float) -> StepWindow:
        return window(quiet(), cpu=[Utilization(0, "host", value)])

    assert [severity(cpu(v), "HIGH_CPU") for v in (0.8 - 1e-9, 0.8, 0.8 + 1e-9)] == [
        None, "warn", "warn",
    ]  # fmt: skip

    def gpu(value: float) -> StepWindow:
        return window(quiet(), gpu=[Utilization(1, "cuda:0", value)])

    assert [severity(gpu(v), "LOW_GPU_UTIL") for v in (0.3 - 1e-9, 0.3, 0.3 + 1e-9)] == [
        "warn", None, None,
    ]  # fmt: skip

    def hot(value: float) -> StepWindow:
        return window(quiet(), temperature=[Utilization(1, "cuda:0", value)])

    assert [severity(hot(v), "GPU_HOT") for v in (85 - 1e-9, 85, 85 + 1e-9)] == [
        None, "warn", "warn",
    ]  # fmt: skip
    assert set(diagnosed(window(quiet())).not_assessed) >= {"HIGH_CPU", "LOW_GPU_UTIL", "GPU_HOT"}


def test_a_straggler_between_its_steps_is_described_as_such() -> None:
    between = verdict(window(quiet(), replace(quiet(), outside=0.5 * STEP)), "WAIT_STRAGGLER")
    within = verdict(window(quiet(), quiet(step=1.5 * STEP)), "WAIT_STRAGGLER")
    assert between is not None
    assert within is not None
    assert between.phase == within.phase == "wait"
    assert "most of it between its steps" in between.why
    assert "between its steps" in between.next
    assert "most of it in wait" in within.why
    assert "ci.scope" in within.next


def test_time_outside_of_steps() -> None:
    expected = [(19_999_999, None), (20_000_000, "warn"), (20_000_001, "warn"),
                (39_999_999, "warn"), (40_000_000, "crit"), (40_000_001, "crit")]  # fmt: skip
    for outside, level in expected:
        of = window(quiet(), outside=[OutsideSteps(0, 100_000_000, outside)])
        assert severity(of, "OUTSIDE_STEPS") == level, outside
        few = window(quiet(), steps=49, outside=of.outside)
        assert severity(few, "OUTSIDE_STEPS") is None


def test_values_that_are_not_finite() -> None:
    marks = [NonFinite("loss", 1, 3), NonFinite("loss", 0, 1), NonFinite("grad_norm", 1, 1)]
    found = verdict(window(quiet(), non_finite=marks), "NON_FINITE")
    assert found is not None
    assert (found.severity, found.ranks) == ("warn", [0, 1])
    assert found.evidence["marks"] == {"loss": 4, "grad_norm": 1}
    assert severity(window(quiet()), "NON_FINITE") is None


def test_the_order_of_the_verdicts() -> None:
    straggling = diagnosed(window(FAST, means(forward=0.5, backward=0.5, step=1.5 * STEP)))
    assert [each.kind for each in straggling.verdicts] == ["WAIT_STRAGGLER"]
    both = diagnosed(window(quiet(input=0.5, augment=0.0)))
    assert [each.kind for each in both.verdicts] == ["INPUT_BOUND", "WAIT_HEAVY"]
    hot = diagnosed(window(quiet(), temperature=[Utilization(0, "cuda:0", 90)]))
    assert [each.kind for each in hot.verdicts] == ["BALANCED", "GPU_HOT"]
    full = diagnosed(window(quiet(), memory=[memory(0, 99 * GB)]))
    assert [each.kind for each in full.verdicts] == ["HIGH_PRESSURE", "BALANCED"]


def test_a_few_slow_steps_are_named() -> None:
    slow, typical = means(forward=0.1, augment=0.4), means(forward=0.6, augment=0.4)
    of = StepWindow("run", 100, [RankSteps(0, slow, typical)], slow_steps=2)
    found = diagnosed(of).primary
    assert found.kind == "WAIT_HEAVY"
    assert "2 of the 100 steps carry this verdict (2.0 %)" in found.why
    assert found.evidence["slow_steps"] == 2
    assert "slow_steps" not in diagnosed(window(slow)).primary.evidence


def test_every_threshold_can_be_set() -> None:
    for name in THRESHOLDS:
        crit = name.replace(".warn", ".crit")  # not below the threshold for warn
        changes = [f"{each}=7" for each in (name, crit) if each in THRESHOLDS]
        for policy in ("live", "run"):
            assert thresholds_of(policy, changes)[name] == 7
    assert severity(window(quiet(input=0.3)), "INPUT_BOUND", "input.warn=0.31") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input.warn", "NAME=VALUE"),
        ("nonsense=1", "no threshold has the name 'nonsense'"),
        ("input.warn=x", "expected a number"),
        ("input.warn=nan", "expected a number"),
        ("input.warn=-1", "expected a number"),
        ("window.steps=0", "whole number"),
        ("window.steps=1.5", "whole number"),
    ],
)
def test_wrong_settings(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        thresholds_of("run", [text])
