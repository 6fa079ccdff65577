"""A sink of the pipeline that computes metric values from the result of each flush.

The flush thread adds values and the thread that sends metrics reads them, so the two share a lock;
threads that record never use it. docs/metrics.md defines the metrics.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Integral
from operator import attrgetter
from typing import Any, Final

from ... import semconv as sc
from ...core.records.memory_points import Attributes, MemoryPoint, memory_points
from ...semconv import MICRO_STEP
from ..session.errors import report_problem
from ..tracing.buffers import MarkEntry
from ..tracing.clock import wall, wall_now
from ..tracing.inference import REQUEST
from ..tracing.loops import STEP
from ..tracing.mark import POINT, SampleAttributes
from ..tracing.scope import Scope
from ..tracing.step_places import EPOCH_ATTRIBUTE, GLOBAL_STEP, StepPlaces
from .duration_histogram import Durations, Lengths
from .flush_result import FlushResult
from .json_attributes import text_of
from .outside_units import OutsideUnits
from .step_figures import number, step_around, step_of_phases

SAMPLES: Final = "samples"
"""The attribute of a step that contains its number of samples."""
MOST_NAMES: Final = 100
"""Maximum number of phase names, and of mark names, with separate series."""
MOST_POINTS: Final = 20_000
"""Maximum number of points of samples that wait for an export."""
MEMORY: Final = {
    "cuda.allocated": "cuda.memory_peak_bytes",
    "cuda.reserved": "cuda.memory_reserved_peak_bytes",
}
"""Attributes of a step that contain peaks of a device's memory, by kind of memory."""
RESIDENT: Final = "resident"
_MOST_INT: Final = 2**53
_PLACE: Final = (EPOCH_ATTRIBUTE, GLOBAL_STEP)

Key = tuple[str, str]
"""A histogram's name and the name of the phase (empty if there is none)."""


