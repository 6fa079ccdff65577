"""Charts in SVG that stretch to any width; their labels are HTML text of fixed size.

The values of each chart are also available as text, in a table or in the titles of the chart's
parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ....core.analysis.mark_series import Point
from ....core.durations import duration
from .element import Content, Element

WIDTH, HEIGHT = 1000, 200
_BAR = 20
_LEAST = 2
"""The minimum width of a part, in units of WIDTH, so that small parts stay visible."""
_DOTS = 60
"""If a series has at most this many points, they are also drawn as dots."""
_NICE = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
_WIDE = 20
"""A scale is logarithmic if the ratio of its maximum to the median exceeds this."""

Part = tuple[str, int, str]
"""A CSS class, a size, and a title."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A moment that a chart marks."""

    time_ns: int
    """Unix ns."""
    title: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping of values to heights."""

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> int:
        """Return the distance from the top, 0 to HEIGHT."""
        low, high = self._of(self.low), self._of(self.high)
        if high <= low:
            return HEIGHT // 2
        part = (self._of(value) - low) / (high - low)
        return round(HEIGHT * (1 - min(max(part, 0.0), 1.0)))

    def ticks(self) -> list[float]:
        """Return the values at the top, middle and bottom; a single value if all are equal."""
        if self.high <= self.low:
            return [self.low]
        if self.is_log:
            return [self.high, math.sqrt(self.low) * math.sqrt(self.high), self.low]
        return [self.high, self.low / 2 + self.high / 2, self.low]

    def _of(self, value: float) -> float:
        # Use half of the value, because the difference of two doubles can overflow.
        return math.log10(max(value, self.low)) if self.is_log else value / 2


def durations_scale(points: Iterable[Point]) -> Scale:
    """Return a linear scale from 0, or a logarithmic one if that would hide small values."""
    numeric = [point for point in points if point.numbers]
    low = min((point.low for point in numeric), default=0.0)
    high = max((point.high for point in numeric), default=1.0)
    middles = sorted(point.middle for point in numeric)
    middle = middles[len(middles) // 2] if middles else high
    if low > 0 and high > _WIDE * middle:
        return Scale(low, high, is_log=True)
    return Scale(0.0, _round_up(high))


def values_scale(points: Iterable[Point]) -> Scale:
    """Return a scale from the least value to the greatest."""
    numeric = [point for point in points if point.numbers]
    return Scale(
        min((point.low for point in numeric), default=0.0),
        max((point.high for point in numeric), default=0.0),
    )


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next((nice * unit for nice in _NICE if nice * unit >= value), value)


def course(
    points: list[Point],
    scale: Scale,
    format_value: Callable[[float], str],
    *,
    label: str,
    epochs: Sequence[int] = (),
    markers: Sequence[Marker] = (),
) -> Element:
    """Draw a series over time: the medians as a line, within a band from minimum to maximum.

    `format_value` formats a value, and `label` describes the chart. A line marks the start of each
    epoch, unless there are many, and one with a title each of `markers`.
    """
    total = _Axis(points)
    few = len(points) <= _DOTS
    begun = [total.at(start) for start in epochs] if len(epochs) < _DOTS else []
    drawn = Element(
        "svg",
        [Element("line", class_="grid", x1=0, x2=WIDTH, y1=y, y2=y) for y in (0, 100, 200)],
        [Element("line", class_="grid", x1=x, x2=x, y1=0, y2=HEIGHT) for x in begun if x > 0],
        Element("path", class_="band", d=_band(points, scale, total)),
        Element("path", class_="course", d=_line(points, scale, total)),
        Element("path", class_="dots", d=_dots(points, scale, total)) if few else None,
        Element("path", class_="odd", d=_odd(points, total)),
        Element("g", [_strip(point, total, format_value) for point in points], class_="hits"),
        [_marked(each, total) for each in markers],
        viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", role="img", aria_label=label,
    )  # fmt: skip
    ys = [Element("span", format_value(value) if value else "0") for value in scale.ticks()]
    xs = [Element("span", duration(each)) for each in sorted({0, total.length_ns})]
    return Element(
        "div",
        Element("div", ys, class_="ys", aria_hidden="true"),
        drawn,
        Element("div", xs, class_="xs", aria_hidden="true"),
        class_="plot",
    )


class _Axis:
    """A mapping of times, or of record numbers if there are no times, to distances from the
    left.
    """

    def __init__(self, points: list[Point]) -> None:
        self.count = points[-1].first + points[-1].count
        starts = [point.begin_ns for point in points if point.begin_ns is not None]
        ends = [point.end_ns for point in points if point.end_ns is not None]
        self._first = min(starts, default=0)
        self.length_ns = max(ends, default=0) - self._first

    def at(self, time_ns: int) -> int:
        """Return the distance of a time; negative if the time is earlier than the first point."""
        return round(WIDTH * (time_ns - self._first) / max(self.length_ns, 1))

    def left(self, point: Point) -> int:
        """Return the distance of a point's first record."""
        if point.begin_ns is None or not self.length_ns:
            return round(WIDTH * point.first / self.count)
        return self.at(point.begin_ns)

    def right(self, point: Point) -> int:
        """Return the distance of a point's last record."""
        if point.end_ns is None or not self.length_ns:
            return round(WIDTH * (point.first + point.count) / self.count)
        return self.at(point.end_ns)


