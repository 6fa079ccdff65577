"""The difference of two runs as text: the headline, the ledgers, and the figures side by side."""

# ruff: noqa: PLC0415 - numpy is imported with the figures, so that commands start faster

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ...semconv import LOADER_BATCH_SIZE, SPEED_SETTINGS
from .comparison import UNIT_FIGURES, Comparison, relative
from .findings_text import place, price, severity_word, styled_lines
from .formatting import count, duration, plural, printable, value_text, wrapped
from .ledger_rows import account_name
from .tables import rows_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ...core.analysis.breakdown import PhaseFigures
    from ...core.run.comparison import AccountChange

_MOST_NAMED: Final = 4
_MOST_SETTINGS: Final = 16
_MOST_FINDINGS: Final = 8
_LONGEST_SETTING: Final = 60
_LEAST_SIZE: Final = 0.1
"""A smaller difference of the samples of a unit is an epoch's last batches."""
_LEAST_SHARE: Final = 0.0005
"""Accounts with a smaller share of the wall time of both runs have no row."""
_WORDS: Final = {"new": "new in B", "gone": "gone in B", "changed": "changed"}
_TITLES: Final = {"count": "number", "per_s": "per second"}


def headline(compared: Comparison) -> str:
    """Return the difference of the wall time in one sentence, with the accounts that explain it."""
    change, a, b = compared.change, compared.a.costs, compared.b.costs
    units = plural(compared.a.unit)
    if a is None or b is None or change.change is None:
        return f"{'A' if a is None or b is not None else 'B'} has no {units} to compare."
    listed = _named(compared)
    if change.noise is None:
        return f"{_difference(compared)}, but {_shortage(compared)}."
    settings = _speed_settings(compared)
    if change.kind in ("SAME", "INCONCLUSIVE"):
        noise = f"the noise of both runs is {_percent(change.noise)}"
        rest = "".join(f"; {each}" for each in (listed, settings) if each)
        return (
            f"The wall time per {compared.a.unit} differs by {_signed(change.change)}; {noise}"
            f"{rest}."
        )
    accounts = listed or "no account alone explains it"
    return f"{_difference(compared)}: {accounts}{f'; {settings}' if settings else ''}."


def _speed_settings(compared: Comparison) -> str:
    """Return the settings that differ and affect the speed, with the change per sample.

    The samples of a unit are named if the fetches of a unit differ, as with accumulation.
    """
    differing = {each.key: each for each in compared.configuration}
    found = [differing[name] for name in SPEED_SETTINGS if name in differing]
    texts = [
        f"{each.key.removeprefix('cirron.')} {_setting(each.a)} -> {_setting(each.b)}"
        for each in found[:_MOST_NAMED]
    ]
    sizes, samples = compared.unit_sizes, compared.samples
    if sizes is None or samples is None:
        return ", ".join(texts)
    per_sample = f" ({_signed(samples['change'])} per sample)"
    if LOADER_BATCH_SIZE in differing:
        texts[0] += per_sample  # the first of SPEED_SETTINGS
    elif abs(sizes[1] - sizes[0]) > _LEAST_SIZE * sizes[0]:
        unit = compared.a.unit
        texts.insert(0, f"samples per {unit} {sizes[0]:.3g} -> {sizes[1]:.3g}{per_sample}")
    return ", ".join(texts)


def _difference(compared: Comparison) -> str:
    """Return the sentence on the difference, with the numbers of units if they differ."""
    change, a, b = compared.change, compared.a.costs, compared.b.costs
    if a is None or b is None:
        return ""
    difference = (b.per_unit - a.per_unit) * compared.scale
    word = "longer" if difference >= 0 else "less"
    more = _signed(change.change)
    per = ""
    if compared.is_per_unit:
        per = f" per {compared.a.unit}"
        counts = (
            (each.units_of_lane, run.unit) for each, run in ((a, compared.a), (b, compared.b))
        )
        units = (count(round(number), unit) for number, unit in counts)
        more += "; {} in A, {} in B".format(*units)
    return f"B takes {duration(round(abs(difference)))} {word}{per} ({more})"


def _shortage(compared: Comparison) -> str:
    """Return which run has too few units for its noise to be measured."""
    from ...core.run.costs import MIN_UNITS

    a = compared.a.costs
    name = "A" if a is not None and a.noise is None else "B"
    units = plural(compared.a.unit)
    return (
        f"{name} has too few {units} to measure its noise: {MIN_UNITS} after the warm-up are"
        " needed in each rank"
    )


