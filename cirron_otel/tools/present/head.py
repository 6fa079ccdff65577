"""The head of a document as text: the status, the headline, and the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .findings_text import finding_parts, severity_word, styled_lines
from .formatting import clock_time, count, duration, local_moment, of_ranks, printable, wrapped

if TYPE_CHECKING:
    from rich.text import Text

    from ...core.run.findings.finding import Finding
    from .document import Document
    from .open_scopes import OpenScope

_MOST_FINDINGS: Final = 8
_MOST_NOTICES: Final = 2
_LEAST_NOTICE: Final = 0.05
_IN_LEDGER: Final = frozenset({"START_UP", "WARM_UP"})
_MOST_PROCESSES: Final = 4
_MOST_DEPTH: Final = 4


def conclusion_parts(document: Document) -> Iterator[str | Text]:
    """Yield the status with the headline."""
    yield from styled_lines(
        document.status, printable(document.headline), f"{severity_word(document.status)}:"
    )


def head_parts(document: Document, *, full: bool = False) -> Iterator[str | Text]:
    """Yield the status with the headline, the facts about the run, and the findings.

    Without `full`, there are at most eight findings, and at most two of them are notices.
    """
    yield from conclusion_parts(document)
    yield from fact_lines(document)
    yield from _incomplete_lines(document)
    yield from findings_parts(document, full=full)


def diagnosis_parts(document: Document) -> Iterator[str | Text]:
    """Yield the head of a document with all findings, and what was not assessed."""
    yield from head_parts(document, full=True)
    if document.not_assessed:
        yield "\nNot assessed:\n"
        yield from not_assessed_lines(document)


def findings_parts(document: Document, *, full: bool = False) -> Iterator[str | Text]:
    """Yield the findings, with an empty line ahead of each one that is not a notice."""
    unit = unit_name(document)
    problems = [each for each in document.findings if each.severity != "notice"]
    notices = [each for each in document.findings if each.severity == "notice"]
    shown = problems if full else problems[:_MOST_FINDINGS]
    for each in shown:
        yield ""
        yield from finding_parts(each, unit, document.headline, document.ledger)
    room = max(min(_MOST_NOTICES, _MOST_FINDINGS - len(shown)), 0)
    listed = notices if full else list(filter(_is_worth_a_line, notices))[:room]
    if listed:
        yield ""
    for each in listed:
        yield from finding_parts(each, unit, document.headline, document.ledger, has_advice=full)
    more = len(problems) - len(shown)
    if more:
        yield f"and {count(more, 'more finding')}: --full shows them"
    if document.ignored:
        yield ""
        yield from wrapped(ignored_text(document.ignored), "", "  ")


def ignored_text(findings: Sequence[Finding]) -> str:
    """Return the number and the kinds of ignored findings."""
    kinds = ", ".join(dict.fromkeys(each.kind for each in findings))
    return f"{count(len(findings), 'finding')} ignored: {kinds}"


def _is_worth_a_line(notice: Finding) -> bool:
    """Return whether a notice is shown without `--full`; the ledger shows the start-up anyway."""
    share = notice.running_share
    return notice.kind not in _IN_LEDGER and (share is None or share >= _LEAST_NOTICE)


def unit_name(document: Document) -> str:
    """Return the name of the run's units."""
    return "step" if document.units is None else printable(document.units.name)


def run_title(document: Document) -> str:
    """Return the name of the run with its source, or the source alone."""
    source = printable(document.source)
    name = document.run.name
    return source if name is None else f"{printable(name)} ({source})"


def fact_lines(document: Document) -> Iterator[str]:
    """Yield the name of the run, its units, its ranks and its times, and the open scopes."""
    run, units = document.run, document.units
    of = of_ranks(run.ranks)
    if units is None:
        counted = count(document.figures.spans, "span") + of
    else:
        counted = count(units.count, printable(units.name))
        if units.trainings:
            counted += f" in {len(units.trainings)} trainings"
        counted += of
    facts = [counted]
    began = "" if run.first_ns is None else f" from {_moment(run.first_ns)}"
    if document.state == "running":
        since = "" if run.first_ns is None else f" since {_moment(run.first_ns)}"
        facts = [f"running{since}", counted]
    elif document.state == "interrupted":
        facts.append(f"interrupted after {duration(run.duration_ns)}{began}")
    elif run.duration_ns is not None:
        facts.append(f"{duration(run.duration_ns)}{began}")
    if document.state == "incomplete":
        facts.append("without an end")
    if document.ledger is not None and (amount := document.ledger.amount) is not None:
        facts.append(printable(amount).replace(" ", "\N{NO-BREAK SPACE}"))
    yield from wrapped(", ".join(facts), f"{run_title(document)}: ", "  ")
    if document.state == "running":
        yield from _open_lines(document.open_scopes)


def _moment(ns: int) -> str:
    """Return a time that `wrapped` keeps on one line."""
    return local_moment(ns).replace(" ", "\N{NO-BREAK SPACE}")


def _open_lines(scopes: list[OpenScope]) -> Iterator[str]:
    """Yield the open scopes of each process, the outermost first."""
    by_rank: dict[int | None, list[OpenScope]] = {}
    for each in scopes:
        by_rank.setdefault(each.rank, []).append(each)
    for rank, opened in list(by_rank.items())[:_MOST_PROCESSES]:
        names = [
            printable(each.name) + ("" if each.index is None else f" {printable(each.index)}")
            for each in opened[-_MOST_DEPTH:]
        ]
        who = "" if rank is None else f"rank {rank}: "
        since = opened[-1].start_ns
        began = "" if since is None else f", since {clock_time(since)}"
        yield from wrapped(" > ".join(names) + began, f"  open: {who}", "    ")


def _incomplete_lines(document: Document) -> Iterator[str]:
    """Yield the records that were dropped while recording, and the units sent as summaries."""
    figures = document.figures
    for drop in figures.drops[:_MOST_PROCESSES]:
        who = "" if drop.rank is None else f" of rank {drop.rank}"
        yield f"Dropped: {drop.count:,} {printable(drop.reason)}{who}: figures are incomplete"
    if figures.summarised_steps:
        units = count(figures.summarised_steps, unit_name(document))
        yield f"Summaries: {units}, by an export budget: times are complete"


def not_assessed_lines(document: Document) -> Iterator[str]:
    """Yield the kinds of findings that were not assessed, by reason, with the remedy."""
    kinds: dict[str, list[str]] = {}
    for each in document.not_assessed:
        remedy = "" if each.remedy is None else f"; {each.remedy}"
        kinds.setdefault(f"{each.reason}{remedy}", []).append(each.kind)
    for reason, names in kinds.items():
        yield from wrapped(printable(reason), f"  {', '.join(names)}: ", "    ")
