"""`spool flush`: send what is left in a spool, once, to where the environment says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .._version import SDK_VERSION
from ..config import Config, Export, exports_of, resolve
from ..errors import EndpointError, UsageError
from ..exporter.cirron_http import CirronTarget
from ..exporter.config import OtlpConfig, default_service_name
from ..exporter.errors import StoppedError
from ..exporter.foreground import ForegroundDelivery
from ..spool.findings import Finding
from ..spool.ledger import by_owner
from ..spool.owner import known_owners
from ..spool.paths import SpoolPaths
from ..spool.reader import SpoolReader
from ..spool.recovery import Recovered, find_recoverable, recover
from ..translator.encode import SEGMENTED, SESSION_LAYOUT, Options
from .export_report import ExportReport
from .export_stats import ExportStats
from .follow import Follower, unsent
from .follow_work import Terms

PATIENCE_S = 60.0
"""How long a target may not be ready before it is given up."""
_ENDPOINT_FAILED = EndpointError.exit_code


@dataclass(slots=True)
class TargetReport(ExportReport):
    """What a flush did at one target."""

    files: int = 0
    """Snapshot files that were sent."""
    left: int = 0
    """Batches that the target still does not have."""
    failure: str = ""
    """Why the target was given up; "" where it was not."""

    @property
    def exit_code(self) -> int:
        """0 if the target has everything; 1 if something was skipped or left; 5 if it failed."""
        if self.failure:
            return _ENDPOINT_FAILED
        return 1 if self.left or self.skipped_count or self.rejected else 0

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        own = {"files": self.files, "left": self.left, "failure": self.failure}
        return ExportReport.to_json(self) | own


@dataclass(slots=True)
class FlushReport:
    """What a flush did."""

    paths: SpoolPaths
    recovered: list[Recovered]
    targets: list[TargetReport] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The worst of the targets'; 1 at least where a journal was damaged."""
        damaged = any(done.problem for done in self.recovered)
        return max([int(damaged), *(report.exit_code for report in self.targets)])


@dataclass(frozen=True, slots=True)
class Run:
    """What a target needs to know of the flush."""

    paths: SpoolPaths
    stop: threading.Event
    say: Callable[[str], None]
    patience: float = PATIENCE_S


class FlushTarget(Protocol):
    """Somewhere to flush to."""

    @property
    def shown(self) -> str:
        """The target as people may see it."""

    def flush(self, run: Run, report: TargetReport) -> None:
        """Send what it has not, and tell `report`. Raises EndpointError where it fails."""


class OtlpFlush:
    """An OTLP endpoint."""

    def __init__(self, config: OtlpConfig, options: Options) -> None:
        """Nothing is opened yet."""
        self.shown = config.shown_endpoint
        self._config, self._options = config, options

    def flush(self, run: Run, report: TargetReport) -> None:
        """See FlushTarget."""
        stats = ExportStats(self.shown)
        follower = Follower(
            str(run.paths.root),
            self._config,
            self._options,
            stats,
            stop=run.stop,
            say=run.say,
            terms=Terms(patience=run.patience),
        )
        try:
            follower.once()
        finally:
            report.add(stats)
            report.left = follower.unsent()


class CirronFlush:
    """The Cirron platform: batches as they are, and the snapshot files."""

    def __init__(self, target: CirronTarget) -> None:
        """Take the place of the target's delivery."""
        self.shown = target.shown
        self._target = target
        self._broken: dict[str, Finding] = {}

    def flush(self, run: Run, report: TargetReport) -> None:
        """See FlushTarget."""
        reader = SpoolReader(run.paths.root, on_finding=self._found)
        stats = ExportStats(self.shown)
        delivery = ForegroundDelivery(
            run.paths, self._target, stats, stop=run.stop, patience=run.patience, say=run.say
        )
        try:
            self._send(reader, delivery, report)
        finally:
            delivery.close()
            self._target.close()
            for finding in self._broken.values():
                stats.skip(finding)
            stats.accepted_spans, stats.messages = stats.spans, stats.sent_batches
            stats.written_bytes = stats.sent_bytes
            report.add(stats)
            report.left = unsent(reader, self._target.key, self._broken)

    def _send(
        self, reader: SpoolReader, delivery: ForegroundDelivery, report: TargetReport
    ) -> None:
        known = known_owners(reader.paths)
        for owner, names in by_owner(reader.names(), known).items():
            backlog = delivery.claim(owner)
            if backlog is None:
                continue
            left = [name for name in names if name not in backlog.cursor]
            for name in left:
                reader.read(name)  # this finds files that are not batches
            delivery.take(backlog, [name for name in left if name not in self._broken])
            delivery.finish()
            report.files += delivery.upload(backlog)
            delivery.release(owner)

    def _found(self, finding: Finding) -> None:
        if finding.code != "torn":
            self._broken.setdefault(finding.name, finding)


def targets_from_env(environ: Mapping[str, str], say: Callable[[str], None]) -> list[FlushTarget]:
    """Where the environment, `cirron.yaml` and `~/.cirron/config.toml` say that batches go.

    What is wrong there and passed over is given to `say`. Raises UsageError where they say nothing,
    or something that cannot be used, and MissingExtraError.
    """
    resolved = resolve(environ=environ)
    exports = exports_of(resolved.config, environ)
    for problem in (*resolved.problems, *exports.problems):
        say(problem)
    targets: list[FlushTarget] = []
    if Export.OTLP in exports.targets:
        targets.append(OtlpFlush(OtlpConfig.from_env(environ), _options(resolved.config, environ)))
    # An event stream is the run's own: what it has not seen goes to the platform itself.
    if {Export.CIRRON_HTTP, Export.EVENT_STREAM} & set(exports.targets) and resolved.config.api_key:
        targets.append(CirronFlush(_cirron(resolved.config)))
    if not targets:
        raise UsageError(
            "nothing says where to send: set OTEL_EXPORTER_OTLP_ENDPOINT, or CIRRON_API_KEY"
        )
    return targets


def _options(config: Config, environ: Mapping[str, str]) -> Options:
    layout = SESSION_LAYOUT if config.trace_layout == SESSION_LAYOUT else SEGMENTED
    return Options(layout, default_service_name(environ))


def _cirron(config: Config) -> CirronTarget:
    return CirronTarget(config.api_endpoint, config.ingest_path, config.api_key or "", SDK_VERSION)


def flush(
    directory: str,
    *,
    environ: Mapping[str, str],
    stop: threading.Event,
    say: Callable[[str], None] = lambda _: None,
    patience: float = PATIENCE_S,
) -> FlushReport:
    """Recover what dead processes left, and send what is left unsent to every target.

    A target that fails is reported, and the next is tried. What is being sent by a process that
    lives is left to it. Raises UsageError, InputError and TargetError.
    """
    paths = find_recoverable(directory)
    targets = targets_from_env(environ, say)
    report = FlushReport(paths, recover(paths))
    for target in targets if paths.spool.is_dir() else ():
        done = TargetReport(target=target.shown)
        report.targets.append(done)
        try:
            target.flush(Run(paths, stop, say, patience), done)
        except StoppedError:
            break
        except EndpointError as error:
            done.failure = str(error)
    return report
