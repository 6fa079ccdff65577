"""The window of a run of which only a summary exists: the means of its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from ...records.run_summary import SummaryValue
from ...run.utilization import Utilization
from .thresholds import Policy
from .window import RankMemory, RankSteps, StepMeans, StepWindow

_MOST: Final = 1_000_000
_PREFIX: Final = "traceml."
_MS: Final = 1_000_000
_MOST_MS: Final = 1e12
"""Times from here on, and negative ones, are not valid."""
_STEPS: Final = "step_time.steps_analyzed"
_TOTAL: Final = ("step_time.total_step_ms", "step_time.step_time_ms")
_INPUT: Final = (
    "step_time.dataloader_ms", "step_time.input_wait_ms", "step_time.dataloader_fetch_cpu_ms",
)  # fmt: skip
"""The same figures under the names of older and newer schemas."""
_PEAKS: Final = ("step_memory.peak_reserved_bytes", "step_memory.peak_allocated_bytes")


def summary_window(values: Iterable[SummaryValue], policy: Policy) -> StepWindow | None:
    """Return the window of the figures of a summary; None if they have no times of steps."""
    by_rank: dict[int | None, dict[str, float]] = {}
    for name, rank, value in sorted(itertools.islice(values, _MOST), key=_of_rank):
        by_rank.setdefault(rank, {})[name.removeprefix(_PREFIX)] = value
    # Figures of the whole run and of hosts have no rank.
    whole = by_rank.pop(None, {})
    times = {rank: means for rank, values in by_rank.items() if (means := _means(values))}
    if not times:
        return None
    steps = int(whole.get(_STEPS, 0))
    return StepWindow(
        policy=policy,
        steps=steps,
        ranks=[RankSteps(rank, means) for rank, means in sorted(times.items(), key=_rank)],
        memory=[
            RankMemory(rank, steps, int(peak), None, None)
            for rank, values in by_rank.items()
            if (peak := _first(values, _PEAKS)) is not None
        ],
        cpu=_reading(whole, "system.cpu_percent", "host", 100),
        gpu=_reading(whole, "system.gpu_util_percent", "gpu", 100),
        temperature=_reading(whole, "system.gpu_temp_c", "gpu", 1),
    )


def _means(values: Mapping[str, float]) -> StepMeans | None:
    """Return the mean times of a rank; None if the summary has none that are valid."""
    total, loading = _first(values, _TOTAL), _first(values, _INPUT)
    if total is None or loading is None:
        return None
    names = ("h2d", "forward", "backward", "optimizer")
    parts = [values.get(f"step_time.{name}_ms", 0.0) for name in names]
    if not all(0 <= ms < _MOST_MS for ms in (total, loading, *parts)):
        return None
    h2d, forward, backward, optimizer = (ms * _MS for ms in parts)
    step = max((total - loading) * _MS, h2d + forward + backward + optimizer)
    return StepMeans(step, loading * _MS, h2d, forward, backward, optimizer)


def _first(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _reading(
    values: Mapping[str, float], name: str, source: str, whole: float
) -> list[Utilization]:
    return [Utilization(None, source, values[name] / whole)] if name in values else []


def _of_rank(value: SummaryValue) -> tuple[bool, int]:
    return value[1] is not None, value[1] or 0


def _rank(entry: tuple[int | None, StepMeans]) -> int:
    return -1 if entry[0] is None else entry[0]
