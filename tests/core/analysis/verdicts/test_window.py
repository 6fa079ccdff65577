"""The window of steps from records: alignment, phases, clocks, memory and other readings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.verdicts.diagnosis import Diagnosis, diagnose
from cirron_otel.core.analysis.verdicts.run_window import step_window
from cirron_otel.core.analysis.verdicts.thresholds import Thresholds, thresholds_of
from cirron_otel.core.analysis.verdicts.window import StepMeans, StepWindow
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import SpoolReader

from .records import MS, Rank, write_spool

WAYS = (False, True)
PHASES = {"data_load": 2, "forward": 3, "backward": 4, "optimizer_step": 1}


def window_of(folder: Path, *ranks: Rank, policy: Any = "run", world: int | None = None,
              changes: tuple[str, ...] = ()) -> StepWindow:  # fmt: skip
    write_spool(folder, ranks)
    reader = SpoolReader(folder)
    found, other = (_window(reader, way, thresholds_of(policy, changes), world) for way in WAYS)
    assert found == other
    assert not reader.findings
    return found


def _window(
    reader: SpoolReader, in_columns: bool, limits: Thresholds, world: int | None
) -> StepWindow:
    with open_run(reader, in_columns=in_columns) as run:
        return step_window(run, limits, world)


def diagnosis_of(folder: Path, *ranks: Rank, **options: Any) -> Diagnosis:
    return diagnose(window_of(folder, *ranks, **options), thresholds_of("run"))


def trained(rank: int | None = 0, steps: int = 60, phases: Any = PHASES, **more: Any) -> Rank:
    records = Rank(rank, pid=10 + (rank or 0))
    for number in range(steps):
        records.step(number, phases, **more)
    return records


def ms(times: StepMeans) -> dict[str, float]:
    names = ("step", "input", "h2d", "forward", "backward", "optimizer", "wait")
    found = {name: getattr(times, name) / MS for name in names}
    return found | {name: ns / MS for name, ns in times.others.items()}


def test_the_parts_of_a_step(tmp_path: Path) -> None:
    """The loss is compute; a collective is a wait; a user's scope is neither, and is named."""
    phases = PHASES | {
        "loss": 0.5, "h2d": 0.25, "zero_grad": 0.125, "clip_grad": 0.0625,
        "scheduler_step": 0.03125, "augment": 8, "collective": 16, "": 32,
    }  # fmt: skip
    found = window_of(tmp_path, trained(phases=phases))
    [rank] = found.ranks
    assert (rank.rank, found.steps, found.clock, found.first, found.last) == (
        0, 60, "host", (None, "0"), (None, "59"),
    )  # fmt: skip
    assert ms(rank.means) == pytest.approx({
        "step": 64.96875, "input": 2, "h2d": 0.25, "forward": 3.5, "backward": 4,
        "optimizer": 1.21875, "wait": 48, "augment": 8,
    })  # fmt: skip


def test_readings_that_are_not_finite_numbers_are_left_out(tmp_path: Path) -> None:
    """They are no reading of 0, which would be a device that does nothing."""
    records = trained()
    for value in ("nan", "inf", "-inf"):
        records.mark("hw.gpu.utilization", value, **{"hw.id": "cuda:0"})
        records.mark("hw.temperature", value, **{"hw.id": "cuda:0"})
    records.mark("hw.gpu.utilization", 0.5, **{"hw.id": "cuda:1"})
    records.mark("hw.gpu.utilization", "nan", **{"hw.id": "cuda:1"})
    found = window_of(tmp_path, records)
    assert found.gpu == [(0, "cuda:1", 0.5)]
    assert found.temperature == []
    assert len(found.non_finite) == 2


def test_micro_steps_count_into_their_step(tmp_path: Path) -> None:
    records = Rank()
    for number in range(60):
        key = records.step(number, {"micro_step": PHASES, "optimizer_step": 5})
        assert key
    [rank] = window_of(tmp_path, records).ranks
    assert ms(rank.means) == pytest.approx(
        {"step": 13, "input": 2, "h2d": 0, "forward": 3, "backward": 4, "optimizer": 6, "wait": 0}
    )


