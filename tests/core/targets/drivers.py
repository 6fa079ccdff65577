"""The ways to deliver a spool: a recording process, commands, and a collector's exporters.

Each sends until nothing is left, or until `Run.cut` is set, as if the process ended there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cirron_otel.collector.receiver.tenancy import TenantHeaders
from cirron_otel.collector.service.exporter_options import OtlpExporter
from cirron_otel.collector.service.header_forwarding import ForwardingCirronTarget
from cirron_otel.collector.service.metrics import EXPORT_REJECTED_SPANS, Registry
from cirron_otel.collector.service.otlp_sender import OtlpSender
from cirron_otel.collector.service.target_sender import TargetSender
from cirron_otel.core.delivery import engine, foreground
from cirron_otel.core.delivery import follow as follow_module
from cirron_otel.core.delivery.batch_target import BatchTarget
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.delivery_stats import DeliveryStats, ExportStats
from cirron_otel.core.delivery.errors import StoppedError
from cirron_otel.core.delivery.follow import Follower
from cirron_otel.core.delivery.follow_work import FollowOptions
from cirron_otel.core.delivery.foreground import ForegroundDelivery
from cirron_otel.core.delivery.retry_policy import Backoff, RetryPolicy
from cirron_otel.core.spool.ledger import Ledger
from cirron_otel.core.targets.cirron.batches import CirronTarget
from cirron_otel.core.targets.otlp import pusher
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol, target_key
from cirron_otel.core.targets.otlp.request_limit import RequestLimit
from cirron_otel.core.targets.otlp.target import OtlpTarget
from cirron_otel.core.translator.own.encode import Options
from tests.kit.spools.deliveries import KEY, until

from .parts import Endpoint, Spool

TENANT = "x-scope-orgid"
GROUPED = 1_000_000
"""From this size of requests on, several batches share a request."""
FAST = Backoff(first=0.001, longest=0.002)
POLICY = RetryPolicy(FAST, misconfigured=0.002, sweep=0.05)
LEAST = 100
"""The smallest limit of a request in these tests, in bytes: less than a span."""


@dataclass
class Run:
    """The deliveries of one spool to one endpoint, one after the other."""

    spool: Spool
    endpoint: Endpoint
    protocol: str
    most: int
    """The limit of a request, in bytes."""
    cut: threading.Event = field(default_factory=threading.Event)
    """Ends the delivery as soon as the answer to the request in progress has arrived."""
    on_cut: Callable[[], object] = lambda: None
    deliveries: int = 0
    """How many deliveries there were, one after the other."""
    shown: int = 0
    """The rejected spans that the deliveries counted."""
    target_key: str = ""

    def end_here(self) -> None:
        """End the delivery; the endpoint calls this before it answers a request."""
        self.cut.set()
        self.on_cut()

    @property
    def config(self) -> OtlpConfig:
        return OtlpConfig(OtlpProtocol(self.protocol), self.endpoint.url, insecure=True, timeout=20)

    @property
    def platform(self) -> str:
        """The URL of the endpoint as a Cirron platform."""
        return self.endpoint.url.removesuffix("/v1/traces")

    def target(self) -> BatchTarget:
        target: BatchTarget
        if self.protocol == "cirron":
            target = CirronTarget(self.platform, "/v1/traces", KEY, "test", timeout=20)
        else:
            target = OtlpTarget(self.config, Options())
        self.target_key = target.key
        return target

    def deliver(self, driver: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch) -> None:
        """Deliver with short waits and small requests until nothing is left, or until `cut`."""
        self.cut.clear()
        self.deliveries += 1
        with monkeypatch.context() as patch:
            patch.setattr(pusher, "RequestLimit", lambda *_: RequestLimit(self.most, LEAST))
            patch.setattr(foreground, "Backoff", lambda: FAST)
            patch.setattr(follow_module, "POLL_SECONDS", 0.002)
            patch.setattr(engine, "RetryPolicy", lambda: POLICY)
            driver(self)

    def left(self) -> list[str]:
        """Return the batches that have neither been accepted nor refused."""
        ledger = Ledger(self.spool.paths, self.target_key)
        try:
            return ledger.lacking(self.spool.batches)
        finally:
            ledger.close()


def thread(run: Run) -> None:
    """A recording process."""
    target = run.target()
    delivery = Delivery(run.spool.paths, run.spool.owner, target)
    run.on_cut = target.interrupt
    with delivery._changed:
        delivery.start()
        for name in run.spool.batches:
            delivery.notify(name)
    until(lambda: run.cut.is_set() or not delivery.stats()["waiting"])
    assert delivery.finish(0.0 if run.cut.is_set() else 60.0) or run.cut.is_set()
    run.shown += delivery.stats()["rejected_spans"]


def caller(run: Run) -> None:
    """`spool flush` to the Cirron platform, and to OTLP with the same engine."""
    target = run.target()
    stats = DeliveryStats(target.shown)
    delivery = ForegroundDelivery(
        run.spool.paths, target, stats, stop=run.cut, patience=60.0, say=print
    )
    backlog = delivery.claim(run.spool.owner.prefix)
    assert backlog is not None
    delivery.take(backlog, list(run.spool.batches))
    try:
        delivery.finish()
    except StoppedError:
        assert run.cut.is_set()
    delivery.close()
    target.close()
    run.shown += stats.rejected_spans


def _follower(run: Run, stats: ExportStats) -> Follower:
    run.target_key = target_key(run.config)
    terms = FollowOptions(patience=60.0)
    root = str(run.spool.paths.root)
    return Follower(root, run.config, Options(), stats, stop=run.cut, say=print, terms=terms)


def once(run: Run) -> None:
    """`spool flush` to an OTLP endpoint."""
    stats = ExportStats(run.endpoint.url)
    try:
        _follower(run, stats).once()
    except StoppedError:
        assert run.cut.is_set()
    run.shown += stats.rejected_spans


def follow(run: Run) -> None:
    """`export --follow`."""
    stats = ExportStats(run.endpoint.url)
    follower = _follower(run, stats)
    following = threading.Thread(target=follower.run)
    following.start()
    until(lambda: run.cut.is_set() or not run.left())
    run.cut.set()
    following.join()
    run.shown += stats.rejected_spans


def collector(run: Run) -> None:
    """An exporter of a collector, with a lane for each batch unless requests hold several."""
    registry = Registry()
    sender = _cirron_sender(run, registry) if run.protocol == "cirron" else _sender(run, registry)
    until(lambda: run.cut.is_set() or not run.left())
    sender.end(0.0 if run.cut.is_set() and run.protocol == "cirron" else 60.0)
    ((_, (rejected,)),) = registry.totals()[EXPORT_REJECTED_SPANS]
    run.shown += int(rejected)


def _cirron_sender(run: Run, registry: Registry) -> TargetSender:
    target = ForwardingCirronTarget(run.platform, "/v1/traces", KEY, "test", timeout=20)
    target.pass_on([TENANT], _tenant, 8)
    run.target_key, run.on_cut = target.key, target.interrupt
    return TargetSender(run.spool.paths, target, registry, "exporter")


def _sender(run: Run, registry: Registry) -> OtlpSender:
    lanes = (TENANT,) if run.most < GROUPED else ()
    exporter = OtlpExporter(endpoint=run.endpoint.url, headers_from=lanes)
    run.target_key = target_key(run.config)
    sender = OtlpSender(run.spool.paths, exporter, run.config, _tenant, registry)
    run.on_cut = sender._stop.set
    if run.cut.is_set():
        sender._stop.set()
    return sender


def _tenant(name: str) -> TenantHeaders:
    return ((TENANT, name[-6]),)


DRIVERS = {each.__name__: each for each in (thread, caller, once, follow, collector)}
