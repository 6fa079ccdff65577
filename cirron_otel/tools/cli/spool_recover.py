"""`cirron-otel spool recover`: close the scopes that dead processes left open."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import output
from .parameters import json_option, spool_argument
from .text import count, printable

if TYPE_CHECKING:
    from ...core.spool.recovery import Recovered


@click.command(short_help="Close what processes that died left open.")
@spool_argument
@json_option
def recover(directory: str, as_json: bool) -> int:
    """Close the scopes that processes left open which were killed, as incomplete.

    What they were writing is removed. Processes that live are left alone; what is recovered
    already stays as it is. Exit code 1 where a journal is damaged.
    """
    from ...core.spool.recovery import find_recoverable
    from ...core.spool.recovery import recover as run

    paths = find_recoverable(directory)
    recoveries = run(paths)
    if as_json:
        output.document({"path": str(paths.spool), "recovered": to_json(recoveries)})
    else:
        output.result(f"{printable(str(paths.spool))}: {summary(recoveries)}")
        for done in recoveries:
            if done.name is not None:
                output.result(f"wrote {printable(done.name)}")
    return 1 if damages(recoveries) else 0


def summary(found: Sequence[Recovered]) -> str:
    """Return what was recovered as one line."""
    if not found:
        return "nothing to recover"
    torn = sum(len(done.torn) for done in found)
    return (
        f"{count(len(found), 'process that died', 'processes that died')}:"
        f" {count(sum(done.incomplete for done in found), 'open scope')} closed as incomplete,"
        f" {count(sum(done.closed for done in found), 'ended scope')} saved,"
        f" {count(torn, 'unfinished file')} removed"
    )


def damages(found: Sequence[Recovered]) -> int:
    """Report the damaged journals and return their number."""
    problems = [done.problem for done in found if done.problem]
    for problem in problems:
        output.message(f"set aside: {problem}")
    return len(problems)


def to_json(found: Sequence[Recovered]) -> list[dict[str, Any]]:
    """Return what was recovered as a JSON object."""
    return [
        {
            "owner": done.owner,
            "session": done.session,
            "batch": done.name,
            "incomplete": done.incomplete,
            "closed": done.closed,
            "torn": list(done.torn),
            "problem": done.problem,
        }
        for done in found
    ]
