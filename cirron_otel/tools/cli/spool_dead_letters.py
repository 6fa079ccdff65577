"""`cirron-otel spool dead-letters`: batches that a target refused for good."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from ..present.formatting import count, local_moment, printable
from . import output
from .parameters import json_option

if TYPE_CHECKING:
    from ...core.spool.dead_letters import DeadLetter
    from ...core.spool.paths import SpoolPaths

F = TypeVar("F", bound=Callable[..., Any])

_spool: Callable[[F], F] = click.option(
    "--spool", "directory", metavar="DIR", default=DEFAULT_NAME, help="Default: ./.cirron."
)
_target: Callable[[F], F] = click.option(
    "--target",
    metavar="TARGET",
    help="Only dead letters of this target, by its key or address as `ls` lists it.",
)
_all: Callable[[F], F] = click.option("--all", "is_all", is_flag=True, help="All dead letters.")
_names: Callable[[F], F] = click.argument("names", metavar="[NAME]...", nargs=-1)


@click.group("dead-letters", short_help="Batches that a target refused for good.")
def dead_letters() -> None:
    """List the batches that a target refused for good, send them again, or drop them."""


@dead_letters.command(short_help="List dead letters.")
@_spool
@_target
@json_option
def ls(directory: str, target: str | None, as_json: bool) -> int:
    """List the dead letters: target, batch, reason, attempts, first and last refusal."""
    paths, letters = _letters(directory, target)
    if as_json:
        rows = [_to_json(letter) for letter in letters]
        output.document({"path": str(paths.state), "dead_letters": rows})
        return 0
    for letter in letters:
        why = letter.why
        retry_note = ", retry requested" if letter.is_requested else ""
        output.result(f"{printable(letter.name)}  {letter.key}  {printable(why.target)}")
        output.result(
            f"    {count(why.attempts, 'attempt')}, {local_moment(why.first_ns)} to"
            f" {local_moment(why.last_ns)}{retry_note}: {printable(why.reason)}"
        )
    output.message(count(len(letters), "dead letter"))
    return 0


@dead_letters.command(short_help="Send dead letters again.")
@_names
@_all
@_spool
@_target
@json_option
def retry(
    names: tuple[str, ...], is_all: bool, directory: str, target: str | None, as_json: bool
) -> int:
    """Request another attempt to send dead letters.

    The process that sends to the target makes the attempt: a collector within seconds, `spool
    flush` and `export --follow` when they run. A batch that the target accepts is no longer a dead
    letter. Exit code 1 if a NAME is not a dead letter.
    """
    from ...core.spool.dead_letters import request

    return _each(names, is_all, directory, target, as_json, "requested", request)


@dead_letters.command(short_help="Remove dead letters.")
@_names
@_all
@_spool
@_target
@json_option
def drop(
    names: tuple[str, ...], is_all: bool, directory: str, target: str | None, as_json: bool
) -> int:
    """Remove dead letters: the target never gets them.

    A batch that is still in the spool stays there. Exit code 1 if a NAME is not a dead letter.
    """
    from ...core.spool.dead_letters import drop as remove

    return _each(names, is_all, directory, target, as_json, "dropped", remove)


def _each(
    names: tuple[str, ...],
    is_all: bool,
    directory: str,
    target: str | None,
    as_json: bool,
    done: str,
    act: Callable[[SpoolPaths, DeadLetter], None],
) -> int:
    if is_all == bool(names):
        raise UsageError("name the batches, or use --all: `spool dead-letters ls` lists them")
    paths, letters = _letters(directory, target)
    chosen = [letter for letter in letters if is_all or letter.name in names]
    missing = sorted(set(names) - {letter.name for letter in chosen})
    for letter in chosen:
        act(paths, letter)
    if as_json:
        rows = [{"target_key": letter.key, "batch": letter.name} for letter in chosen]
        output.document({"path": str(paths.state), done: rows, "missing": missing})
    else:
        output.result(f"{count(len(chosen), 'dead letter')} {done}")
        for name in missing:
            output.message(f"no dead letter is named {printable(name)}")
    return 1 if missing else 0


def _letters(directory: str, target: str | None) -> tuple[SpoolPaths, list[DeadLetter]]:
    from ...core.spool.dead_letters import dead_letters as read
    from ...core.spool.paths import find_spool

    paths = find_spool(directory)
    return paths, [
        letter for letter in read(paths) if target in (None, letter.key, letter.why.target)
    ]


def _to_json(letter: DeadLetter) -> dict[str, Any]:
    why = letter.why
    return {
        "target": why.target,
        "target_key": letter.key,
        "batch": letter.name,
        "reason": why.reason,
        "attempts": why.attempts,
        "first_ns": why.first_ns,
        "last_ns": why.last_ns,
        "bytes": letter.size,
        "retry": letter.is_requested,
    }
