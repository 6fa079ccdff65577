"""The verdict of `diff`: thresholds just below, at and above; noise; `--fail-on`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.core.analysis.breakdown import Breakdown
from cirron_otel.core.analysis.verdicts.comparison import StepChange, block_medians, compare_steps
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.tools.cli.main import run as run_command
from tests.kit.phase_times import PhaseTimes, TimedBreakdown

from .records import Rank, write_spool

BASE = 1_000_000


def steps(*durations: int) -> Breakdown:
    return TimedBreakdown(PhaseTimes("step", list(durations)), [], PhaseTimes("unattributed", []))


def compare(a: list[Breakdown], b: list[Breakdown]) -> StepChange:
    medians = [block_medians([each.steady.durations for each in run]) for run in (a, b)]
    return compare_steps(*medians, thresholds_of("run"))


def compared(after: int, *, jitter: int = 0, count: int = 100) -> StepChange:
    """Compare 100 steps of 1 ms with steps of `after` ns; blocks of ten vary by +-`jitter` ns."""

    def run(ns: int) -> Breakdown:
        return steps(*(ns + (jitter if (n // 10) % 2 else -jitter) for n in range(count)))

    return compare([run(BASE)], [run(after)])


@pytest.mark.parametrize(
    ("after", "kind", "severity"),
    [
        (BASE + 29_999, "INCONCLUSIVE", "info"), (BASE + 30_000, "SLOWER", "warn"),
        (BASE + 30_001, "SLOWER", "warn"), (BASE + 79_999, "SLOWER", "warn"),
        (BASE + 80_000, "SLOWER", "crit"), (BASE + 80_001, "SLOWER", "crit"),
        (BASE - 29_999, "INCONCLUSIVE", "info"), (BASE - 30_000, "FASTER", "info"),
        (BASE - 80_000, "FASTER", "info"), (BASE, "INCONCLUSIVE", "info"),
    ],
)  # fmt: skip
def test_thresholds(after: int, kind: str, severity: str) -> None:
    found = compared(after)
    assert (found.kind, found.severity) == (kind, severity)
    assert found.change == pytest.approx((after - BASE) / BASE)
    assert found.noise == 0
    assert found.is_failure == (kind == "SLOWER")


def test_a_change_within_the_noise_is_inconclusive() -> None:
    assert compared(BASE + 100_000).kind == "SLOWER"
    noisy = compared(BASE + 100_000, jitter=100_000)
    assert noisy.kind == "INCONCLUSIVE"
    assert noisy.noise is not None
    assert noisy.noise > 0.1
    assert compared(BASE + 100_000, jitter=10_000).kind == "SLOWER"


def test_single_slow_steps_are_not_noise() -> None:
    calm = [BASE] * 100
    spiked = [BASE * (50 if n % 10 == 5 else 1) for n in range(100)]
    found = compare([steps(*calm)], [steps(*spiked)])
    assert (found.kind, found.change, found.noise) == ("INCONCLUSIVE", 0, 0)


@pytest.mark.parametrize("count", [0, 19])
def test_too_few_steps(count: int) -> None:
    found = compared(2 * BASE, count=count)
    assert (found.kind, found.change, found.noise) == ("INCONCLUSIVE", None, None)
    assert "A has too few steps" in found.why
    assert compared(2 * BASE, count=20).kind == "SLOWER"


def test_every_rank_needs_steps() -> None:
    long, short = steps(*[BASE] * 40), steps(*[BASE] * 5)
    found = compare([long, long], [long, short])
    assert "B has too few steps" in found.why
    assert compare([long, steps()], [long]).change == 0


def job(folder: Path, forward: float) -> Path:
    rank = Rank(0)
    for number in range(60):
        rank.step(number, {"data_load": 1, "forward": forward, "backward": 4})
    return write_spool(folder, [rank])


@pytest.mark.parametrize(
    ("forward", "kind", "codes"),
    [(5, "INCONCLUSIVE", (0, 0)), (5.5, "SLOWER", (6, 0)), (7, "SLOWER", (6, 6)),
     (3, "FASTER", (0, 0))],
)  # fmt: skip
def test_the_command(
    tmp_path: Path, forward: float, kind: str, codes: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    a, b = job(tmp_path / "a", 5), job(tmp_path / "b", forward)
    found = tuple(
        run_command(["diff", str(a), str(b), "--fail-on", level]) for level in ("warn", "crit")
    )
    assert found == codes
    capsys.readouterr()
    assert run_command(["diff", str(a), str(b), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["kind"] == kind
    assert set(document["verdict"]) == {"kind", "severity", "change", "noise", "why"}
    assert document["a"]["verdicts"][0]["kind"] == "COMPUTE_BOUND"
    assert run_command(["diff", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert f"\n{kind}: a step takes 10 ms in A" in text
    assert text.count("COMPUTE_BOUND (crit, rank 0)") == 2
