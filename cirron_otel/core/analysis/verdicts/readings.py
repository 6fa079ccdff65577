"""Memory, utilisation and other states of a run, from an index, for a window of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ..index import SpoolIndex
from .aligned_steps import mean_of_band
from .window import NonFinite, RankMemory, Utilization, WindowSteps

MAX_ROWS: Final = 1000
_BANDS: Final = ((0.15, 0.25), (0.45, 0.55), (0.90, 1.0))

# Without peaks of the steps: the samples. A rank's memory is that of its fullest device.
_SAMPLES = """
SELECT span.rank, sample.device, max(coalesce(reserved, allocated)) AS peak, {bands}
FROM sample JOIN mark ON mark.file = sample.file AND mark.position = sample.position
JOIN span ON span.id = mark.span
WHERE sample.kind = 'sample' AND sample.device <> 'cpu' AND mark.ts_ns BETWEEN ?1 AND ?2
GROUP BY span.rank, sample.device ORDER BY span.rank, peak
"""
_CAPACITY = """
SELECT span.rank, max(sample.device_total)
FROM sample JOIN mark ON mark.file = sample.file AND mark.position = sample.position
JOIN span ON span.id = mark.span
WHERE sample.device_total IS NOT NULL AND sample.device <> 'cpu' GROUP BY span.rank
"""
_READINGS = """
SELECT span.rank, coalesce(mark.device, ''), {value}(finite_number(mark.value))
FROM mark JOIN span ON span.id = mark.span
WHERE mark.name = ?1 AND mark.value GLOB '[0-9-]*' AND mark.ts_ns BETWEEN ?2 AND ?3
GROUP BY span.rank, mark.device ORDER BY span.rank, mark.device LIMIT ?4
"""
_NON_FINITE = """
SELECT mark.name, span.rank, count(*) FROM mark LEFT JOIN span ON span.id = mark.span
WHERE mark.value IN ('nan', 'inf', '-inf') AND mark.name IS NOT NULL
    AND mark.ts_ns BETWEEN ?1 AND ?2
GROUP BY mark.name, span.rank ORDER BY min(mark.ts_ns) LIMIT ?3
"""
_ALL_TIME: Final = (-(2**63), 2**63 - 1)


def finite_number(text: str | None) -> float | None:
    """Return the number in the text of a mark's value; None if it is not a finite number."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def rank_memory(index: SpoolIndex, steps: WindowSteps, need: int) -> list[RankMemory]:
    """Return the device memory of each rank over the window; empty if none is recorded.

    The peaks of the steps are used if at least `need` steps have one, else the samples.
    """
    capacity = dict(index.rows(_CAPACITY))
    exact = [
        RankMemory(rank, count, peak, capacity.get(rank), _course(means))
        for rank, count, peak, *means in steps.peaks(_BANDS)
    ]
    if exact and min(each.steps for each in exact) >= need:
        return exact
    return list(_sampled(index, steps, capacity)) or exact


def _sampled(
    index: SpoolIndex, steps: WindowSteps, capacity: dict[int | None, int]
) -> Iterator[RankMemory]:
    first_ns, last_ns = steps.times()
    if first_ns is None or last_ns is None:
        return
    position = f"(CAST(mark.ts_ns - {first_ns} AS REAL) / {max(last_ns - first_ns, 1)})"
    value = "coalesce(reserved, allocated)"
    bands = ", ".join(mean_of_band(value, position, *band) for band in _BANDS)
    fullest = {row[0]: row for row in index.rows(_SAMPLES.format(bands=bands), first_ns, last_ns)}
    for rank, _, peak, *means in fullest.values():
        yield RankMemory(rank, steps.count, peak, capacity.get(rank), _course(means))


def _course(means: list[float | None]) -> tuple[float, float, float] | None:
    early, middle, late = means
    if early is None or middle is None or late is None:
        return None
    return early, middle, late


class StateReadings:
    """The readings of the sampler, and the values that are not finite.

    For a live window they are those of its time, and for a complete run they are all of them.
    """

    def __init__(self, index: SpoolIndex, times: tuple[int, int] = _ALL_TIME) -> None:
        self._index, self._times = index, times
        index.function(finite_number)

    def cpu(self) -> list[Utilization]:
        """Return the mean CPU utilisation of the host, or else of each process."""
        host = self._read("system.cpu.utilization", "avg", "host")
        return host or self._read("process.cpu.utilization", "avg", "process")

    def gpu(self) -> list[Utilization]:
        """Return the mean utilisation of each device."""
        return self._read("hw.gpu.utilization", "avg", "gpu")

    def temperature(self) -> list[Utilization]:
        """Return the highest temperature of each device, °C."""
        return self._read("hw.temperature", "max", "gpu")

    def _read(self, name: str, value: str, source: str) -> list[Utilization]:
        rows = self._index.rows(_READINGS.format(value=value), name, *self._times, MAX_ROWS)
        return [
            Utilization(rank, device or source, number)
            for rank, device, number in rows if number is not None and math.isfinite(number)
        ]  # fmt: skip

    def non_finite(self) -> list[NonFinite]:
        """Return the marks with values that are not finite, in order of their first one."""
        rows = self._index.rows(_NON_FINITE, *self._times, MAX_ROWS)
        return [NonFinite(*row) for row in rows]