def _named(compared: Comparison) -> str:
    """Return the accounts that explain the difference, each with its part of it."""
    named, texts = compared.change.named, []
    per = f" per {compared.a.unit}" if compared.is_per_unit else ""
    is_whole = compared.change.kind in ("SLOWER", "FASTER")
    for each in named[:_MOST_NAMED]:
        time = _longer(each.per_unit_ns * compared.scale)
        part = f" ({round(100 * each.part)} % of it)" if is_whole and each.part is not None else ""
        texts.append(f"{_account(each.account, compared)} {time}{per}{part}")
    return ", ".join(texts)


def why(compared: Comparison) -> str:
    """Return the figures of the verdict: the wall time per unit, and the median unit."""
    a, b, change = compared.a.costs, compared.b.costs, compared.change
    unit = compared.a.unit
    if a is None or b is None or change.change is None:
        return headline(compared)
    noise = "" if change.noise is None else f"; the noise of both runs is {_percent(change.noise)}"
    text = (
        f"the wall time per {unit} is {duration(round(a.per_unit))} in A and"
        f" {duration(round(b.per_unit))} in B, {_signed(change.change)}{noise}"
    )
    median, median_noise = compared.unit_median, compared.median_noise()
    if median.a is None or median.b is None or median.change is None:
        return text
    noise = "" if median_noise is None else f" (noise {_percent(median_noise)})"
    return (
        f"{text}. The median {unit} takes {duration(median.a.median_ns)} in A and"
        f" {duration(median.b.median_ns)} in B, {_signed(median.change)}{noise}"
    )


def comparison_parts(compared: Comparison) -> Iterator[RenderableType]:
    """Yield the lines and tables of a comparison."""
    change = compared.change
    kind = change.kind if change.severity == "info" else f"{change.kind} ({change.severity})"
    yield from wrapped(printable(headline(compared)), f"{kind}: ", "  ")
    if change.change is not None:
        text = why(compared)
        yield from wrapped(printable(f"{text[:1].upper()}{text[1:]}."), "  ", "  ")
    yield from _conclusions(compared)
    if change.accounts:
        yield from _ledger(compared)
    yield from _configuration(compared)
    yield from _units(compared)
    yield ""
    yield _phases(compared)
    if compared.marks:
        yield ""
        yield _marks(compared)
    if compared.marks_left_out:
        yield f"and up to {compared.marks_left_out:,} more series of marks"


def _conclusions(compared: Comparison) -> Iterator[RenderableType]:
    """Yield the conclusion of each run, and the findings that differ."""
    yield ""
    for letter, run in (("A", compared.a), ("B", compared.b)):
        document = run.document
        word = f"{letter}: {severity_word(document.status)}:"
        yield from styled_lines(document.status, printable(document.headline), word)
    pairs = [each for each in compared.findings if each.change != "same"]
    for pair in pairs[:_MOST_FINDINGS]:
        finding = pair.b or pair.a
        if finding is None:
            continue
        run = compared.a if pair.b is None else compared.b
        cost = price(finding, run.document.ledger)
        facts = "; ".join(filter(None, (cost, place(finding, run.unit))))
        before = ""
        if pair.change == "changed" and pair.a is not None:
            earlier = price(pair.a, compared.a.document.ledger)
            before = f"; in A {pair.a.severity}" + (f", {earlier}" if earlier else "")
        text = f"{finding.kind}: {facts}{before}".removesuffix(": ")
        word = f"{_WORDS[pair.change]}: {severity_word(finding.severity)}"
        yield from styled_lines(finding.severity, text, word)
    if len(pairs) > _MOST_FINDINGS:
        yield f"and {count(len(pairs) - _MOST_FINDINGS, 'more finding')}: --json has them"


def _ledger(compared: Comparison) -> Iterator[RenderableType]:
    a, b = compared.a.costs, compared.b.costs
    if a is None or b is None:
        return
    unit, scale = compared.a.unit, compared.scale
    least = _LEAST_SHARE * max(a.per_unit, b.per_unit)
    rows = [
        each
        for each in compared.change.accounts
        if each.is_counted and max(each.a_per_unit_ns, each.b_per_unit_ns) >= least
    ]
    cells = [_row(each, compared) for each in rows]
    cells.append((
        "wall time", duration(round(a.per_unit * scale)), duration(round(b.per_unit * scale)),
        _longer((b.per_unit - a.per_unit) * scale), _signed(compared.change.change), "",
    ))  # fmt: skip
    yield ""
    of_ranks = ", mean of the ranks" if max(a.lanes, b.lanes) > 1 else ""
    per = f"per {unit}" if compared.is_per_unit else f"of {count(round(scale), unit)}"
    yield f"The wall time {per}{of_ranks}:"
    yield ""
    heads = ("account", "A", "B", "difference", "change", "part of it")
    yield rows_table(heads, set(heads[1:]), cells)
    others = [each for each in compared.change.accounts if not each.is_counted]
    texts = [
        f"{_account(each.account, compared)} {duration(each.a_ns)} in A, {duration(each.b_ns)} in B"
        for each in others
    ]
    if texts:
        yield from wrapped("; ".join(texts), "Not part of it: ", "  ")