def test_phases_in_a_scope_of_the_users(tmp_path: Path) -> None:
    """The scope has the time that its phases leave."""
    records = Rank()
    for number in range(60):
        records.step(number, {"closure": {"forward": 3, "backward": 4, "": 2}})
    [rank] = window_of(tmp_path, records).ranks
    assert ms(rank.means)["closure"] == pytest.approx(2)
    assert ms(rank.means)["forward"] == pytest.approx(3)


def test_steps_are_aligned_by_epoch_and_number(tmp_path: Path) -> None:
    """Rank 1 lacks a step of the first epoch, and rank 0 the end of the second."""
    one, other = Rank(0, pid=1), Rank(1, pid=2)
    for rank, counts in ((one, (3, 4)), (other, (2, 6))):
        for epoch, count in enumerate(counts):
            rank.epoch(epoch)
            for number in range(count):
                rank.step(number, {"forward": 100 * epoch + number + 1})
    found = window_of(tmp_path, one, other)
    assert found.steps == 2 + 4
    assert (found.first, found.last) == (("0", "0"), ("1", "3"))
    expected = pytest.approx((1 + 2 + 101 + 102 + 103 + 104) / 6)
    assert [ms(each.means)["forward"] for each in found.ranks] == [expected, expected]


def test_the_window_is_the_last_steps(tmp_path: Path) -> None:
    records = Rank()
    for number in range(30):
        records.step(number, {"forward": number + 1})
    found = window_of(tmp_path, records, changes=("window.steps=10",))
    assert (found.steps, found.first, found.last) == (10, (None, "20"), (None, "29"))
    assert ms(found.ranks[0].means)["forward"] == pytest.approx(25.5)


def test_a_restarted_job_repeats_steps(tmp_path: Path) -> None:
    """Steps 0 to 9, then again from 5: each occurrence is aligned with the other rank's."""
    ranks = []
    for rank in (0, 1):
        first, again = Rank(rank, pid=1 + rank), Rank(rank, pid=11 + rank)
        for number in range(10):
            first.step(number, {"forward": 1})
        again.at = again.begun = first.at + 3_600_000 * MS
        for number in range(5, 15):
            again.step(number, {"forward": 3})
        ranks += [first, again]
    found = window_of(tmp_path, *ranks)
    assert found.steps == 20
    assert [ms(each.means)["forward"] for each in found.ranks] == [pytest.approx(2)] * 2
    assert [each.outside_ns for each in found.outside] == [0, 0]  # the pause is in no session


def test_ranks_without_a_step(tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, trained(0), trained(2), world=4)
    assert found.not_assessed["STRAGGLER"] == "no step of rank 1, 3 is recorded"
    assert found.ranks == [0, 2]


def test_no_step_at_all(tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, Rank(0))
    assert (found.steps, found.ranks, found.primary.kind) == (0, [], "WARMUP")
    assert found.phases == []


def test_a_process_without_a_rank(tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, trained(None, phases={"data_load": 9, "forward": 1}))
    assert (found.ranks, found.primary.kind, found.primary.ranks) == ([None], "INPUT_BOUND", [])


GPU = {"forward": 5, "backward": 6, "optimizer_step": 2}


def test_the_device_clock(tmp_path: Path) -> None:
    """The host takes 10 ms, 2 of them to load; the device works for 13, and is never idle."""
    [rank] = window_of(tmp_path / "busy", trained(gpu=GPU)).ranks
    assert ms(rank.means) == pytest.approx(
        {"step": 13, "input": 0, "h2d": 0, "forward": 5, "backward": 6, "optimizer": 2, "wait": 0}
    )
    idle = window_of(tmp_path / "idle", trained(phases=PHASES | {"": 4}, gpu=GPU))
    assert idle.clock == "device"
    assert ms(idle.ranks[0].means)["input"] == pytest.approx(1)  # 14 ms, of which 13 on the device
    slow = window_of(tmp_path / "slow", trained(phases=PHASES | {"": 9}, gpu=GPU))
    assert ms(slow.ranks[0].means) == pytest.approx(
        {"step": 17, "input": 2, "h2d": 0, "forward": 5, "backward": 6, "optimizer": 2, "wait": 4}
    )


