"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ...core.durations import UNIT_SECONDS
from ...core.spool.directories import DEFAULT_NAME
from ...core.targets.otlp.config import Signal
from ...errors import UsageError
from ..convert import tables

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]i?|)b?", re.IGNORECASE | re.ASCII)
_PREFIXES = ("", "k", "m", "g", "t")
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", re.IGNORECASE | re.ASCII)


def size_in_bytes(text: str) -> int:
    """Parse a size such as `1000000`, `500MB` or `1GiB`. Raises click.BadParameter."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(
            f"{text!a} is not a size: expected bytes, as in 1000000, 500MB or 1GiB"
        )
    prefix = match[2].lower()
    base = 1024 if prefix.endswith("i") else 1000
    scale: int = base ** _PREFIXES.index(prefix[:1])
    return round(Decimal(match[1]) * scale)


def age_in_ns(text: str) -> int:
    """Parse an age such as `90s`, `30m`, `12h`, `7d` or `2w`. Raises click.BadParameter."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(
            f"{text!a} is not an age: expected a number and s, m, h, d or w, as in 7d"
        )
    return round(Decimal(match[1]) * UNIT_SECONDS[match[2].lower()] * 1_000_000_000)


unit_option: Callable[[F], F] = click.option(
    "--unit",
    metavar="NAME",
    help="The name of the scopes that are the units, in a recording without steps.",
)


class FormatChoice(click.Choice[str]):
    """A choice from the names in a table of sources or targets, including rows that are added
    later.
    """

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        """`names` is called each time the choices are needed."""
        self._names = names
        super().__init__(())

    @property
    def choices(self) -> tuple[str, ...]:
        """The names in the table."""
        return tuple(self._names())

    @choices.setter
    def choices(self, _: tuple[str, ...]) -> None:
        """Ignore the value, because the table determines the choices."""


class PlacesCommand(click.Command):
    """A command whose help lists the available sources and targets."""

    def __init__(self, *arguments: Any, has_target: bool = False, **options: Any) -> None:
        """`has_target` means that the command writes a target, so its help lists the targets."""
        super().__init__(*arguments, **options)
        self._has_target = has_target

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the tables of sources and targets."""
        rows = {"Sources": [(name, row.summary) for name, row in tables.SOURCES.items()]}
        if self._has_target:
            rows["Targets"] = [(name, row.summary) for name, row in tables.TARGETS.items()]
        for title, lines in rows.items():
            with formatter.section(title):
                formatter.write_dl(lines)
        super().format_epilog(ctx, formatter)


spool_argument: Callable[[F], F] = click.argument(
    "directory", metavar="[DIR]", default=DEFAULT_NAME
)
json_option: Callable[[F], F] = click.option(
    "--json", "as_json", is_flag=True, help="Write one JSON document to stdout."
)
run_option: Callable[[F], F] = click.option(
    "--run",
    "run",
    metavar="NAME|ID|last|all",
    help="Only this run, by its name or the beginning of its id; for a spool, see `runs ls`.",
)
TRACEML: Final = "traceml"
rules_option: Callable[[F], F] = click.option(
    "--rules",
    type=click.Choice((TRACEML,)),
    help="traceml: verdicts by the rules and the thresholds of TraceML (docs/verdicts.md).",
)
set_option: Callable[[F], F] = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a threshold (docs/findings.md lists them). Can be given several times.",
)
account_option: Callable[[F], F] = click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="NAME=ACCOUNT",
    help="The account of your scopes with a name (docs/ledger.md). Can be given several times.",
)
ignore_option: Callable[[F], F] = click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="KIND[:NAME]",
    help="Findings of this kind, in the phase or scope NAME, count neither for the status nor for"
    " --fail-on. Can be given several times.",
)
price_option: Callable[[F], F] = click.option(
    "--price",
    metavar="PRICE",
    help="The price of an hour of a rank, as in 2.5/h or '2.5 EUR/h': findings have their costs.",
)
from_option: Callable[[F], F] = click.option(
    "--from",
    "source_format",
    type=FormatChoice(tables.source_formats),
    help="The format of SRC, whatever its suffix.",
)
layout_option: Callable[[F], F] = click.option(
    "--trace-layout",
    "layout",
    type=click.Choice(("segmented", "session")),
    default="segmented",
    show_default=True,
    help="How sessions become traces: a chain that any backend can store, or one trace each.",
)
signal_option: Callable[[F], F] = click.option(
    "--signal",
    type=click.Choice([each.value for each in Signal]),
    default=Signal.TRACES.value,
    show_default=True,
    help="traces: the records; metrics: a point for each reading of a memory sample.",
)


def signal_of(name: str, *of_traces: str) -> Signal:
    """Return the chosen signal.

    Raises UsageError if it is metrics, and the current command has one of the options `of_traces`
    (the names of parameters), which only apply to traces.
    """
    signal = Signal(name)
    if signal is not Signal.METRICS:
        return signal
    context = click.get_current_context()
    for parameter in context.command.params:
        is_default = context.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT
        if parameter.name in of_traces and not is_default:
            raise UsageError(f"{parameter.opts[0]} does not apply to metrics: leave it out")
    return signal
