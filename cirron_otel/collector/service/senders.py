"""The senders: each delivers the spool's batches to one target, on a separate thread.

The targets are the database, the blob store, the columnar tables and the exporters.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ... import semconv
from ..._version import SDK_VERSION
from ...core.spool.paths import SpoolPaths
from ...errors import UsageError
from ..receiver.tenancy import TenantStore
from . import metrics as m
from .delivery_counters import DATABASE
from .exporter_options import CirronExporter, OtlpExporter
from .held_batches import HoldingTarget
from .metrics import Registry
from .options_tree import leaves
from .otlp_sender import OtlpSender
from .target_sender import TargetSender
from .targets import api_key, cirron_settings, name_of, otlp_config
from .values import FILE

if TYPE_CHECKING:
    from ...core.delivery.batch_target import BatchTarget
    from .blob_sender import BlobSender
    from .options import CollectorOptions, ContextOptions
    from .owned_rows import OwnedRows

logger = logging.getLogger(__name__)

_END_S = 2.0
"""How long a changed exporter may take to complete its current request, seconds."""

_SILENT_S = 30.0
"""A target that has not answered a request for this long is logged, seconds."""

_GRACE_S = 1.0
"""How long the last attempt of a sender may take to abort its current request, seconds."""

Sender = TargetSender | OtlpSender


class Wanted(NamedTuple):
    """An exporter in the configuration."""

    exporter: OtlpExporter | CirronExporter
    files: tuple[bytes, ...]
    """The hashes of the files that its options name."""


class Senders:
    """All senders of a collector; for one thread."""

    def __init__(self, options: CollectorOptions, owners: TenantStore, registry: Registry) -> None:
        """Prepare the senders; `owners` stores the headers of batches.

        Raises UsageError, and MissingExtraError if a library is not installed.
        """
        self._owners, self._registry = owners, registry
        url = None if options.storage.url is None else options.storage.url.reveal()
        self._rows: OwnedRows | None = None
        if url is not None:
            from .owned_rows import OwnedRows  # noqa: PLC0415 - only if it is used

            context = storage_context(options.storage.context)
            self._rows = OwnedRows(url, context, owners.of, options.storage.timeout_s)
        self._blobs: BlobSender | None = None
        if options.blobs.url is not None:
            from .blob_sender import BlobSender  # noqa: PLC0415 - only if it is used

            context = storage_context(options.storage.context)
            self._blobs = BlobSender(
                options.blobs.url, url, context, owners.of, options.storage.timeout_s
            )
        self._max_bytes = options.spool.max_bytes
        self._context = storage_context(options.storage.context)
        self._parquet: Callable[[SpoolPaths], TargetSender] | None = None
        if options.parquet.url is not None:
            from .parquet_sender import parquet_starter  # noqa: PLC0415 - only if it is used

            self._parquet = parquet_starter(options, self._owner_of, registry, owners)
        self._fixed: list[TargetSender] = []
        self._ready = _prepared(options, owners, registry)
        """The exporters that the next `begin` starts."""
        self._running: list[tuple[Wanted, Sender]] = []
        self._paths: SpoolPaths | None = None
        self._measured: set[tuple[m.Metric, str]] = set()
        self._evicted: WeakKeyDictionary[Sender, int] = WeakKeyDictionary()

    def start(self, paths: SpoolPaths) -> None:
        """Start the threads; call it before the first batch is written."""
        self._paths = paths
        if self._rows is not None:
            self._fixed.append(self._delivering(paths, self._rows, DATABASE))
        if self._blobs is not None:
            self._fixed.append(self._delivering(paths, self._blobs.start(paths)))
        if self._parquet is not None:
            self._fixed.append(self._parquet(paths))
        self.begin()

    def _owner_of(self, name: str) -> Any:
        """Return the ownership of a batch in the columnar tables."""
        from .owned_rows import context_of  # noqa: PLC0415 - only if it is used

        return context_of(self._owners.of(name), self._context)

    def _delivering(self, paths: SpoolPaths, target: BatchTarget, name: str = "") -> TargetSender:
        held: Any = HoldingTarget(target, self._owners)
        return TargetSender(paths, held, self._registry, name, self._max_bytes)

    def begin(self) -> None:
        """Start the exporters that are ready."""
        ready, self._ready = self._ready, []
        if self._paths is not None:
            self._running += [(identity, start(self._paths)) for identity, start in ready]

    def apply(self, options: CollectorOptions, ended: Callable[[], None]) -> None:
        """Apply new options.

        `ended` is called from another thread when all changed and removed exporters have ended;
        call `begin` then. If an exporter cannot be created, raises UsageError and changes nothing.
        """
        ready = _prepared(options, self._owners, self._registry)
        identities = [each for each, _ in ready]
        running = [each for each, _ in self._running]
        old = [sender for each, sender in self._running if each not in identities]
        self._running = [each for each in self._running if each[0] in identities]
        self._ready = [each for each in ready if each[0] not in running]
        self._context = storage_context(options.storage.context)
        if self._rows is not None:
            self._rows.context = self._context
        if self._blobs is not None:
            self._blobs.set_context(self._context)
        threading.Thread(target=_end, args=(old, ended), daemon=True).start()

    def stored(self, names: list[str]) -> None:
        """Record that batches are in the spool."""
        for sender in self._all():
            sender.stored(names)

    @property
    def are_any(self) -> bool:
        """Whether any target is configured."""
        return bool(self._fixed or self._running or self._ready)

    def lack(self, name: str) -> bool:
        """Return whether any sender has not delivered the batch yet."""
        return any(sender.lacks(name) for sender in self._all())

    def _all(self) -> list[Sender]:
        return [*self._fixed, *(sender for _, sender in self._running)]

    def finish(self, timeout: float) -> None:
        """Let all senders make a last attempt, concurrently, for `timeout` seconds."""
        deadline = time.monotonic() + timeout
        fixed = [_started(sender.finish, timeout) for sender in self._fixed]
        tries = [_started(sender.finish, timeout) for _, sender in self._running]
        if self._blobs is not None:
            tries.append(_started(self._finish_blobs, fixed, deadline))
        for each in (*fixed, *tries):
            each.join(max(deadline + _GRACE_S - time.monotonic(), 0.0))

    def _finish_blobs(self, before: list[threading.Thread], deadline: float) -> None:
        """Finish the uploads after the database: rows must exist before URIs are written."""
        for each in before:
            each.join(max(deadline - time.monotonic(), 0.0))
        if self._blobs is not None:
            self._blobs.finish(max(deadline - time.monotonic(), 0.0))

    def undelivered(self) -> dict[str, int]:
        """Return the number of undelivered batches after `finish`, for each target that has any.

        Exporters with the same name are counted together: an endpoint may have one per protocol.
        The count for `blobs` includes snapshot files that were received but not uploaded.
        """
        left: Counter[str] = Counter()
        for sender in self._all():
            left[sender.name or m.BLOBS] += sender.undelivered()
        if self._blobs is not None:
            left[m.BLOBS] += self._blobs.undelivered()
        return {name: number for name, number in left.items() if number}

    def _log_silent(self) -> None:
        """Log each target that has not answered a request for `_SILENT_S` seconds."""
        for sender in self._all():
            if (seconds := sender.unanswered_s()) >= _SILENT_S:
                logger.warning(
                    "%s has not answered for %d s: its batches wait",
                    sender.name,
                    seconds,
                    extra={"cause": f"silent {sender.name}"},
                )

    def measure(self) -> None:
        """Update the metrics that are measured rather than counted, and log silent targets."""
        self._log_silent()
        self._measured, before = set(), self._measured
        waiting: Counter[str] = Counter()
        longest: dict[str, float] = {}
        for sender in self._all():
            progress = sender.progress()
            if sender.name:
                waiting[sender.name] += progress.waiting
                longest[sender.name] = max(progress.age_s, longest.get(sender.name, 0.0))
                self._gauge(m.QUEUE_REQUESTS, waiting[sender.name], sender.name)
                self._gauge(m.LAG_SECONDS, longest[sender.name], sender.name)
                evicted = self._evicted.get(sender, 0)
                self._evicted[sender] = progress.evicted
                if new := progress.evicted - evicted:
                    self._registry.add(m.DROPPED_BATCHES, new, sender.name, "evicted")
        if self._blobs is not None:
            self._gauge(m.QUEUE_REQUESTS, self._blobs.stats()["waiting"], m.BLOBS)
        for metric, name in before - self._measured:  # of removed exporters
            self._registry.clear(metric, name)

    def _gauge(self, metric: m.Metric, value: float, name: str) -> None:
        self._registry.set(metric, value, name)
        self._measured.add((metric, name))


def _started(what: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=what, args=arguments, daemon=True)
    thread.start()
    return thread


def _end(senders: list[Sender], ended: Callable[[], None]) -> None:
    for sender in senders:
        sender.end(_END_S)
    ended()


def _prepared(
    options: CollectorOptions, owners: TenantStore, registry: Registry
) -> list[tuple[Wanted, Callable[[SpoolPaths], Sender]]]:
    """Return the exporters in the configuration, each with the function that starts it."""
    max_bytes = options.spool.max_bytes
    return [
        (
            Wanted(exporter, _files(exporter)),
            _starter(exporter, f"exporters[{number}]", owners, registry, max_bytes),
        )
        for number, exporter in enumerate(options.exporters)
    ]


def _starter(
    exporter: OtlpExporter | CirronExporter,
    path: str,
    owners: TenantStore,
    registry: Registry,
    max_bytes: int | None,
) -> Callable[[SpoolPaths], Sender]:
    if isinstance(exporter, OtlpExporter):
        config = otlp_config(exporter, path)
        return lambda paths: OtlpSender(paths, exporter, config, owners.of, registry, max_bytes)
    make = partial(_cirron, exporter, path, owners)
    make()  # raises configuration errors now
    name = name_of(exporter)

    def start(paths: SpoolPaths) -> TargetSender:
        held: Any = HoldingTarget(make(), owners)
        return TargetSender(paths, held, registry, name, max_bytes)

    return start


def _files(exporter: OtlpExporter | CirronExporter) -> tuple[bytes, ...]:
    """Hash an exporter's files: keys, headers and certificates may change under the same name."""
    hashes = []
    for path, key, value in leaves(exporter):
        if key.parser is FILE and value is not None:
            try:
                hashes.append(hashlib.sha256(value.read_bytes()).digest())
            except OSError as error:
                raise UsageError(f"{path}: {value} cannot be read: {error.strerror}") from None
    return tuple(hashes)


def storage_context(context: ContextOptions) -> Any:
    """Return the ownership of rows whose resource does not specify it."""
    from ...core.targets.sql import ownership  # noqa: PLC0415 - only if it is used

    attributes = {
        semconv.WORKSPACE_ID: context.workspace,
        semconv.RUN_ID: context.run,
        semconv.PIPELINE_ID: context.pipeline,
        semconv.DEPLOYMENT_ID: context.deployment,
        semconv.MODEL_ID: context.model,
    }
    defaults = {key: value for key, value in attributes.items() if value is not None}
    return ownership.OwnerContext(defaults)


def _cirron(exporter: CirronExporter, path: str, owners: TenantStore) -> Any:
    from .header_forwarding import ForwardingCirronTarget  # noqa: PLC0415 - only if it is used

    target = ForwardingCirronTarget(
        exporter.endpoint,
        exporter.ingest_path,
        api_key(exporter),
        SDK_VERSION,
        certificate=None if exporter.ca is None else str(exporter.ca),
        timeout=exporter.timeout_s,
        settings=cirron_settings(path),
    )
    target.pass_on(exporter.headers_from, owners.of, exporter.requests_in_flight)
    target.tenants = owners.tenants
    return target