class Measures:
    """Counts, durations, and last values since the session began."""

    def __init__(self, *, is_exponential: bool = False, examples: str = "trace_based") -> None:
        """`examples` is a value of OTEL_METRICS_EXEMPLAR_FILTER."""
        self._lock = threading.Lock()
        self.is_off = False
        """Whether collection has stopped because nothing reads the values."""
        self.is_exponential, self._examples = is_exponential, examples
        self.start_ns = wall_now()
        """The start of all cumulative values, Unix ns."""
        self._series: dict[Key, Durations] = {}
        self._phases: set[str] = set()
        self._marks: dict[str, tuple[int, float]] = {}
        self._left_out: set[str] = set()
        self._memory: dict[str, int] = {}
        self._is_memory_told = True
        self._samples = 0
        self._units: Counter[str] = Counter()
        self._outside = OutsideUnits()
        self._places = StepPlaces()
        self._place: dict[str, int] = {}
        self._points: list[MemoryPoint] = []
        self._sampled: dict[tuple[str, Attributes], int] = {}
        """The time of the last point of each series of samples, Unix ns."""
        self._are_points_lost = False

    def __call__(self, result: FlushResult) -> None:
        """Add the values of a flush."""
        if self.is_off:
            return
        with self._lock:
            self._take_scopes(result.ended)
            self._take_marks(result.points)

    # --- reading --------------------------------------------------------------------------------

    def collect(self, *, is_delta: bool) -> dict[Key, Lengths]:
        """Return the current histograms; with `is_delta`, only the values since the last call."""
        with self._lock:
            now_ns = wall_now()
            histograms = {
                key: series.collect(now_ns, is_delta=is_delta)
                for key, series in self._series.items()
            }
        return {key: lengths for key, lengths in histograms.items() if lengths is not None}

    def marks(self) -> dict[str, float]:
        """Return the last value of each mark, by name."""
        with self._lock:
            return {name: value for name, (_, value) in self._marks.items()}

    def memory(self) -> dict[str, int]:
        """Return the highest memory peaks, in bytes, of the steps since the last call.

        Without new steps, the result is that of the last call.
        """
        with self._lock:
            self._is_memory_told = True
            return dict(self._memory)

    def points(self) -> list[MemoryPoint]:
        """Return the points of the samples since the last call, in order of time.

        A mark may have waited for its scope, so that later ones were sealed before it.
        """
        with self._lock:
            points, self._points = self._points, []
        times = {(each.instrument.name, each.attributes, each.time_ns): each for each in points}
        return sorted(times.values(), key=attrgetter("time_ns"))

    @property
    def is_process_sampled(self) -> bool:
        """Whether samples contain the process's memory."""
        return (sc.MEMORY_USAGE, ()) in self._sampled

    def units(self) -> dict[str, int]:
        """Return the number of ended units by their name, `step` or `request`."""
        with self._lock:
            return dict(self._units)

    def outside(self) -> dict[str, float]:
        """Return the seconds outside of steps so far, by account."""
        with self._lock:
            return dict(self._outside.totals())

    def place(self) -> dict[str, int]:
        """Return the epoch and the global step of the last step that ended, if it has them."""
        with self._lock:
            return dict(self._place)

    @property
    def samples(self) -> int:
        """The number of samples that the steps reported."""
        return self._samples

    # --- taking ---------------------------------------------------------------------------------

    def _take_scopes(self, ended: Iterable[Scope]) -> None:
        """Add the scopes of a flush. The loop does little, because it runs for every scope."""
        steps: list[Scope] = []
        requests: list[Scope] = []
        outside: list[Scope] = []
        phases: dict[Any, list[Scope]] = {}
        last_parent: Any = None
        is_inside = is_outside = False
        for scope in ended:
            name = scope._name
            parent = scope._above
            if parent is not last_parent:
                last_parent, around = parent, step_around(parent)
                is_outside = around is None
                is_inside = not is_outside and (
                    (around is parent and bool(parent._id)) or step_of_phases(parent) is not None
                )
            if type(name) is not str:
                name = text_of(name)
            if is_inside and name != MICRO_STEP:
                same_name = phases.get(name)
                if same_name is None:
                    phases[name] = [scope]
                else:
                    same_name.append(scope)
            elif name == REQUEST:
                requests.append(scope)
            elif is_outside:
                outside.append(scope)
                if name == STEP:
                    steps.append(scope)
        for name, same_name in phases.items():
            self._take_phases(name, same_name)
        self._outside.add(outside)
        if requests:
            self._units[REQUEST] += len(requests)
            self._add((sc.REQUEST_DURATION, ""), requests)
        if steps:
            self._units[STEP] += len(steps)
            self._add((sc.STEP_DURATION, ""), steps)
            self._take_values(steps)
            self._take_places(steps)

    def _take_phases(self, name: str, scopes: list[Scope]) -> None:
        if name not in self._phases:
            if len(self._phases) >= MOST_NAMES:
                name = sc.OTHER
            else:
                self._phases.add(name)
        self._add((sc.PHASE_DURATION, name), scopes)
        timed = [
            scope
            for scope in scopes
            if scope._extras is not None and scope._extras.gpu_ns is not None
        ]
        if timed:
            lengths = [max(scope._extras.gpu_ns, 0) for scope in timed]  # type: ignore[union-attr, type-var]
            self._add((sc.PHASE_GPU_DURATION, name), timed, lengths)

    def _add(self, key: Key, scopes: list[Scope], lengths: list[Any] | None = None) -> None:
        series = self._series.get(key)
        if series is None:
            series = Durations(self.start_ns, is_exponential=self.is_exponential)
            self._series[key] = series
        if lengths is None:
            lengths = [scope._end - scope._start for scope in scopes]
        series.add(lengths)
        if self._examples != "always_off":
            series.exemplify(lengths, scopes, all_=self._examples == "always_on")

    def _take_values(self, steps: Iterable[Scope]) -> None:
        """Add the sample counts and memory peaks of steps."""
        for step in steps:
            extras, attrs = step._extras, step._attrs
            if extras is not None and extras.memory_peak_bytes is not None:
                self._remember(RESIDENT, extras.memory_peak_bytes)
            if attrs:
                self._samples += sampled(attrs.get(SAMPLES))
                for kind, key in MEMORY.items():
                    if type(peak := attrs.get(key)) is int:
                        self._remember(kind, peak)

    def _take_places(self, steps: Iterable[Scope]) -> None:
        """Set the current place: that of the last step with a number, as in its record."""
        for step in steps:
            if type(step._index) is int:
                place = self._places.place(step, step._index)
                attrs = step._attrs
                if attrs:
                    place |= {key: attrs[key] for key in _PLACE if type(attrs.get(key)) is int}
                self._place = place

    def _remember(self, kind: str, peak: int) -> None:
        if self._is_memory_told:
            self._memory.clear()
            self._is_memory_told = False
        self._memory[kind] = max(peak, self._memory.get(kind, 0))

    def _take_marks(self, entries: Iterable[MarkEntry]) -> None:
        latest: dict[str, MarkEntry] = {}
        for entry in entries:
            if type(entry[5]) is SampleAttributes:
                self._take_sample(entry)
            elif entry[4] == POINT:
                name = entry[1]
                if type(name) is not str:
                    name = text_of(name)
                before = latest.get(name)
                if before is None or before[3] <= entry[3]:
                    latest[name] = entry
        for name, entry in latest.items():
            value = number(entry[2])
            known = self._marks.get(name)
            if value is not None and (known is None or known[0] <= entry[3]):
                self._take_mark(name, entry[3], value)

    def _take_sample(self, entry: MarkEntry) -> None:
        _, name, value, at, _, attrs = entry
        mark = {"name": name, "value": value, "attrs": attrs, "ts_ns": wall(at)}
        for point in memory_points(mark):
            series = point.instrument.name, point.attributes
            if self._sampled.get(series) == point.time_ns:
                continue  # the marks of several devices repeat the process's memory
            self._sampled[series] = point.time_ns
            self._points.append(point)
        if len(self._points) > MOST_POINTS:
            del self._points[: len(self._points) - MOST_POINTS]
            if not self._are_points_lost:
                self._are_points_lost = True
                report_problem(
                    "metrics",
                    f"more than {MOST_POINTS} points of samples in one interval: the oldest are not"
                    " sent; the spool contains all samples",
                )

    def _take_mark(self, name: str, at: int, value: float) -> None:
        if name in self._marks or len(self._marks) < MOST_NAMES:
            self._marks[name] = at, value
        elif not self._left_out:
            self._left_out.add(name)
            problem = f"more than {MOST_NAMES} mark names: {name:.60} and later names get no gauge"
            report_problem("metrics", f"{problem}; the spool contains all marks")


def sampled(value: Any) -> int:
    """Return a step's number of samples, numpy integers included; 0 if it has none."""
    if type(value) is not int:
        if type(value) is bool or not isinstance(value, Integral):
            return 0
        value = int(value)
    return value if 0 < value < _MOST_INT else 0


def bounded(marks: Mapping[str, float]) -> dict[str, list[tuple[str, float]]]:
    """Group marks by the name of their gauge.

    Names that differ only in case, or in characters that a gauge's name must not contain, share a
    gauge.
    """
    by_gauge: dict[str, list[tuple[str, float]]] = {}
    for name, value in marks.items():
        by_gauge.setdefault(gauge_name(name), []).append((name, value))
    return by_gauge


def gauge_name(name: str) -> str:
    """Return a valid instrument name for a mark, in lower case.

    Specification, "Instrument name syntax": at most 255 ASCII letters, digits, `_`, `.`, `-`, and
    `/`; names that differ only in case are the same.
    """
    valid = "".join(
        each if each.isascii() and (each.isalnum() or each in "_.-/") else "_" for each in name
    )
    return (sc.MARK_GAUGE_PREFIX + (valid.lower() or "_"))[:255]
