"""The window of steps of an index, which the rules take as their input."""

from __future__ import annotations

from ...run.figures.window import WindowKeys, WindowSums
from ...run.relations import Texts
from ..index import SpoolIndex
from .diagnosis import Diagnosis, diagnose
from .readings import StateReadings, rank_memory
from .summary_window import window_of_index
from .thresholds import Thresholds
from .window import Stall, StepWindow, WindowSteps

_MOST_MISSING = 1000


def diagnose_index(
    index: SpoolIndex,
    limits: Thresholds,
    world_size: int | None = None,
    stalls: list[Stall] | None = None,
    steps: WindowSteps | None = None,
) -> Diagnosis:
    """Return the diagnosis of a run whose single records are in an index.

    `world_size` is the number of ranks that the run should have, if it is known. `steps` are the
    aligned steps; None if the run has none. Raises TargetError if there is no disk space.
    """
    return diagnose(read_window(index, limits, world_size, stalls, steps), limits)


def read_window(
    index: SpoolIndex,
    limits: Thresholds,
    world_size: int | None = None,
    stalls: list[Stall] | None = None,
    steps: WindowSteps | None = None,
) -> StepWindow:
    """Return the window of the last aligned steps of an index, or of a summary without steps."""
    if steps is None:
        window = window_of_index(index, limits.policy)
        if window is not None:
            return window
    steps = _no_steps(limits) if steps is None else steps
    first, last = steps.ends()
    begin_ns, end_ns = steps.times()
    readings = StateReadings(index)
    if limits.policy == "live" and begin_ns is not None and end_ns is not None:
        readings = StateReadings(index, (begin_ns, end_ns))
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
        memory=rank_memory(index, steps, round(limits["memory.steps"])),
        cpu=readings.cpu(),
        gpu=readings.gpu(),
        temperature=readings.temperature(),
        non_finite=readings.non_finite(),
        outside=steps.outside(),
        stalls=stalls or [],
    )


def _no_steps(limits: Thresholds) -> WindowSteps:
    texts = Texts()
    steps = WindowSums(texts, WindowKeys(texts, int, limits).choose(), lambda block: block["no"])
    steps.finish()
    return steps


def _missing(present: set[int | None], world_size: int | None) -> list[int]:
    """Return the ranks of the job without a step, at most 1,000."""
    ranks = range(min(world_size or 0, len(present) + _MOST_MISSING))
    return [rank for rank in ranks if rank not in present] if present else []