def _row(each: AccountChange, compared: Comparison) -> tuple[str, ...]:
    scale = compared.scale
    part = "" if each.part is None else f"{round(100 * each.part)} %"
    if not each.is_named and part:
        part = "noise" if _is_noise(each) else part
    return (
        _account(each.account, compared),
        duration(round(each.a_per_unit_ns * scale)),
        duration(round(each.b_per_unit_ns * scale)),
        _longer(each.per_unit_ns * scale),
        _percentage(relative(each.a_per_unit_ns, each.b_per_unit_ns)),
        part,
    )


def _is_noise(each: AccountChange) -> bool:
    return each.noise_ns is not None and 0 < abs(each.per_unit_ns) <= each.noise_ns


def _configuration(compared: Comparison) -> Iterator[str]:
    settings = compared.configuration
    if not settings:
        return
    yield ""
    yield "The configuration differs (A -> B):"
    for each in settings[:_MOST_SETTINGS]:
        yield f"  {printable(each.key)}: {_setting(each.a)} -> {_setting(each.b)}"
    if len(settings) > _MOST_SETTINGS:
        yield f"and {len(settings) - _MOST_SETTINGS:,} more: --json has them"


def _setting(value: Any) -> str:
    text = "not recorded" if value is None else printable(str(value))
    return text if len(text) <= _LONGEST_SETTING else f"{text[: _LONGEST_SETTING - 1]}…"


def _units(compared: Comparison) -> Iterator[RenderableType]:
    a, b = compared.a.document.units, compared.b.document.units
    if a is None or b is None:
        return
    rows: list[tuple[str, ...]] = []
    for name in UNIT_FIGURES:
        one, other = getattr(a, name), getattr(b, name)
        if name == "errors" and not one and not other:
            continue
        title = _TITLES.get(name, name.removesuffix("_ns"))
        shown = (_figure(name, one), _figure(name, other), _percentage(relative(one, other)))
        rows.append((title, *shown))
    heads = (plural(printable(a.name)), "A", "B", "change")
    yield ""
    yield rows_table(heads, set(heads[1:]), rows)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_ns"):
        return duration(round(value))
    return f"{value:.3g}" if name == "per_s" else f"{value:,}"


def _phases(compared: Comparison) -> Table:
    heads = ("phase", "times A", "times B", "median A", "median B", "change")
    rows: list[tuple[str, ...]] = [
        (each.name, _count(each.a), _count(each.b), _median(each.a), _median(each.b),
         _percentage(each.change))
        for each in compared.phases
    ]  # fmt: skip
    return rows_table(heads, set(heads[1:]), rows)


def _marks(compared: Comparison) -> Table:
    heads = ("mark", "rank", "last A", "last B")
    rows: list[tuple[str, ...]] = [
        (a.title, "-" if a.rank is None else str(a.rank), value_text(a.last), value_text(b.last))
        for a, b in compared.marks
    ]
    return rows_table(heads, set(heads[1:]), rows)


def _count(phase: PhaseFigures | None) -> str:
    return f"{phase.times if phase is not None else 0:,}"


def _median(phase: PhaseFigures | None) -> str:
    return duration(phase.median_ns) if phase is not None and phase.times else "-"


def _percentage(change: float | None) -> str:
    return "-" if change is None else f"{100 * change:+.1f} %"


def _account(account: str, compared: Comparison) -> str:
    return account_name(account, printable(compared.a.unit))


def _longer(ns: float) -> str:
    text = duration(round(ns))
    return text if text.startswith("-") else f"+{text}"


def _signed(change: float | None) -> str:
    if change is None:
        return "?"
    value = 100 * change
    return f"{value:+,.0f} %" if abs(value) >= 9.95 else f"{value:+.1f} %"


def _percent(share: float) -> str:
    return _signed(share).removeprefix("+")
