"""`cirron-otel doctor`: check the requirements of a training run."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import click

from ...errors import EndpointError
from ..present.formatting import count, printable
from . import output
from .parameters import json_option

if TYPE_CHECKING:
    from ..doctor import Check

_MEND = 1


def _a_time(_: click.Context, __: click.Parameter, seconds: float) -> float:
    if math.isnan(seconds):  # FloatRange accepts nan
        raise click.BadParameter("'nan' is not a number of seconds.")
    return seconds


@click.command(short_help="Check endpoint, spool, hooks and versions.")
@click.option("--no-send", is_flag=True, help="Contact the endpoints, but send no span.")
@click.option(
    "--no-hooks", is_flag=True, help="Skip the check of PyTorch, which takes several seconds."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    callback=_a_time,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="The time limit for the checks of one endpoint.",
)
@json_option
def doctor(no_send: bool, no_hooks: bool, timeout: float, as_json: bool) -> int:
    """Check what a training run needs, send one span, and report the answer.

    The checks cover versions, clock, variables, configuration, the spool's directory, PyTorch's
    hooks, and the configured endpoints: name, connection, TLS, protocol, headers. Exit code 5 if an
    endpoint fails, 1 if something else needs to be corrected.
    """
    from ..doctor import DoctorRequest, examine

    request = DoctorRequest(os.environ, timeout, is_sent=not no_send, has_hooks=not no_hooks)
    checks: list[Check] = []
    for check in examine(request):
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        output.document({"checks": [each.to_json() for each in checks], **_counts(checks)})
    else:
        counts = _counts(checks)
        totals = (
            f"{counts['ok']} ok, {count(counts['warning'], 'warning')}, {counts['failed']} failed"
        )
        output.result(f"\n{count(len(checks), 'check')}: {totals}")
    return _exit_code(checks)


def _show(check: Check) -> None:
    advice = f" → {check.advice}" if check.advice else ""
    output.result(f"{check.state:<8} {check.name:<15}  {printable(check.found + advice)}")
    output.flush()


def _counts(checks: list[Check]) -> dict[str, int]:
    states = [str(each.state) for each in checks]
    return {state: states.count(state) for state in ("ok", "warning", "failed")}


def _exit_code(checks: list[Check]) -> int:
    failures = [each for each in checks if each.state == "failed"]
    if any(each.is_endpoint for each in failures):
        return EndpointError.exit_code
    return _MEND if failures else 0