def test_one_phase_without_a_device_time_decides_the_clock(tmp_path: Path) -> None:
    some = {name: ns for name, ns in GPU.items() if name != "backward"}
    found = window_of(tmp_path / "a", trained(0, gpu=GPU), trained(1, gpu=some))
    assert found.clock == "host"
    assert ms(found.ranks[0].means)["forward"] == pytest.approx(3)
    found = window_of(tmp_path / "b", trained(0, gpu=GPU), trained(1, gpu=GPU))
    assert found.clock == "device"


def test_a_few_slow_steps(tmp_path: Path) -> None:
    """Two of 60 steps take 50 times as long, as with compilation; three would still be few."""
    records = Rank()
    for number in range(60):
        records.step(number, {"forward": 10, "": 1000 if number < 2 else 0})
    found = window_of(tmp_path / "few", records)
    assert found.slow_steps == 2
    [rank] = found.ranks
    assert rank.typical is not None
    assert ms(rank.typical)["step"] == pytest.approx(10)
    assert ms(rank.means)["step"] == pytest.approx((60 * 10 + 2000) / 60)
    primary = diagnose(found, thresholds_of("run")).primary
    assert primary.kind == "WAIT_HEAVY"
    assert "2 of the 60 steps carry this verdict" in primary.why
    records = Rank()
    for number in range(60):
        records.step(number, {"forward": 10, "": 1000 if number < 4 else 0})
    assert window_of(tmp_path / "many", records).slow_steps == 0


GB = 10**9


def with_memory(rank: int, peaks: list[int], *, total: int | None = 80 * GB) -> Rank:
    records = Rank(rank, pid=rank + 1)
    for number, peak in enumerate(peaks):
        records.step(number, {"forward": 10}, **{
            "cuda.memory_peak_bytes": peak // 2, "cuda.memory_reserved_peak_bytes": peak,
        })  # fmt: skip
    if total is not None:
        records.mark("memory", 1, backend="cuda", device_id=0, device_total_bytes=total)
    return records


