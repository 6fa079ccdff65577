"""A pytest plugin: the fixture `cirron_run` records a test's training, and returns its spans.

pytest imports this module in every run of an environment that has the package, so it imports
nothing but pytest and the standard library. The rest is imported when a test uses the fixture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .sdk.session.api import Profiler

MARKER = "cirron_run"
_ERROR = 2
"""OTLP's status code of a span that failed."""


@dataclass(frozen=True, slots=True)
class RecordedMark:
    """A value that was attached to a span."""

    name: str
    value: Any
    kind: str
    """`point` or `summary`."""
    time_ns: int
    attrs: dict[str, Any]


@dataclass(slots=True, eq=False)
class RecordedSpan:
    """A span of the recorded run."""

    id: str
    name: str
    index: int | None
    start_ns: int
    end_ns: int
    rank: int | None
    attrs: dict[str, Any]
    error: str | None
    """The status message if the span failed (it may be empty), else None."""
    record: dict[str, Any] = field(repr=False)
    """The record in the spool, with all of its fields."""
    parent: RecordedSpan | None = field(default=None, repr=False)
    children: list[RecordedSpan] = field(default_factory=list, repr=False)
    """The direct children, in order of start."""
    marks: list[RecordedMark] = field(default_factory=list, repr=False)
    """The span's marks in order of time, without the SDK's overhead mark."""

    @property
    def duration_ns(self) -> int:
        """The span's duration, in nanoseconds."""
        return self.end_ns - self.start_ns

    def mark(self, name: str) -> Any:
        """Return the last value of a mark of this span. Raises KeyError if it has none."""
        for mark in reversed(self.marks):
            if mark.name == name:
                return mark.value
        raise KeyError(name)


class RecordedRun:
    """The recording of one test. Reading the spans ends it."""

    def __init__(self, directory: Path, profiler: Profiler) -> None:
        """Store the directory and the open session, which the fixture provides."""
        self.directory = directory
        """The recording's directory: `cirron-otel report` and other commands read it, too."""
        self.profiler = profiler
        """The open session."""
        self._spans: list[RecordedSpan] | None = None

    def finish(self) -> None:
        """End the recording. It is called when the spans are read, and after the test."""
        self.profiler.shutdown()

    def spans(self, name: str | None = None) -> list[RecordedSpan]:
        """Return the spans of that name, or all of them, in order of start."""
        if self._spans is None:
            self.finish()
            self._spans = _read(self.directory)
        return [span for span in self._spans if name is None or span.name == name]

    def span(self, name: str) -> RecordedSpan:
        """Return the only span of that name. Raises AssertionError if there is not exactly one."""
        spans = self.spans(name)
        if len(spans) != 1:
            names = ", ".join(sorted({span.name for span in self.spans()}))
            raise AssertionError(f"{len(spans)} spans are named {name!r}; recorded: {names}")
        return spans[0]

    def marks(self, name: str) -> list[Any]:
        """Return the values of all marks of that name, in order of time."""
        marks = [mark for span in self.spans() for mark in span.marks if mark.name == name]
        return [mark.value for mark in sorted(marks, key=lambda mark: mark.time_ns)]

    def tree(self) -> str:
        """Return the names of the spans, one per line, indented by two spaces for each level.

        Siblings with the same name and equal subtrees share one line, which shows their number.
        """
        roots = [span for span in self.spans() if span.parent is None]
        return "\n".join(_folded(roots))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(**options): options of cirron_otel.profile() for the fixture"
    )


@pytest.fixture
def cirron_run(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RecordedRun]:
    """Record the test's training into `tmp_path`; nothing is sent anywhere.

    Processes that the test starts record into the same directory if they trace themselves. The
    keywords of the marker `cirron_run` are options of `cirron_otel.profile()`.
    """
    from . import profile  # noqa: PLC0415 - it is imported only if a test uses the fixture
    from .sdk.session.handle import active  # noqa: PLC0415 - imported only if a test needs it

    if active.profiler is not None:
        pytest.fail(
            f"a session is open already: {active.profiler!r}; end it with cirron_otel.shutdown()"
            " before the test that uses cirron_run",
            pytrace=False,
        )
    directory = tmp_path / "cirron"
    for name in ("OTEL_SDK_DISABLED", "CIRRON_ENABLED", "CIRRON_RUN_ID", "TRACEPARENT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("OUTPUT_DIR", str(directory)), ("EXPORTERS", "none"), ("METRICS", "0")):
        monkeypatch.setenv(f"CIRRON_{name}", value)
    options: dict[str, Any] = {
        "join": "none",
        "handle_signals": False,
        "run_name": request.node.name,
        "run_details": "none",
        "quiet": True,
        "sample_interval": None,
    }
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        options |= marker.kwargs
    run = RecordedRun(directory, profile(output_dir=directory, **options))
    yield run
    run.finish()


def _read(directory: Path) -> list[RecordedSpan]:
    """Read all spans of a spool, in order of start, with their marks, parents and children."""
    from .semconv import OVERHEAD_NS  # noqa: PLC0415 - only a test that uses the fixture needs it

    batches = [json.loads(path.read_bytes()) for path in sorted(directory.glob("spool/*.json"))]
    spans = [_span(record) for batch in batches for record in batch["spans"]]
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns, span.id))
    by_id = {span.id: span for span in spans}
    for span in spans:
        span.parent = by_id.get(span.record["parent_id"])
        if span.parent is not None:
            span.parent.children.append(span)
    marks = [mark for batch in batches for mark in batch["marks"] if mark["name"] != OVERHEAD_NS]
    for mark in sorted(marks, key=lambda mark: mark["ts_ns"]):
        if (owner := by_id.get(mark["span_id"])) is not None:
            owner.marks.append(_mark(mark))
    return spans


def _span(record: dict[str, Any]) -> RecordedSpan:
    status = record.get("otel", {}).get("status", {})
    return RecordedSpan(
        id=record["id"],
        name=record["name"],
        index=record["index"],
        start_ns=record["start_ns"],
        end_ns=record["end_ns"],
        rank=record["rank"],
        attrs=record["attrs"],
        error=status.get("message", "") if status.get("code") == _ERROR else None,
        record=record,
    )


def _mark(record: dict[str, Any]) -> RecordedMark:
    nonfinite = record.get("value_nonfinite")
    value = record["value"] if nonfinite is None else float(nonfinite)
    return RecordedMark(record["name"], value, record["kind"], record["ts_ns"], record["attrs"])


def _folded(spans: list[RecordedSpan]) -> list[str]:
    """Return the lines of a tree, with equal neighbours folded into one line."""
    parts: list[tuple[str, list[str], int]] = []
    for span in spans:
        below = _folded(span.children)
        if parts and parts[-1][:2] == (span.name, below):
            parts[-1] = (span.name, below, parts[-1][2] + 1)
        else:
            parts.append((span.name, below, 1))
    lines: list[str] = []
    for name, below, count in parts:
        lines.append(name if count == 1 else f"{name} × {count}")
        lines += [f"  {line}" for line in below]
    return lines
