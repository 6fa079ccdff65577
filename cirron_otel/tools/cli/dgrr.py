"""`cirron-otel dgrr`: write, check, replay and compare traces of the Training Trace Runtime."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ...errors import CirronOtelError, TargetError, UsageError
from ..convert.tables import STANDARD
from ..present.formatting import count, printable
from . import output
from .dgrr_traces import (
    CheckedTrace,
    check_output,
    differences_json,
    find_step,
    opened_trace,
    records_of_step,
    require_valid,
    show_differences,
    valid_trace,
    write_trace,
)
from .parameters import json_option

if TYPE_CHECKING:
    from ...core.importers.dgrr.comparing import FieldDifference

F = TypeVar("F", bound=Callable[..., Any])

USAGE, IO, VALIDATION, DIVERGENCE, INTEGRITY = 1, 2, 3, 4, 5
"""The exit codes of the page."""
_DEFAULT_PATH: Final = "trace.dgrr"
_DEFAULT_STEPS, _DEFAULT_RATE, _DEFAULT_SEED = 100, 0.01, 42
_ALL: Final = "all"
_BLOCK: Final = 910
_EPOCH: Final = "SOURCE_DATE_EPOCH"
_U64: Final = click.IntRange(0, 2**64 - 1)


class TraceCommands(click.Group):
    """A group of commands that have the page's exit codes."""

    usage_exit_code = USAGE

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; every error leaves with the page's exit code."""
        from ..convert.trace_files import UnreadableTraceError

        try:
            code = super().invoke(ctx)
            output.flush()
        except CirronOtelError as error:
            if isinstance(error, UsageError):
                error.exit_code = USAGE
            elif isinstance(error, UnreadableTraceError | TargetError):
                error.exit_code = IO
            raise
        return code


def step_or_all(text: str) -> int | str:
    """Parse a step id, or `all`. Raises click.BadParameter."""
    if text == _ALL:
        return text
    if not (text.isascii() and text.isdigit() and int(text[:21]) < 2**64):
        raise click.BadParameter(f"{text!a} is not a step id: expected an integer from 0, or all")
    return int(text)


_trace_option: Callable[[F], F] = click.option(
    "--trace", "path", metavar="PATH", default=_DEFAULT_PATH, show_default=True,
    help="The trace; - is standard input.",
)  # fmt: skip
_step_option: Callable[[F], F] = click.option(
    "--step", type=_U64, metavar="S", required=True, help="The step_id of the step."
)
_tolerance_option: Callable[[F], F] = click.option(
    "--ulp-tol", "tolerance", type=_U64, metavar="N", default=0, show_default=True,
    help="Values of at most this distance, in units in the last place, are equal.",
)  # fmt: skip


@click.command(short_help="Train the page's model, and write its trace.")
@click.option(
    "--steps", type=_U64, metavar="N", default=_DEFAULT_STEPS, show_default=True,
    help="The number of steps.",
)  # fmt: skip
@click.option(
    "--lr", "rate", type=float, metavar="FLOAT", default=_DEFAULT_RATE, show_default=True,
    help="The learning rate.",
)  # fmt: skip
@click.option(
    "--seed", type=_U64, metavar="UINT64", default=_DEFAULT_SEED, show_default=True,
    help="The seed of the data.",
)  # fmt: skip
@click.option(
    "--out", "path", metavar="PATH", default=_DEFAULT_PATH, show_default=True,
    help="The trace; an existing file is replaced, and - is standard output.",
)  # fmt: skip
@json_option
def train(steps: int, rate: float, seed: int, path: str, as_json: bool) -> int:
    """Train a linear model with one weight and one bias, and write every update to a trace.

    The same seed gives the same trace, except for its time; SOURCE_DATE_EPOCH sets that.
    """
    from ...core.importers.dgrr.layout import MAGIC, VERSION, TraceHeader, json_number
    from ...core.importers.dgrr.training import Training

    check_output(path, as_json=as_json)
    if not math.isfinite(rate):
        raise UsageError(f"--lr is {rate}: expected a finite number")
    training = Training(seed, rate)
    header = TraceHeader(MAGIC, VERSION, 0, seed, steps, rate, 0, 0, _now(), bytes(16))

    def blocks() -> Iterator[bytes]:
        for first in range(0, steps, _BLOCK):
            yield b"".join([training.step() for _ in range(min(_BLOCK, steps - first))])

    write_trace(path, header, blocks())
    if as_json:
        loss = training.mean_loss
        output.document({
            "path": path, "steps": steps, "w": json_number(training.w),
            "b": json_number(training.b),
            "mean_loss": None if loss is None else json_number(loss),
        })  # fmt: skip
    else:
        mean = "" if training.mean_loss is None else f", mean loss {training.mean_loss!r}"
        _beside(path)(
            f"{printable(path)}: {count(steps, 'step')}, w = {training.w!r},"
            f" b = {training.b!r}{mean}"
        )
    return 0


