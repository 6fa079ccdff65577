"""The demo's other targets: the database of an embedded collector, and an OTLP endpoint."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...collector.service.extra import is_installed
from ...core.state_database import open_database
from ...errors import CirronOtelError, UsageError
from ..present.formatting import added, count, duration, printable
from .embedded import Embedded, EmbeddedError

if TYPE_CHECKING:
    from ..convert.report import ExportReport

_CHECK_S = 5.0
_SLOWEST = """
SELECT "epoch", "step", "durationNs", "timesMedian" FROM "TraceSlowestStep"
WHERE "workspaceId" = 'default' AND "runId" = ? AND "place" = 1
"""
_SPANS = """
SELECT "spans" FROM "TraceRun" WHERE "workspaceId" = 'default' AND "runId" = ?
"""
MISSING = "the extra 'collector' is not installed: pip install 'cirron-otel[collector]'"


@dataclass(slots=True)
class Stored:
    """The part of the run that a collector stored."""

    database: Path
    spans: int = 0
    slowest: dict[str, Any] = field(default_factory=dict)
    """The slowest step, a row of the view TraceSlowestStep."""
    reason: str = ""
    """The reason why the run is not stored, or is stored only in part."""
    has_failed: bool = False
    """Whether the reason is a failure, rather than a missing extra."""

    @property
    def is_there(self) -> bool:
        """Whether the database contains the run."""
        return bool(self.spans)

    def line(self) -> str:
        """Return the line for the terminal."""
        if not self.is_there:
            return f"SQLite  skipped, because {printable(self.reason)}"
        detail = f"{count(self.spans, 'span')} through a collector"
        if self.slowest:
            epoch, step = self.slowest["epoch"], self.slowest["step"]
            detail += f"; the slowest step is {step} of epoch {epoch}:"
            detail += f" {duration(self.slowest['durationNs'])}"
            if self.slowest["timesMedian"]:
                detail += f", {self.slowest['timesMedian']:.2g} times the median"
        return f"SQLite  {printable(str(self.database))}  ({detail})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {
            "database": str(self.database) if self.is_there else None,
            "spans": self.spans,
            "slowest_step": self.slowest or None,
            "reason": self.reason or None,
        }


class Storing:
    """Stores the run through an embedded collector, if the extra `collector` is installed."""

    def __init__(self, collector: Embedded | None, stored: Stored) -> None:
        """`collector` is the collector that `storing` has started, or None if the extra is
        missing.
        """
        self._collector, self._stored = collector, stored

    def store(self, source: Path, session: str | None, spans: int) -> Stored:
        """Send the batches of a spool, drain the collector, and query the session's rows."""
        stored = self._stored
        if self._collector is None:
            return stored
        try:
            with _without_proxy():
                _export(source, {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": self._collector.endpoint(),
                    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                })  # fmt: skip
            self._collector.finish()
            _query_run(stored, _stored_run(source, session))
        except (EmbeddedError, CirronOtelError, sqlite3.Error) as error:
            stored.reason, stored.has_failed = str(error), True
        if not stored.has_failed and stored.spans != spans:
            stored.reason = f"the database has {stored.spans} of {spans} spans"
            stored.has_failed = True
        return stored


def _stored_run(source: Path, session: str | None) -> str | None:
    """Return the `runId` of a session's rows: its resource's run id, else the session's id."""
    from ...core.analysis.run_batch import RUN_ID
    from ...core.analysis.runs import read_runs
    from ...core.spool.reader import SpoolReader

    runs = read_runs(SpoolReader(source)).runs
    recorded = (run.resource.get(RUN_ID) for run in runs if session in run.sessions)
    return next(filter(None, recorded), session)


@contextlib.contextmanager
def storing(place: Path) -> Iterator[Storing]:
    """Start a collector without waiting for it, and remove it when the block ends."""
    stored = Stored(place / "trace.db")
    if not is_installed():
        stored.reason = MISSING
        yield Storing(None, stored)
        return
    from ...core.targets.sql.url import parse_url

    with contextlib.ExitStack() as stack:
        collector = None
        try:
            parse_url(f"sqlite:///{stored.database.absolute()}")
            collector = stack.enter_context(Embedded(place, stored.database))
        except EmbeddedError as error:
            stored.reason, stored.has_failed = str(error), True
        except UsageError as error:  # a URL cannot contain the name of the directory
            stored.reason = str(error)
        yield Storing(collector, stored)


