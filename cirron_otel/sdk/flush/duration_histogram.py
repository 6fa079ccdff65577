"""A histogram of durations, filled once per flush, with an exemplar for each bucket.

OpenTelemetry's histograms accept one value per call. A call takes 6 µs on the flush thread, which
shares the interpreter lock with training. This histogram accepts a list and takes 0.3 µs per value.
Its result follows the data model
(opentelemetry.io/docs/specs/otel/metrics/data-model): explicit or base-2 exponential buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, log2
from typing import NamedTuple

from ..tracing.clock import wall
from ..tracing.scope import Scope

BOUNDS_NS = (*(each * 10**power for power in range(4, 11) for each in (1, 2, 5)), 10**11)
"""Upper bounds of the buckets, inclusive: 1, 2 and 5 of each power of ten from 10 µs to 100 s."""
FINEST_SCALE = 6
"""The finest scale of exponential buckets: 64 for each factor of two, each 1.1 % wide."""
MOST_EXPONENTIAL = 160
"""Maximum number of buckets (specification, "Base2 Exponential Bucket Histogram": MaxSize)."""

_bucket = partial(bisect_left, BOUNDS_NS)
_FINEST = 1 << FINEST_SCALE


class Example(NamedTuple):
    """One measured span: the content of an exemplar."""

    length_ns: int
    time_ns: int
    """End of the span, wall-clock time."""
    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """The state of a metric series at one moment."""

    start_ns: int
    """Start of the series, wall-clock time."""
    count: int
    sum_ns: int
    least_ns: int
    most_ns: int
    buckets: dict[int, int]
    """Number of durations in each non-empty bucket, by its index in BOUNDS_NS or by its exponential
    index at FINEST_SCALE."""
    examples: list[Example]


class Durations:
    """One metric series of durations. It is not thread-safe."""

    __slots__ = ("_bucket_of", "_buckets", "_examples", "_least", "_most", "_start_ns", "_sum")

    def __init__(self, start_ns: int, *, is_exponential: bool = False) -> None:
        """`start_ns`: start of the series, wall-clock time."""
        self._bucket_of = exponential_index if is_exponential else _bucket
        self._start_ns = start_ns
        self._buckets: Counter[int] = Counter()
        self._sum = self._most = 0
        self._least: int | None = None
        self._examples: dict[int, Example] = {}

    def add(self, lengths: Sequence[int]) -> None:
        """Add one or more durations in nanoseconds."""
        self._buckets.update(map(self._bucket_of, lengths))
        self._sum += sum(lengths)
        least, self._most = min(lengths), max(*lengths, self._most)
        self._least = least if self._least is None else min(least, self._least)

    def exemplify(self, lengths: Iterable[int], scopes: Iterable[Scope], *, all_: bool) -> None:
        """Retain the last scope of each bucket of BOUNDS_NS; only sampled scopes unless `all_`.

        `scopes` are the scopes whose durations are `lengths`.
        """
        last = dict(zip(map(_bucket, lengths), scopes, strict=False))
        for bucket, scope in last.items():
            trace = scope._trace
            if all_ or trace.is_sampled:
                self._examples[bucket] = Example(
                    scope._end - scope._start,
                    wall(scope._end),
                    int.from_bytes(trace.trace_id, "big"),
                    scope._id,
                )

    def collect(self, now_ns: int, *, is_delta: bool) -> Lengths | None:
        """Return the current state; None if the series is empty.

        Afterwards, the examples are discarded; with `is_delta`, all values are reset.
        """
        if self._least is None:
            return None
        state = Lengths(
            self._start_ns, self._buckets.total(), self._sum, self._least, self._most,
            dict(self._buckets), list(self._examples.values()),
        )  # fmt: skip
        self._examples.clear()
        if is_delta:
            self._buckets.clear()
            self._sum = self._most = 0
            self._least, self._start_ns = None, now_ns
        return state


def exponential_index(length_ns: int) -> int:
    """Return the index of the bucket at FINEST_SCALE: base**index < seconds <= base**(index + 1).

    A length of 0 counts as one nanosecond, because indexes exist only for values above zero.
    """
    return ceil(log2(max(length_ns, 1) / 1e9) * _FINEST) - 1


def exponential(buckets: dict[int, int]) -> tuple[int, int, list[int]]:
    """Convert counts by index at FINEST_SCALE to the scale, offset, and counts of a data point.

    The scale is the finest one that needs at most MOST_EXPONENTIAL buckets.
    """
    low, high, shift = min(buckets), max(buckets), 0
    while (high >> shift) - (low >> shift) >= MOST_EXPONENTIAL:
        shift += 1
    offset = low >> shift
    counts = [0] * ((high >> shift) - offset + 1)
    for index, count in buckets.items():
        counts[(index >> shift) - offset] += count
    return FINEST_SCALE - shift, offset, counts
