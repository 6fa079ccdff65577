"""A finding as text: its price, the units and ranks it concerns, its sentence, and the advice."""

# ruff: noqa: PLC0415 - rich is imported in functions, so that commands start faster

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .formatting import duration, numbers, plural, printable, wrapped

if TYPE_CHECKING:
    from rich.text import Text

    from ...core.run.findings.finding import Finding
    from .ledger_rows import LedgerRows

STYLES: Final[dict[str, str]] = {
    "failed": "bold red", "failure": "bold red", "critical": "red", "warning": "yellow",
    "notice": "cyan", "healthy": "green",
}  # fmt: skip
"""The style of the word for a severity or a status on a terminal."""
_WORDS: Final = {"failure": "FAILURE"}
_MOST_INTERVALS: Final = 4
_INDENT: Final = "  "


def severity_word(severity: str) -> str:
    """Return the word for a severity or a status."""
    return _WORDS.get(severity, severity.upper())


def price(finding: Finding, ledger: LedgerRows | None = None) -> str:
    """Return the mean cost of a rank, and its extent; "" for a finding without a cost, or with 0.

    The amount of the cost follows if the price of an hour is known; it is that of all ranks.
    Without a ledger, the time is the cost of all ranks together.
    """
    if not finding.cost_ns:
        return ""
    if ledger is None:
        return duration(finding.cost_ns)
    of = "the last" if ledger.is_window else "the run's"
    text = f"{per_rank(finding.cost_ns, ledger)} of {of} {duration(ledger.extent_ns)}"
    amount = ledger.amount_of(finding.cost_ns)
    return text if amount is None else f"{text}, {printable(amount)}"


def per_rank(ns: int, ledger: LedgerRows | None) -> str:
    """Return a time of all ranks together as the mean of a rank."""
    return duration(round(ns / max(len(ledger.ranks), 1)) if ledger is not None else ns)


def place(finding: Finding, unit: str = "step") -> str:
    """Return the ranks, the units and the scope of a finding; "" if it has none."""
    parts = []
    ranks = [rank for rank in finding.ranks if rank is not None]
    if ranks:
        parts.append(
            f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}"
            + (" (moving)" if finding.moving else "")
        )
    if finding.steps:
        parts.append(_units(finding, unit))
    elif finding.every is not None:
        parts.append(f"every {finding.every:,} {plural(unit)}")
    if finding.epochs:
        parts.append(f"epoch {', '.join(map(printable, finding.epochs[:_MOST_INTERVALS]))}")
    parts += [printable(name) for name in (finding.phase, finding.scope) if name is not None]
    return ", ".join(parts)


def _units(finding: Finding, unit: str) -> str:
    intervals = finding.steps[:_MOST_INTERVALS]
    listed = ", ".join(
        f"{first:,}" if first == last else f"{first:,}-{last:,}" for first, last in intervals
    )
    more = len(finding.steps) - len(intervals)
    is_one = len(finding.steps) == 1 and finding.steps[0][0] == finding.steps[0][1]
    every = "" if finding.every is None else f", every {finding.every:,}"
    rest = f" and {more:,} more" if more else ""
    return f"{unit if is_one else plural(unit)} {listed}{rest}{every}"


def finding_parts(
    finding: Finding,
    unit: str = "step",
    headline: str = "",
    ledger: LedgerRows | None = None,
    *,
    has_advice: bool = True,
) -> Iterator[str | Text]:
    """Yield the lines of a finding, without its sentence if that is the headline."""
    word = severity_word(finding.severity)
    facts = "; ".join(filter(None, (price(finding, ledger), place(finding, unit))))
    yield from styled_lines(finding.severity, f"{finding.kind}: {facts}".removesuffix(": "), word)
    if finding.sentence != headline:
        yield from wrapped(printable(finding.sentence), _INDENT, _INDENT)
    if not has_advice:
        return
    for number, each in enumerate(finding.advice):
        gain = "" if each.gain_ns is None else f" (saves up to {per_rank(each.gain_ns, ledger)})"
        head = f"{_INDENT}or: " if number else f"{_INDENT}try: "
        yield from wrapped(printable(each.text) + gain, head, _INDENT * 2)


def styled_lines(severity: str, text: str, word: str) -> Iterator[str | Text]:
    """Yield wrapped lines that start with a word in the style of a severity."""
    from rich.text import Text

    first, *rest = wrapped(text, f"{word} ", _INDENT) or [word]
    line = Text(first)
    line.stylize(STYLES.get(severity, ""), 0, len(word))
    yield line
    yield from rest