@contextlib.contextmanager
def _without_proxy() -> Iterator[None]:
    """Keep gRPC from using a proxy for connections to this machine, which it does by default."""
    name = "no_grpc_proxy"  # gRPC reads this variable first
    before = os.environ.get(name)
    os.environ[name] = "127.0.0.1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _export(source: Path, environ: Mapping[str, str]) -> ExportReport:
    """Push a source. Raises CirronOtelError."""
    from ..convert.export import ExportRequest, export

    return export(ExportRequest(source=str(source)), environ=environ, stop=threading.Event())


def _query_run(stored: Stored, session: str | None) -> None:
    """Run the queries of a typical user: how many spans are stored, and which step was the
    slowest.
    """
    # Not `mode=ro`: a connection that cannot write does not remove the WAL's files.
    opened = open_database(stored.database, "query_only=1", must_exist=True)
    with contextlib.closing(opened) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute(_SPANS, (session,)).fetchone()
        stored.spans = row["spans"] if row else 0
        slowest = connection.execute(_SLOWEST, (session,)).fetchone()
        stored.slowest = dict(slowest) if slowest else {}


@dataclass(slots=True)
class Sent:
    """The result of sending the run to the endpoint that the environment names."""

    target: str
    accepted: int = 0
    rejected: int = 0
    synthetic: int = 0
    """The number of sent spans that represent no record."""
    message: str = ""
    """The message that the endpoint returned although it accepted the spans."""
    hint: str = ""
    """The reason why the endpoint may not show the run."""
    trace_id: str = ""
    failure: str = ""

    def line(self) -> str:
        """Return the line for the terminal."""
        if self.failure:
            return f"sent    NOT: {printable(self.failure)}"
        recorded = self.accepted + self.rejected - self.synthetic
        return (
            f"sent    {printable(self.target)}  ({count(self.accepted, 'span')} accepted,"
            f" {self.rejected:,} rejected{added(recorded, self.synthetic)};"
            f" look for trace {self.trace_id})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {
            "target": self.target,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "synthetic": self.synthetic,
            "message": self.message,
            "hint": self.hint,
            "trace_id": self.trace_id,
            "failure": self.failure or None,
        }


def send(source: Path, session: str | None) -> Sent | None:
    """Send one session to the endpoint in OpenTelemetry's variables; return None if none is set.

    Other configuration has no effect. The endpoint is probed first, so that an unreachable endpoint
    is reported within seconds.
    """
    from ...core.config.exporters import Export, exports_of
    from ...core.config.options import Config
    from ...core.config.resolve import is_sdk_disabled

    environ = os.environ
    if is_sdk_disabled(environ) or Export.OTLP not in exports_of(Config(), environ).targets:
        return None
    from ...core.targets.otlp.config import OtlpConfig

    sent = Sent("", trace_id=session or "")
    try:
        sent.target = OtlpConfig.from_env(environ).shown_endpoint
        sent.failure = _endpoint_problem(environ)
        if not sent.failure:
            with tempfile.TemporaryDirectory(prefix="cirron-otel-") as folder:
                only = _session_alone(source, session, Path(folder))
                report = _export(only, environ)
            sent.accepted, sent.rejected = report.accepted, report.rejected
            sent.message, sent.hint = report.message, report.hint
            sent.synthetic = report.synthetic
    except CirronOtelError as error:
        sent.failure = str(error)
    return sent


def _endpoint_problem(environ: Mapping[str, str]) -> str:
    """Return the doctor's finding about the endpoint, with its advice; "" if there is none."""
    from ..doctor.otlp import OtlpRequest, examine_otlp

    request = OtlpRequest(environ, _CHECK_S, is_sent=False, service="")
    failures = [check for check in examine_otlp(request) if check.is_endpoint]
    return f"{failures[0].found} ({failures[0].advice})" if failures else ""


def _session_alone(source: Path, session: str | None, folder: Path) -> Path:
    """Write one session to an OTLP file, because the directory may contain earlier runs."""
    from ..convert.convert import ConvertRequest, convert
    from ..convert.select import Selection

    if session is None:
        return source
    target = folder / "run.binpb"
    select = Selection.parse([f"session={session}"])
    convert(ConvertRequest(source=str(source), target=str(target), select=select, jobs=1))
    return target
