"""The window of the verdicts on a run, and the diagnosis of a run's batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ...run.figures.memory import MemorySample
from ...run.figures.readings import ReadingsFold
from ...run.opening import open_run
from ...run.relations import listed
from ...run.run import Run
from ...run.stall import Stall
from ...spool.reader import BatchFile, SpoolReader
from .diagnosis import Diagnosis, diagnose
from .summary_window import summary_window
from .thresholds import Thresholds
from .window import StepWindow
from .window_keys import WindowKeys
from .window_readings import NonFiniteFold, rank_memory
from .window_sums import WindowSums

_MOST_MISSING: Final = 1000


def diagnose_batches(
    batches: Iterable[BatchFile],
    limits: Thresholds,
    world_size: int | None = None,
    *,
    unit: str | None = None,
) -> Diagnosis:
    """Return the diagnosis of a run's batches, for example of a SpoolReader.

    `world_size` is the number of ranks that the run should have, if it is known. `unit` and the
    errors are those of `open_run`.
    """
    reader = batches if isinstance(batches, SpoolReader) else None
    with open_run(batches, reader, unit=unit) as run:
        return diagnose(step_window(run, limits, world_size), limits)


def step_window(
    run: Run, limits: Thresholds, world_size: int | None = None, stalls: Sequence[Stall] = ()
) -> StepWindow:
    """Return the window of the last aligned units, or of a summary of a run without units.

    `world_size` is the number of ranks that the run should have, if it is known.
    """
    recording = run.recording
    if not run.has_units:
        window = summary_window(recording.summary_values(), limits.policy)
        if window is not None:
            return window
    steps = _window_sums(run, limits)
    first, last = steps.ends()
    begin_ns, end_ns = steps.times()
    times = None
    if limits.policy == "live" and begin_ns is not None and end_ns is not None:
        times = begin_ns, end_ns
    readings, non_finite = (
        ReadingsFold(recording.texts, times), NonFiniteFold(recording.texts, times)
    )  # fmt: skip
    for block in recording.mark_blocks():
        readings.add(block)
        non_finite.add(block)
    samples = [MemorySample(*each) for each in recording.samples()]
    return StepWindow(
        policy=limits.policy,
        steps=steps.count,
        ranks=steps.ranks(),
        clock=steps.clock,
        first=first,
        last=last,
        slow_steps=steps.slow,
        summarised=steps.summarised(),
        missing_ranks=_missing(steps.present(), world_size),
        memory=rank_memory(samples, steps, round(limits["memory.steps"])),
        cpu=readings.cpu(),
        gpu=readings.gpu(),
        temperature=readings.temperature(),
        non_finite=non_finite.result(),
        outside=steps.outside(),
        stalls=list(stalls),
    )


def _window_sums(run: Run, limits: Thresholds) -> WindowSums:
    recording, texts = run.recording, run.recording.texts
    keys = WindowKeys(texts, lambda token: texts.token(run.epoch_of(texts.text(token))), limits)
    for units, _ in recording.unit_blocks():
        keys.add(units)
    sums = WindowSums(texts, keys.choose(), recording.unit_sessions)
    for units, parts in recording.unit_blocks():
        sums.add(units, listed(parts, texts))
    sums.finish()
    return sums


def _missing(present: set[int | None], world_size: int | None) -> list[int]:
    """Return the ranks of the job without a unit, at most 1,000."""
    ranks = range(min(world_size or 0, len(present) + _MOST_MISSING))
    return [rank for rank in ranks if rank not in present] if present else []
