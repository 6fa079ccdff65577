"""Sums over all spans of each rank, and over those of each name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from ....semconv import HOST_NAME
from ...analysis.run_batch import either
from ...records.rows import IndexedSpan, shown
from ..relations import INT64
from .errors import NotReducibleError
from .phases import duration_of

_RECOMPUTE: Final = "recompute"
_NO_ATTRIBUTES: Final = msgspec.Raw(b"{}")
N = TypeVar("N", int, int | None)


@dataclass(slots=True)
class RankSums:
    """The spans of a rank."""

    spans: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    """The earliest start and the latest end, Unix ns."""
    recompute_ns: int = 0
    """The time of scopes that recompute activations, ns."""
    overhead_ns: int = 0
    """The time of tracing itself, by its marks in batches that begin with a span of the rank."""
    details: dict[str, Any] = field(default_factory=dict)
    """The host and the configuration of the process that recorded the rank, by attribute; of
    several values, the last one."""

    @property
    def host(self) -> str | None:
        """The host that recorded the rank; None if it is unknown."""
        host = self.details.get(HOST_NAME)
        return shown(host) if isinstance(host, str) else None

    def add(self, spans: Sequence[IndexedSpan]) -> None:
        """Add spans of this rank."""
        self.spans += len(spans)
        starts = [span.start_ns for span in spans if span.start_ns is not None]
        ends = [span.end_ns for span in spans if span.end_ns is not None]
        if starts:
            first = check(min(starts))
            check(max(starts))
            self.first_ns = first if self.first_ns is None else min(self.first_ns, first)
        if ends:
            last = check(max(ends))
            check(min(ends))
            self.last_ns = last if self.last_ns is None else max(self.last_ns, last)
        self.recompute_ns += sum(
            [duration_of(span) or 0 for span in spans if span.name == _RECOMPUTE]
        )


@dataclass(slots=True)
class NameSums:
    """The spans of a rank with one name that have a time on the device, or a peak of memory."""

    timed: int = 0
    """The number of spans with a time on the device."""
    gpu_ns: int = 0
    wall_ns: int = 0
    """The times of these spans on the device and on the host, ns."""
    device_peak: int | None = None
    memory_peak: int | None = None
    """The highest exact peaks, bytes."""
    sampled_device_peak: int | None = None
    sampled_memory_peak: int | None = None
    """The highest peaks that are the largest samples, bytes."""


@dataclass(slots=True)
class LaneSums:
    """The sums of all ranks."""

    ranks: dict[int | None, RankSums] = field(default_factory=dict)
    names: dict[tuple[int | None, str], NameSums] = field(default_factory=dict)

    def add(self, spans: Sequence[IndexedSpan]) -> None:
        """Add the spans of a batch."""
        present = {span.rank for span in spans}
        for number in (*present, *{span.pid for span in spans}):
            check(number)
        for rank in present:
            some = spans if len(present) == 1 else [s for s in spans if s.rank == rank]
            self.ranks.setdefault(rank, RankSums()).add(some)
        for span in spans:
            if (
                span.gpu_ns is not None
                or span.memory_peak_bytes is not None
                or span.attrs != _NO_ATTRIBUTES
            ):
                self._add_costs(span)

    def add_overhead(self, rank: int | None, ns: int) -> None:
        """Add the time of tracing that the marks of a batch record.

        `rank` is that of the first span of the batch.
        """
        if ns:
            self.ranks.setdefault(rank, RankSums()).overhead_ns += ns

    def add_details(self, ranks: Iterable[int | None], details: Mapping[str, Any]) -> None:
        """Add the details of the process that recorded a batch with spans of some ranks.

        The spans of a rank without a number have those of batches in which no rank has one.
        """
        if details:
            numbers = {rank for rank in ranks if rank is not None}
            for rank in numbers or (None,):
                self.ranks.setdefault(rank, RankSums()).details.update(details)

    def _add_costs(self, span: IndexedSpan) -> None:
        peaks = span.device_peaks[0], span.memory_peak_bytes
        for number in (span.gpu_ns, *peaks):
            check(number)
        if span.gpu_ns is None and peaks == (None, None):
            return
        sums = self.names.setdefault((span.rank, shown(span.name) or "?"), NameSums())
        if span.gpu_ns is not None:
            sums.timed += 1
            sums.gpu_ns += max(span.gpu_ns, 0)
            sums.wall_ns += duration_of(span) or 0
        if span.is_peak_sampled:
            sums.sampled_device_peak = either(max, sums.sampled_device_peak, peaks[0])
            sums.sampled_memory_peak = either(max, sums.sampled_memory_peak, peaks[1])
        else:
            sums.device_peak = either(max, sums.device_peak, peaks[0])
            sums.memory_peak = either(max, sums.memory_peak, peaks[1])


def check(number: N) -> N:
    """Return a number of 64 bits that is not `ABSENT`. Raises NotReducibleError for any other."""
    if number is not None and number not in INT64:
        raise NotReducibleError("a number has more than 64 bits")
    return number