def _center(point: Point, total: _Axis) -> int:
    return (total.left(point) + total.right(point)) // 2


def _line(points: list[Point], scale: Scale, total: _Axis) -> str:
    pieces: list[str] = []
    pen = "M"
    for point in points:
        if point.numbers:
            pieces.append(f"{pen}{_center(point, total)} {scale.at(point.middle)}")
        pen = "L" if point.numbers else "M"
    return "".join(pieces)


def _dots(points: list[Point], scale: Scale, total: _Axis) -> str:
    """Draw each point as a line of zero length, whose round ends make it a dot."""
    return "".join(
        f"M{_center(point, total)} {scale.at(point.middle)}h0" for point in points if point.numbers
    )


def _band(points: list[Point], scale: Scale, total: _Axis) -> str:
    pieces: list[str] = []
    for point in points:
        if point.numbers > 1 and point.high > point.low:
            left = total.left(point)
            right = max(total.right(point), left + _LEAST)
            top, bottom = scale.at(point.high), scale.at(point.low)
            pieces.append(f"M{left} {top}H{right}V{bottom}H{left}z")
    return "".join(pieces)


def _odd(points: list[Point], total: _Axis) -> str:
    """Draw a mark at the top at each point with a value that is not a finite number."""
    return "".join(
        f"M{_center(point, total)} 0v{HEIGHT // 10}"
        for point in points
        if point.numbers < point.count
    )


def _marked(marker: Marker, total: _Axis) -> Element:
    x = min(max(total.at(marker.time_ns), 0), WIDTH - _LEAST)
    title = Element("title", marker.title)
    return Element("rect", title, class_="alert", x=x, width=_LEAST, height=HEIGHT)


def _strip(point: Point, total: _Axis, format_value: Callable[[float], str]) -> Element:
    """Return an invisible strip whose title appears when the pointer is over it."""
    left = total.left(point)
    right = max(total.right(point), left + _LEAST)
    last = point.first + point.count
    place = f"{point.first + 1:,}" if point.count == 1 else f"{point.first + 1:,} to {last:,}"
    text = "no finite number"
    if point.numbers:
        text = format_value(point.middle)
        if point.high > point.low:
            text += f" ({format_value(point.low)} to {format_value(point.high)})"
    title = Element("title", f"{place} of {total.count:,}: {text}")
    return Element("rect", title, x=left, width=max(right - left, 1), height=HEIGHT)


def stacked(parts: Iterable[Part], whole: int, *, label: str) -> Element:
    """Draw parts side by side, in a bar of length `whole`."""
    drawn = []
    place = 0
    for class_, size, text in parts:
        left, right = (round(WIDTH * each / max(whole, 1)) for each in (place, place + size))
        place += size
        if right > left:
            title = Element("title", text)
            drawn.append(
                Element("rect", title, class_=class_, x=left, y=0, width=right - left, height=_BAR)
            )
    return _bar(drawn, label)


def placed(class_: str, start: int, length: int, whole: int, marks: Iterable[int]) -> Element:
    """Draw a bar that begins at `start` in a row of length `whole`, and a tick for each of
    `marks`.
    """
    left = round(WIDTH * min(max(start, 0), whole) / max(whole, 1))
    size = round(WIDTH * min(max(length, 0), max(whole - start, 0)) / max(whole, 1))
    left, size = min(left, WIDTH - _LEAST), max(size, _LEAST)
    ticks = [round(WIDTH * each / max(whole, 1)) for each in marks if 0 <= each <= whole]
    drawn: list[Content] = [
        Element("rect", class_=class_, x=left, y=4, width=size, height=_BAR - 8)
    ]
    if ticks:
        drawn.append(Element("path", class_="tick", d="".join(f"M{x} 0V{_BAR}" for x in ticks)))
    return _bar(drawn, None)


def _bar(drawn: Content, label: str | None) -> Element:
    """Draw a bar. Without a label, it is hidden from screen readers, because adjacent text
    describes it.
    """
    return Element(
        "svg", drawn, viewBox=f"0 0 {WIDTH} {_BAR}", preserveAspectRatio="none", class_="bar",
        role="img" if label is not None else None, aria_label=label,
        aria_hidden=None if label is not None else "true",
    )  # fmt: skip
