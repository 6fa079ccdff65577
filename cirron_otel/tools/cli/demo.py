"""`cirron-otel demo`: train a small network with instrumentation enabled, and show its trace.

Without PyTorch, a recording of the same program is shown. The recording is part of the package;
`python -m tests.kit.recorder.demo` recreates it.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import EndpointError, InputError, TargetError
from ..present.formatting import count, duration, printable, size
from ..present.tables import breakdown_table
from . import demo_targets, output, training
from .folding import fold, folded_trees
from .parameters import json_option
from .progress import progress

if TYPE_CHECKING:
    from ...core.analysis.breakdown import Breakdown
    from ...core.run.trees import Forest
    from ..convert.report import Report
    from ..present.document import Document
    from .demo_targets import Sent, Stored

RECORDING = Path(__file__).parent / "recording"
_NAME = "cirron-otel"
_OTLP = "trace.jsonl"
_BEGINNING = "training a small network on the CPU, for a few seconds"
_SPANS = 50_000


@dataclass(frozen=True, slots=True)
class _Run:
    """A training run, or the recording of one."""

    source: Path
    """The directory with the run's batches."""
    forest: Forest
    reason: str | None = None
    """The reason why the recording is shown; None if that was requested, or if training ran."""
    has_failed: bool = False
    """Whether training was started but did not finish."""

    @property
    def is_trained(self) -> bool:
        """Whether the network was trained just now, on this machine."""
        return self.source is not RECORDING

    @property
    def session(self) -> str | None:
        """The session id, which is also the trace id, because the session joins no other trace."""
        return self.forest.trees[0].id if self.forest.trees else None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The results of converting, storing and sending the run."""

    there: Report
    """The report of the conversion to an OTLP file."""
    back: Report
    is_equal: bool
    """Whether every batch is equal after the conversion back."""
    stored: Stored
    sent: Sent | None
    """The result of sending the run; None if no endpoint is set."""


@click.command(short_help="Train a small network, and look at its trace.")
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The directory for the files; by default a new temporary directory.",
)
@click.option("--replay", is_flag=True, help="Show the recording that ships with this program.")
@json_option
def demo(directory: str | None, replay: bool, as_json: bool) -> int:
    """Train a small network for a few seconds, instrumented; show its tree and its times.

    The run is stored in an SQLite file by a collector that is started for the demo, and also sent
    to OTEL_EXPORTER_OTLP_ENDPOINT if that is set. Without PyTorch, a recording of the same
    training is shown. Nothing is downloaded.
    """
    from ..present.head import head_parts

    with _output_directory(directory) as place, demo_targets.storing(place) as storing:
        if not replay and training.is_installed():
            output.message(_BEGINNING)
        with progress("training") as stages:
            run = _run(place, replay)
            stages.stage("converting to OTLP and back")
            trip = _round_trip(run, place)
            stages.stage("storing with a collector")
            stored = storing.store(run.source, run.session, run.forest.spans)
            stages.stage("sending")
            outcome = _Outcome(*trip, stored, demo_targets.send(run.source, run.session))
            stages.stage("looking for findings")
            breakdown, document = _concluded(run)
        if as_json:
            output.document(_to_json(run, breakdown, document, place, outcome))
        else:
            _show(run, breakdown)
            output.show_parts(["", *head_parts(document)])
            for line in _files(place, outcome) + _next(place, outcome):
                output.result(line)
    return _exit_code(run, outcome)


def _exit_code(run: _Run, gone: _Outcome) -> int:
    """Report failures; return 5 if the endpoint failed, 1 for any other failure."""
    if run.has_failed:
        output.message(f"the training failed, and the recording was shown: {run.reason}")
    if gone.stored.has_failed:
        output.message(f"the collector did not store the run: {gone.stored.reason}")
    sent = gone.sent
    if sent is not None and sent.message:
        output.message(f"the endpoint reports: {sent.message}")
    if sent is not None and sent.hint:
        output.message(sent.hint)
    if sent is not None and sent.failure:
        output.error(f"the run was not sent: {sent.failure}")
        return EndpointError.exit_code
    is_whole = gone.is_equal and not gone.stored.has_failed
    return 0 if is_whole and not run.has_failed and not (sent and sent.rejected) else 1


@contextlib.contextmanager
def _output_directory(directory: str | None) -> Iterator[Path]:
    """Yield the directory for the files; a new temporary directory is removed if the block
    fails.
    """
    if directory is not None:
        path = Path(directory)
        with _unwritable(directory):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        yield path
        return
    with _unwritable("a temporary directory"):
        path = Path(tempfile.mkdtemp(prefix="cirron-otel-demo-"))
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


@contextlib.contextmanager
def _unwritable(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise TargetError(f"{what} cannot be created or written: {reason}") from None


def _run(place: Path, replay: bool) -> _Run:
    """Train if PyTorch is installed, else load the recording."""
    if replay:
        return _recorded(None)
    if not training.is_installed():
        return _recorded("PyTorch is not installed")
    try:
        return _Run(place, _forest(place, training.train(place)))
    except training.TrainingError as error:
        return _recorded(str(error), has_failed=True)
    except InputError as error:
        return _recorded(f"nothing was recorded: {error}", has_failed=True)


def _recorded(reason: str | None, *, has_failed: bool = False) -> _Run:
    reason = None if reason is None else printable(reason)
    return _Run(RECORDING, _forest(RECORDING), reason, has_failed)


def _forest(directory: Path, session: str | None = None) -> Forest:
    from ...core.run.trees import TreeLimits, build_trees
    from ...core.spool.reader import SpoolReader

    limits = TreeLimits(spans=_SPANS, children=_SPANS)
    return build_trees(SpoolReader(directory), session=session, limits=limits)


def _round_trip(run: _Run, place: Path) -> tuple[Report, Report, bool]:
    """Convert to OTLP and back; return both reports, and whether every batch is equal."""
    from ..convert.convert import ConvertRequest, convert

    otlp = str(place / _OTLP)
    with tempfile.TemporaryDirectory(dir=place, prefix=".restored-") as temporary:
        restored = Path(temporary) if run.is_trained else place
        there = convert(ConvertRequest(source=str(run.source), target=otlp, jobs=1))
        back = convert(
            ConvertRequest(source=otlp, target=str(restored), target_format="spool", jobs=1)
        )
        return there, back, _has_same_batches(run.source, restored)


def _has_same_batches(left: Path, right: Path) -> bool:
    """Return whether `right` has every file of `left`, with equal JSON values."""
    from ... import exactjson
    from ...core.spool.reader import SpoolReader

    one, other = (
        {batch.name: exactjson.loads(batch.data) for batch in SpoolReader(each)}
        for each in (left, right)
    )
    return bool(one) and all(
        name in other and exactjson.equal(value, other[name]) for name, value in one.items()
    )


def _to_json(
    run: _Run, found: Breakdown, document: Document, place: Path, gone: _Outcome
) -> dict[str, Any]:
    return {
        "trained": run.is_trained,
        "reason": run.reason,
        "program": str(training.PROGRAM),
        "output": str(place),
        "spans": run.forest.spans,
        "trees": [each.to_json() for each in fold(run.forest.trees)],
        "breakdown": found.to_json(),
        "conclusion": document.head(),
        "to_otlp": gone.there.to_json(),
        "to_spool": gone.back.to_json(),
        "equal": gone.is_equal,
        "collector": gone.stored.to_json(),
        "endpoint": None if gone.sent is None else gone.sent.to_json(),
        "next": _commands(place, gone),
    }


def _concluded(run: _Run) -> tuple[Breakdown, Document]:
    """Return the steps of the run by phase, and the document of the run."""
    from ...core.run.choosing import open_chosen_run
    from ...core.spool.reader import SpoolReader
    from ..present.conclude import document_of_run

    reader = SpoolReader(run.source)
    with open_chosen_run(reader, None) as (chosen, opened):
        document = document_of_run(str(run.source), opened, chosen, reader=reader)
        return opened.together, document


def _show(run: _Run, found: Breakdown) -> None:
    for line in _heading(run):
        output.result(line)
    output.show(*folded_trees(fold(run.forest.trees)))
    steps = count(found.steps.times, "step")
    output.result(f"\nWhere {steps} spent {duration(found.steps.total_ns)}:\n")
    output.show(breakdown_table(found))


def _heading(run: _Run) -> list[str]:
    program = printable(str(training.PROGRAM))
    if run.is_trained:
        return [f"This is what {program} did:", ""]
    because = "" if run.reason is None else f", because {run.reason}"
    lines = [f"A recording{because}. This is what {program} did:"]
    if not training.is_installed():
        lines.append("To train here: pip install 'cirron-otel[torch]' (about 3 GB on Linux).")
    return [*lines, ""]


def _files(place: Path, gone: _Outcome) -> list[str]:
    otlp, there = place / _OTLP, gone.there
    outcome = "every value of every batch is the same" if gone.is_equal else "NOT THE SAME"
    lines = [
        "",
        f"spool   {printable(str(place))}/spool"
        f"  ({count(there.batches, 'file')}, {size(there.bytes_read)},"
        f" {count(there.spans, 'span')}, {count(there.marks, 'mark')},"
        f" {count(there.snapshots, 'snapshot')})",
        f"OTLP    {printable(str(otlp))}  ({size(otlp.stat().st_size)}; and back: {outcome})",
        gone.stored.line(),
    ]
    return lines if gone.sent is None else [*lines, gone.sent.line()]


def _command() -> str:
    """Return the command with which the user's shell can start this program again."""
    called = Path(sys.argv[0])
    is_elsewhere = called.name == _NAME and shutil.which(_NAME) is None
    return printable(str(called)) if is_elsewhere else _NAME


def _commands(place: Path, gone: _Outcome) -> list[str]:
    """Return the three commands to try next, quoted for a shell."""
    import shlex

    def line(*words: str) -> str:
        return printable(" ".join(shlex.quote(word) for word in (_command(), *words)))

    where, database = str(place), gone.stored.database.absolute()
    perfetto = str(place / "perfetto.json")
    second = line("convert", where, str(place / "trace.binpb.zst"))
    if gone.stored.is_there:
        second = line("report", f"sqlite:///{database}")
    return [line("report", where, "--full", "--perfetto", perfetto), second, line("doctor")]


def _next(place: Path, gone: _Outcome) -> list[str]:
    import shlex

    first, second, third = _commands(place, gone)
    what = "what the collector stored" if gone.stored.is_there else "the run as OTLP, compressed"
    return [
        "",
        "Try next:",
        f"  {first}",
        "    # the slowest steps; the file opens in ui.perfetto.dev",
        f"  {second}",
        f"    # {what}",
        f"  {third}",
        "    # checks whether a run can be sent to a backend",
        "and with your own training program, unchanged:",
        f"  {shlex.quote(_command())} run -- python train.py",
    ]