def test_the_peaks_of_the_steps(tmp_path: Path) -> None:
    grown = [10 * GB + number * GB // 10 for number in range(100)]
    found = window_of(tmp_path, with_memory(0, grown), with_memory(1, [70 * GB] * 100))
    first, second = found.memory
    assert (first.rank, first.steps, first.peak, first.capacity) == (0, 100, grown[-1], 80 * GB)
    means = [sum(grown[low:high]) / (high - low) for low, high in ((15, 25), (45, 55), (90, 100))]
    assert first.course == pytest.approx(tuple(means))
    assert second.course == (70 * GB,) * 3
    kinds = [each.kind for each in diagnose(found, thresholds_of("run")).verdicts]
    assert "IMBALANCE" in kinds
    assert "CREEP_CONFIRMED" not in kinds  # the worst rank does not grow


def test_creep_of_one_rank(tmp_path: Path) -> None:
    grown = [10 * GB + number * GB // 10 for number in range(100)]
    found = diagnosis_of(tmp_path, with_memory(0, grown, total=None))
    assert "CREEP_CONFIRMED" in [each.kind for each in found.verdicts]
    assert found.not_assessed["HIGH_PRESSURE"] == "the capacity of the device is not recorded"


def test_samples_replace_missing_peaks(tmp_path: Path) -> None:
    records = Rank()
    for number in range(100):
        key = records.step(number, {"forward": 10})
        sizes = {"allocator_reserved_bytes": 78 * GB, "device_total_bytes": 80 * GB}
        records.mark("memory", 60 * GB, key, backend="cuda", device_id=0, **sizes)
        records.mark("memory", 9 * GB, key, backend="cuda", device_id=1, **sizes | {
            "allocator_reserved_bytes": 10 * GB,
        })  # fmt: skip
        records.mark("memory", 500 * GB, key, backend="cpu", device_id=-1)
    [memory] = window_of(tmp_path, records).memory
    assert (memory.peak, memory.capacity, memory.steps) == (78 * GB, 80 * GB, 100)
    assert memory.course == (78 * GB,) * 3


def test_utilization_and_temperature(tmp_path: Path) -> None:
    records = trained(0)
    for busy, degrees in ((0.1, 60), (0.3, 90)):
        records.mark("process.cpu.utilization", busy)
        records.mark("hw.gpu.utilization", busy, **{"hw.id": "cuda:0"})
        records.mark("hw.temperature", degrees, **{"hw.id": "cuda:0"})
    found = window_of(tmp_path / "process", records)
    assert found.cpu == [(0, "process", pytest.approx(0.2))]
    assert found.gpu == [(0, "cuda:0", pytest.approx(0.2))]
    assert found.temperature == [(0, "cuda:0", 90.0)]
    records = trained(0)
    records.mark("hw.gpu.utilization", "nan", **{"hw.id": "cuda:0"})  # not a reading
    records.mark("process.cpu.utilization", 0.5)
    records.mark("system.cpu.utilization", 0.9)
    found = window_of(tmp_path / "host", records)
    assert (found.cpu, found.gpu) == ([(0, "host", 0.9)], [])


def test_live_readings_are_limited_to_the_window(tmp_path: Path) -> None:
    records = Rank()
    records.mark("process.cpu.utilization", 1.0)
    records.mark("loss", "nan")
    for number in range(40):
        records.step(number, {"forward": 10})
        records.mark("process.cpu.utilization", 0.5)
    settings = ("window.steps=20",)
    live = window_of(tmp_path / "live", records, policy="live", changes=settings)
    assert (live.policy, live.steps) == ("live", 20)
    assert live.cpu == [(0, "process", pytest.approx(0.5))]
    assert live.non_finite == []
    records.spans.pop()  # the session is written again
    whole = window_of(tmp_path / "run", records, changes=settings)
    assert whole.cpu == [(0, "process", pytest.approx(21 / 41))]
    assert whole.non_finite == [("loss", 0, 1)]


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    records = trained(0)
    for value in ("nan", "inf", 1.0, "-inf"):
        records.mark("loss", value)
    assert window_of(tmp_path, records).non_finite == [("loss", 0, 3)]


def test_time_between_steps(tmp_path: Path) -> None:
    found = window_of(tmp_path, trained(0, steps=61, gap=10))
    [outside] = found.outside
    assert (outside.total_ns, outside.outside_ns) == (60 * 20 * MS + 10 * MS, 60 * 10 * MS)


def test_many_scopes_are_summed_up(tmp_path: Path) -> None:
    records = Rank()
    for number in range(200):
        records.step(number, {f"scope {number}": 1})
    [rank] = window_of(tmp_path, records).ranks
    assert len(rank.means.others) == 101
    assert rank.means.others["other scopes"] == pytest.approx(0.5 * MS)
    assert rank.means.wait == pytest.approx(0)


def test_a_rank_that_is_late_between_its_steps(tmp_path: Path) -> None:
    """Rank 1 works for 10 ms after each step; rank 0 waits for it in its backward pass."""
    waiting = PHASES | {"backward": 14}
    found = window_of(tmp_path, trained(0, phases=waiting), trained(1, gap=10))
    assert [each.means.outside for each in found.ranks] == [0, pytest.approx(10 * MS * 59 / 60)]
    primary = diagnose(found, thresholds_of("run")).primary
    assert (primary.kind, primary.ranks) == ("WAIT_STRAGGLER", [1])


def test_the_gaps_of_sums_are_not_measured(tmp_path: Path) -> None:
    """The start of an imported step is derived, so the time before it is no measurement."""
    records = trained(0, gap=10, **{"traceml.phases_are_sums": True})
    assert window_of(tmp_path, records).ranks[0].means.outside == 0
