"""`spool flush`: send the unsent batches of a spool, once, to the targets of the environment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict

from ..._version import SDK_VERSION
from ...core.config.exporters import Export, exports_of
from ...core.config.resolve import resolve
from ...core.delivery.delivery_stats import ExportStats
from ...core.delivery.errors import StoppedError
from ...core.delivery.follow import Follower, unsent
from ...core.delivery.follow_work import FollowOptions
from ...core.delivery.foreground import ForegroundDelivery
from ...core.records.problems import ReadingProblem
from ...core.spool.ledger import by_owner
from ...core.spool.owner import known_owners
from ...core.spool.paths import SpoolPaths
from ...core.spool.reader import SpoolReader
from ...core.spool.recovery import Recovered, find_recoverable, recover
from ...core.targets.cirron.batches import CirronTarget
from ...core.targets.otlp.config import OtlpConfig, default_service_name
from ...core.translator.own.encode import Options
from ...errors import CirronOtelError, EndpointError, UsageError
from .report import ExportReport

PATIENCE_S = 60.0
"""The time for which a target may be unavailable before the flush gives up on it, seconds."""
_ENDPOINT_FAILED = EndpointError.exit_code


@dataclass(slots=True)
class TargetReport(ExportReport):
    """The report of a flush to one target."""

    files: int = 0
    """Snapshot files that were sent."""
    left: int = 0
    """Batches that the target has not received yet."""
    failure: str = ""
    """The reason why the flush gave up on the target; "" if it did not."""

    @property
    def exit_code(self) -> int:
        """0 if the target has received all data; 1 if data was skipped or is unsent; 5 if the
        target failed.
        """
        if self.failure:
            return _ENDPOINT_FAILED
        return 1 if self.left or self.skipped_count or self.rejected else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        details = {"files": self.files, "left": self.left, "failure": self.failure}
        return ExportReport.to_json(self) | details


@dataclass(slots=True)
class FlushReport:
    """The report of a flush."""

    paths: SpoolPaths
    recovered: list[Recovered]
    targets: list[TargetReport] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The highest exit code of the targets; at least 1 if a journal was damaged."""
        damaged = any(done.problem for done in self.recovered)
        return max([int(damaged), *(report.exit_code for report in self.targets)])


class _Terms(TypedDict):
    """The parameters of a flush, which are the same for all targets."""

    stop: threading.Event
    say: Callable[[str], None]
    patience: float
    on_failure: Callable[[CirronOtelError], None]


_Flush = Callable[[SpoolPaths, TargetReport, _Terms], None]
"""A function that sends the batches that one target has not received, and completes the report. It
raises EndpointError."""


def _flush_otlp(
    config: OtlpConfig, options: Options, paths: SpoolPaths, report: TargetReport, terms: _Terms
) -> None:
    """Send the batches that an OTLP endpoint has not received yet."""
    stats = ExportStats(report.target)
    follow_options = FollowOptions(patience=terms["patience"], on_failure=terms["on_failure"])
    follower = Follower(
        str(paths.root),
        config,
        options,
        stats,
        stop=terms["stop"],
        say=terms["say"],
        terms=follow_options,
    )
    try:
        follower.once()
    finally:
        report.add(stats)
        report.left = follower.unsent()


def _flush_cirron(
    target: CirronTarget, paths: SpoolPaths, report: TargetReport, terms: _Terms
) -> None:
    """Send unconverted batches and snapshot files that the Cirron platform has not received."""
    broken: dict[str, ReadingProblem] = {}

    def note_broken(finding: ReadingProblem) -> None:
        if finding.code != "torn":
            broken.setdefault(finding.name, finding)

    reader = SpoolReader(paths.root, on_finding=note_broken)
    stats = ExportStats(report.target)
    delivery = ForegroundDelivery(paths, target, stats, **terms)
    try:
        for owner, names in by_owner(reader.names(), known_owners(paths)).items():
            backlog = delivery.claim(owner)
            if backlog is None:
                continue
            left = [name for name in names if name not in backlog.cursor]
            for name in left:
                reader.read(name)  # reports files that are not batches to `note_broken`
            delivery.take(backlog, [name for name in left if name not in broken])
            delivery.finish()
            report.files += delivery.upload(backlog)
            delivery.release(owner)
    finally:
        delivery.close()
        target.close()
        for finding in broken.values():
            stats.skip(finding)
        stats.accepted_spans, stats.messages = stats.spans, stats.sent_batches
        stats.written_bytes = stats.sent_bytes
        report.add(stats)
        report.left = unsent(reader, target.key, broken)


def _targets_from_env(
    environ: Mapping[str, str], say: Callable[[str], None]
) -> list[tuple[str, _Flush]]:
    """Return the address and the flush function of each target in the session options.

    The options come from the environment, `cirron.yaml` and `~/.cirron/config.toml`. `say` receives
    the problems that are ignored. Raises UsageError if there is no target or an option is unusable,
    and MissingExtraError.
    """
    resolved = resolve(environ=environ)
    config, exports = resolved.config, exports_of(resolved.config, environ)
    for problem in (*resolved.problems, *exports.problems):
        say(problem)
    targets: list[tuple[str, _Flush]] = []
    if Export.OTLP in exports.targets:
        otlp = OtlpConfig.from_env(environ)
        options = Options(config.trace_layout, default_service_name(environ))
        targets.append((otlp.shown_endpoint, partial(_flush_otlp, otlp, options)))
    # An event stream belongs to one run, so the platform itself gets the unsent batches.
    if {Export.CIRRON_HTTP, Export.EVENT_STREAM} & set(exports.targets) and config.api_key:
        platform = CirronTarget(
            config.api_endpoint, config.ingest_path, config.api_key, SDK_VERSION
        )
        targets.append((platform.shown, partial(_flush_cirron, platform)))
    if not targets:
        raise UsageError(
            "no destination is configured: set OTEL_EXPORTER_OTLP_ENDPOINT or CIRRON_API_KEY"
        )
    return targets


def flush(
    directory: str,
    *,
    environ: Mapping[str, str],
    stop: threading.Event,
    say: Callable[[str], None] = lambda _: None,
    patience: float = PATIENCE_S,
    on_failure: Callable[[CirronOtelError], None] = lambda _: None,
) -> FlushReport:
    """Recover the data of dead processes, and send all unsent batches to every target.

    A target that fails is reported, and the next one is tried. Batches that a running process sends
    are skipped. `on_failure` receives the failures that are retried.
    Raises UsageError, InputError and TargetError.
    """
    paths = find_recoverable(directory)
    targets = _targets_from_env(environ, say)
    report = FlushReport(paths, recover(paths))
    for shown, flush_to in targets if paths.spool.is_dir() else ():
        done = TargetReport(target=shown)
        report.targets.append(done)
        try:
            terms: _Terms = {
                "stop": stop, "say": say, "patience": patience, "on_failure": on_failure,
            }  # fmt: skip
            flush_to(paths, done, terms)
        except StoppedError:
            break
        except EndpointError as error:
            done.failure = str(error)
    return report