def _beside(path: str | None) -> Callable[[str], None]:
    """Return the function that writes a line of the result: to stderr if stdout is the trace."""
    return output.message if path == STANDARD else output.result


def _now() -> int:
    """Return the time of the trace. Raises UsageError if SOURCE_DATE_EPOCH is not valid."""
    text = os.environ.get(_EPOCH)
    if text is None:
        return int(time.time())
    if not (text.isascii() and text.isdigit() and int(text[:21]) < 2**64):
        raise UsageError(f"{_EPOCH} is {text!a}: expected seconds since 1970")
    return int(text)


@click.command(short_help="Compute a step again.")
@click.option(
    "--step", type=step_or_all, metavar="S|all", required=True,
    help="The step_id of the step, or all.",
)  # fmt: skip
@_trace_option
@_tolerance_option
@json_option
def replay(step: int | str, path: str, tolerance: int, as_json: bool) -> int:
    """Compute w_after and b_after of step S again, and compare them with the trace.

    Exit code 5 if they differ.
    """
    from ...core.importers.dgrr.comparing import replay_differences
    from ...core.importers.dgrr.layout import TraceHeader

    replayed, failed = 0, 0
    first: tuple[int, list[FieldDifference]] | None = None
    with valid_trace(path) as trace:
        rate = TraceHeader.parse(trace.head).learning_rate
        for record in records_of_step(trace, step):
            replayed += 1
            found = replay_differences(record, rate, tolerance)
            failed += bool(found)
            if found and first is None:
                first = record.step_id, found
    if as_json:
        output.document({
            "replayed": replayed, "failed": failed, "step": first and first[0],
            "fields": {} if first is None else differences_json(first[1], "stored", "replayed"),
        })  # fmt: skip
    elif first is None:
        output.result(f"{printable(path)}: {count(replayed, 'step')} replayed, no difference")
    else:
        output.result(f"{printable(path)}: step {first[0]} differs from its replay")
        show_differences(first[1], "stored", "replayed")
        if step == _ALL:
            output.result(f"{failed:,} of {count(replayed, 'step')} differ")
    return INTEGRITY if failed else 0


@click.command(short_help="Show a step.")
@_step_option
@_trace_option
@json_option
def inspect(step: int, path: str, as_json: bool) -> int:
    """Show the record of step S: each field with its bits, and the checks that it fails.

    Exit code 3 if any check of the trace fails.
    """
    from ...core.importers.dgrr.layout import RECORD_NAMES, json_number, require_trace

    with opened_trace(path) as trace:
        require_trace(path, trace.head)
        try:
            position, record = find_step(trace, step)
        except UsageError:
            require_valid(trace)
            raise
        checked = CheckedTrace(trace, position)
    shown = list(zip(RECORD_NAMES, record, map(_bits, record), strict=True))
    if as_json:
        output.document({
            "record": position,
            "fields": {
                name: json_number(value) if isinstance(value, float) else value
                for name, value, _ in shown
            },
            "bits": {name: bits for name, _, bits in shown},
            "findings": [each.check for each in checked.of_record],
            "valid": checked.is_valid,
        })  # fmt: skip
    else:
        output.result(f"{printable(path)}: step {step}, record {position}")
        for name, value, bits in shown:
            output.result(f"  {name:<13} {value!r:<25} {bits}")
        for each in checked.of_record:
            output.result(f"  {each.check}: {each.message}")
    checked.report(path, beside=position)
    return 0 if checked.is_valid else VALIDATION


def _bits(value: float) -> str:
    """Return the bits of a field: integers have 32 bits, except for the step id."""
    from ...core.importers.dgrr.layout import bits_of

    return bits_of(value) if isinstance(value, float) else f"{value:x}"


