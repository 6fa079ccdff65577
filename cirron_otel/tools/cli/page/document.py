"""The complete page: its header, the sections, and the details of single steps."""

from __future__ import annotations

from collections.abc import Iterator

from ....core.analysis.summary import SessionSummary
from ...present.formatting import count, duration, local_moment, numbers, plural
from . import conclusions, memory, sections
from .content import TRACED_RANKS, RunContent
from .element import Content, Element
from .parts import Palette, code, folded, note, number, section, short, table, took
from .shell import footer, page_of
from .waterfall import Details, facts_list, step_page, waterfall

_MOST_SESSIONS = 50
_MOST_FINDINGS = 20
_TITLES = {
    "verdict": "Conclusion",
    "time": "Where the time went",
    "course": "Over the run",
    "slowest": "Slowest steps",
    "gpu": "GPU",
    "memory": "Memory",
    "metrics": "Metrics",
    "marks": "Marks",
    "run": "The run",
    "steps": "Single steps",
}


def document(content: RunContent) -> Iterator[str]:
    """Yield the text of the page."""
    return page_of(f"{short(_name(content))}: report of cirron-otel", _body(content))


def _body(content: RunContent) -> Element:
    palette = Palette(each.steps for each in content.report.ranks)
    details = Details(content.records)
    anchors = {
        trace.step.id: f"step-{place}"
        for place, trace in enumerate(content.traces, 1)
        if trace.step.id is not None
    }
    steps = _steps_section(content, palette, details, anchors)
    parts = [
        conclusions.conclusion_section(content) if content.report.spans else None,
        sections.time_section(content, palette) if content.report.spans else None,
        sections.course_section(content),
        sections.slowest_section(content, palette, anchors),
        sections.gpu_section(content),
        memory.memory_section(content),
        sections.metrics_section(content),
        sections.marks_section(content),
        _run_section(content, palette, details),
        steps,
    ]
    blocks = [each for each in parts if each is not None]
    links = [
        Element(
            "li", Element("a", _TITLES[each.attributes["id"]], href=f"#{each.attributes['id']}")
        )
        for each in blocks
    ]
    return Element(
        "body",
        _header(content),
        Element("nav", Element("ul", links), aria_label="Sections"),
        Element("main", conclusions.failures_section(content), _warnings(content), blocks),
        footer("report --json"),
    )


def _header(content: RunContent) -> Element:
    report, units = content.report, content.document.units
    starts = [each.first_ns for each in report.ranks if each.first_ns is not None]
    ends = [each.last_ns for each in report.ranks if each.last_ns is not None]
    ranks = [each.rank for each in report.ranks if each.rank is not None]
    facts: list[tuple[str, Content]] = []
    if starts and ends:
        facts += [
            ("began", local_moment(min(starts))),
            ("ended", local_moment(max(ends))),
            ("took", took(max(ends) - min(starts))),
        ]
    if ranks:
        facts.append(("rank" if len(ranks) == 1 else "ranks", short(numbers(ranks))))
    facts += [
        ("sessions", number(sum(each.id is not None for each in content.sessions))),
        (plural(short(content.unit, 30)), number(0 if units is None else units.count)),
        *([("trainings", number(len(units.trainings)))] if units and units.trainings else []),
        ("spans", number(report.spans)),
        ("recorded by", short(", ".join(content.versions) or "-")),
    ]
    return Element(
        "header",
        Element("p", _over(content), class_="over"),
        Element("h1", short(_name(content), 120)),
        facts_list(facts),
    )


def _over(content: RunContent) -> str:
    """Return the line above the name of the run."""
    if content.document.run.name is None:
        return "cirron-otel report"
    return f"cirron-otel report of a run in {short(content.document.source, 120)}"


def _name(content: RunContent) -> str:
    """Return the name of the run, or of its source if it has none."""
    return content.document.run.name or content.document.source


def _warnings(content: RunContent) -> Element | None:
    rows = list(content.warnings[:_MOST_FINDINGS])
    for each in content.findings[:_MOST_FINDINGS]:
        place = f"{each.name} {each.path}".strip()
        rows.append(f"left out: {short(place)}: {short(each.message, 200)}")
    more = len(content.findings) - _MOST_FINDINGS
    if more > 0:
        rows.append(f"left out: {more:,} more")
    if not rows:
        return None
    return Element(
        "section",
        Element("h2", "What is missing", id="missing-h"),
        Element("ul", [Element("li", row) for row in rows]),
        class_="warning",
        aria_labelledby="missing-h",
    )


def _run_section(content: RunContent, palette: Palette, details: Details) -> Element | None:
    drawn = waterfall("The outermost scopes of the run", content.top_scopes, palette, details)
    if drawn is None:
        return None
    more = content.tops_left_out
    return section(
        "run",
        "The run",
        note("The outermost scopes and their direct children. Open a scope for its attributes."),
        drawn,
        note(f"and {more:,} more outermost scopes") if more else None,
        folded(count(len(content.sessions), "session"), _sessions(content.sessions)),
    )


def _sessions(sessions: list[SessionSummary]) -> list[Content]:
    rows = [
        (Element("code", short(each.id, 40)) if each.id is not None else "in no session",
         each.state, short(numbers(each.ranks)), short(numbers(each.pids)),
         local_moment(each.start_ns),
         _length(each), number(each.spans), number(each.marks), number(each.snapshots))
        for each in sessions[:_MOST_SESSIONS]
    ]  # fmt: skip
    heads = ("session", "state", "rank", "process", "start", "took", "spans", "marks",
             "snapshots")  # fmt: skip
    more = len(sessions) - len(rows)
    listed = table("The sessions of the run", heads, rows, right=heads[5:])
    more_note = note(f"and {more:,} more: ", code("spool ls"), " lists them")
    return [listed, more_note if more else None]


def _length(session: SessionSummary) -> Content:
    if session.start_ns is None or session.end_ns is None:
        return duration(None)
    return took(session.end_ns - session.start_ns)


def _steps_section(
    content: RunContent, palette: Palette, details: Details, anchors: dict[str, str]
) -> Element | None:
    if not content.traces:
        return None
    pages = [
        step_page(trace, anchors.get(trace.step.id or "", f"step-{place}"), palette, details,
                  is_open=place == 1)
        for place, trace in enumerate(content.traces, 1)
    ]  # fmt: skip
    more = sum(bool(each.steps.steps.times) for each in content.report.ranks) - TRACED_RANKS
    return section(
        "steps",
        "Single steps",
        note(
            "For each rank, the slowest step and a typical step. Open a scope for its attributes"
            " and marks; a tick on a bar is a mark. ",
            code("--span ID"),
            " shows others.",
        ),
        pages,
        note(f"and {more:,} more ranks") if more > 0 else None,
    )  # fmt: skip
