"""`cirron-otel diagnose`: the conclusion on a run, without the figures that support it."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from . import output
from .concluding import Concluded, concluded_by, in_python
from .engines import PYTHON, EngineSource, engine_option
from .failing import FAILED_VERDICT, Conditions, conditions_of, fail_on_options, severity_of
from .parameters import (
    TRACEML,
    PlacesCommand,
    account_option,
    from_option,
    ignore_option,
    json_option,
    price_option,
    rules_option,
    run_option,
    set_option,
    unit_option,
)
from .sources import shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_selection import ChosenRun
    from ...core.run.findings.choices import Choices
    from ..present.document import Document


@click.command(cls=PlacesCommand, short_help="Name the causes of a slow or failed run.")
@click.argument("source", metavar="[SRC]", default=DEFAULT_NAME)
@from_option
@run_option
@engine_option
@unit_option
@rules_option
@click.option(
    "--window",
    "window",
    type=click.IntRange(1),
    metavar="N",
    help="With --live: the last N units of each rank. With --rules traceml: the last N steps.",
)
@set_option
@click.option(
    "--live",
    is_flag=True,
    help="Follow the job that records into SRC, a spool or a database, until it ends.",
)
@account_option
@ignore_option
@price_option
@fail_on_options
@json_option
def diagnose(
    source: str,
    source_format: str | None,
    run: str | None,
    engine: str,
    unit: str | None,
    rules: str | None,
    window: int | None,
    settings: tuple[str, ...],
    live: bool,
    accounts: tuple[str, ...],
    ignored: tuple[str, ...],
    price: str | None,
    fail_on: tuple[str, ...],
    baseline: str | None,
    as_json: bool,
) -> int:
    """Name the causes of a slow or failed run, with their price, and the next thing to try.

    SRC is .cirron by default; - is stdin. The last run is diagnosed, unless --run names another;
    with --run all, each run has a conclusion of its own.
    """
    from ...core.run.findings.choices import choices_of

    place = EngineSource(source, source_format, run)
    if live and engine != PYTHON:
        raise UsageError(f"--live needs --engine {PYTHON}")
    if live and unit is not None:
        raise UsageError("--unit cannot be combined with --live")
    if rules == TRACEML:
        if accounts or ignored or (price, baseline) != (None, None):
            raise UsageError(
                "--rules cannot be combined with --account, --ignore, --price and --baseline"
            )
        changes = settings if window is None else (*settings, f"window.steps={window}")
        has_failed, code = _by_traceml(
            place, engine, changes, unit,
            live=live, fail_on=severity_of(fail_on), as_json=as_json,
        )  # fmt: skip
        return FAILED_VERDICT if has_failed else code
    choices = choices_of(settings, ignored, accounts, price)
    if live:
        if price is not None:
            raise UsageError("--price cannot be combined with --live")
        conditions = conditions_of(fail_on, baseline, place, choices, unit)
        has_failed, code = _live(place, choices, window, conditions, as_json=as_json)
        return FAILED_VERDICT if has_failed else code
    if window is not None:
        raise UsageError(f"--window needs --rules {TRACEML} or --live")
    if unit is not None and engine != PYTHON:
        raise UsageError(f"--unit needs --engine {PYTHON}")
    conditions = conditions_of(fail_on, baseline, place, choices, unit)
    found = None if engine == PYTHON else concluded_by(engine, place, choices)
    if found is None:
        found = in_python(place, choices, unit, lists_others=as_json)
    _show(source, found, as_json=as_json)
    return conditions.code([document for _, document in found.runs], found.code)


def _by_traceml(
    source: EngineSource,
    engine: str,
    changes: Sequence[str],
    unit: str | None,
    *,
    live: bool,
    fail_on: str | None,
    as_json: bool,
) -> tuple[bool, int]:
    """Write the verdicts; return whether one is a failure, and the exit code."""
    from ...core.analysis.verdicts.thresholds import thresholds_of
    from .diagnose_traceml import is_failure, show_verdicts

    limits = thresholds_of("live" if live else "run", changes)
    if not live:
        return show_verdicts(source, engine, limits, unit, fail_on=fail_on, as_json=as_json)
    from .diagnose_live_traceml import live_verdicts
    from .follow import follow

    return follow(
        source.name, source.format, source.run,
        lambda reader: live_verdicts(
            reader, source.run, limits,
            as_json=as_json, is_failure=lambda each: is_failure(each, fail_on),
        ),
    )  # fmt: skip


def _live(
    source: EngineSource,
    choices: Choices,
    window: int | None,
    conditions: Conditions,
    *,
    as_json: bool,
) -> tuple[bool, int]:
    """Write the findings as they change; return whether one was a failure, and the exit code."""
    from .diagnose_live import live_findings
    from .follow import follow

    return follow(
        source.name, source.format, source.run,
        lambda reader: live_findings(
            reader, source.run, choices, window,
            as_json=as_json, is_failure=conditions.is_failure,
        ),
    )  # fmt: skip


def _show(source: str, found: Concluded, *, as_json: bool) -> None:
    from ..present.head import diagnosis_parts

    if as_json:
        output.document({
            "source": shown_source(source),
            "runs": [_json(*each) for each in found.runs],
            "skipped": [each.to_json() for each in found.skipped],
        })  # fmt: skip
        return
    for number, (_, document) in enumerate(found.runs):
        if number:
            output.result("")
        output.show_parts(diagnosis_parts(document))


def _json(chosen: ChosenRun, document: Document) -> dict[str, Any]:
    head = document.head()
    del head["source"]
    return {**head, "other_runs": list(chosen.others)}