@click.command(short_help="Show the parameters before a step.")
@_step_option
@_trace_option
@click.option(
    "--out", "target", metavar="PATH",
    help="Write the trace of the steps before S to this file; - is standard output.",
)  # fmt: skip
@json_option
def rollback(step: int, path: str, target: str | None, as_json: bool) -> int:
    """Show the parameters w and b before step S. The trace itself is not changed."""
    from ...core.importers.dgrr.layout import RECORD, TraceHeader, bits_of, json_number

    check_output(target, as_json=as_json)
    with valid_trace(path) as trace:
        position, record = find_step(trace, step)
        if target is not None:
            if STANDARD not in (path, target) and _is_same_file(path, target):
                raise UsageError(f"--out is the trace {path} itself: name another file")
            header = TraceHeader.parse(trace.head)._replace(step_count=position)

            def blocks() -> Iterator[bytes]:
                left = position * RECORD.size
                for chunk in trace.chunks():
                    yield chunk[:left]
                    left -= min(left, len(chunk))
                    if not left:
                        return

            write_trace(target, header, blocks())
    if as_json:
        output.document({
            "step": step, "w": json_number(record.w_before), "b": json_number(record.b_before),
            "out": target, "records": position,
        })  # fmt: skip
    else:
        show = _beside(target)
        show(f"{printable(path)}: before step {step}")
        for name, value in (("w", record.w_before), ("b", record.b_before)):
            show(f"  {name} = {value!r:<25} {bits_of(value)}")
        if target is not None:
            show(f"{printable(target)}: {count(position, 'step')}")
    return 0


def _is_same_file(path: str, target: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(path).samefile(target)
    return False


@click.command(short_help="Find the first step that differs in two traces.")
@click.option(
    "--a", "path_a", metavar="PATH", required=True, help="The first trace; - is standard input."
)
@click.option(
    "--b", "path_b", metavar="PATH", required=True, help="The second trace; - is standard input."
)
@_tolerance_option
@json_option
def compare(path_a: str, path_b: str, tolerance: int, as_json: bool) -> int:
    """Compare w_after, b_after and loss of two traces step by step.

    Exit code 4 if a step differs, or if one trace has more steps; 3 if a trace is not valid.
    """
    from ...core.importers.dgrr.comparing import first_divergence

    if path_a == path_b == STANDARD:
        raise UsageError("--a and --b are both -: name a file for one of them")
    with valid_trace(path_a) as a, valid_trace(path_b) as b:
        found = first_divergence(a, b, tolerance)
        counts = a.records, b.records
    if as_json:
        output.document({
            "diverged": found is not None,
            "step": None if found is None else found.step,
            "fields": {} if found is None else differences_json(found.fields, "a", "b"),
        })  # fmt: skip
    elif found is None:
        output.result(f"no difference in {count(counts[0], 'step')}")
    elif found.fields:
        output.result(f"the traces diverge at step {found.step}")
        show_differences(found.fields, "a", "b")
    else:
        output.result(
            f"the traces diverge at step {found.step}, which only"
            f" {'a' if counts[0] > counts[1] else 'b'} has: a has {count(counts[0], 'step')},"
            f" b has {count(counts[1], 'step')}"
        )
    return 0 if found is None else DIVERGENCE


@click.command(short_help="Check a trace.")
@click.argument("path", metavar="PATH")
@json_option
def verify(path: str, as_json: bool) -> int:
    """Check the magic, the version, the CRCs, the count, the step ids, and the parameters.

    Exit code 3 if a check fails.
    """
    from ...core.importers.dgrr.layout import identify

    with opened_trace(path) as trace:
        checked = CheckedTrace(trace)
        records = trace.records if identify(trace.head) is None else 0
    if as_json:
        left_out = checked.count - len(checked.listed)
        output.document({
            "valid": checked.is_valid,
            "records": records,
            "findings": [{"check": each.check, "record": each.record} for each in checked.listed],
            **({"findings_left_out": left_out} if left_out else {}),
        })  # fmt: skip
    else:
        for each in checked.listed:
            where = "" if each.record is None else f"record {each.record}: "
            output.result(f"{where}{each.message} [{each.check}]")
        problems = count(checked.count, "finding") if checked.count else "valid"
        output.result(f"{printable(path)}: {count(records, 'record')}, {problems}")
    checked.report_notes(path)
    return 0 if checked.is_valid else VALIDATION


@click.group(cls=TraceCommands, short_help="Write, check and compare DGRR traces.")
def dgrr() -> None:
    """Write, check, replay and compare traces of the Training Trace Runtime.

    Exit codes of these commands: 0 done; 1 wrong usage; 2 a file cannot be read or written; 3 a
    check of the trace failed; 4 the traces diverge; 5 a step differs from its replay; 130
    interrupted.
    """


for _command in (train, replay, inspect, rollback, compare, verify):
    dgrr.add_command(_command)
