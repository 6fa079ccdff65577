"""The collector's first process: it receives, keeps, acknowledges, and looks after the second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from typing import Any

from .. import __version__
from ..errors import CirronOtelError
from ..receiver.auth import Gate, Tokens
from ..receiver.blob_directory import DirectoryBlobs
from ..receiver.export import Answer, Exporter, Reason, RefusalError, Request
from ..receiver.intake import Intake, IntakeLimits, Signals
from ..receiver.journal import Journal
from ..receiver.journal_files import intake_directory
from ..spool.paths import target_spool
from ..spool.state import make_state
from . import metrics as m
from .config_file import Loaded
from .logs import Logging
from .metrics import Registry
from .options import CollectorOptions, ServerTls
from .readiness import Readiness, Untranslated
from .reloading import Reloading
from .second_process import Translator

logger = logging.getLogger(__name__)

_WAKE_S = 0.02
"""So often the second process is told how far the journal is, at most."""
_LOOK_S = 0.5
"""While something waits, the translation is told so often how things stand."""
_LATE_S = 10.0
"""What has waited for so long waits for nobody's work."""


class Counted:
    """An exporter that counts what one transport brings."""

    def __init__(
        self, inner: Exporter, registry: Registry, transport: str, readiness: Readiness
    ) -> None:
        self._inner, self._registry, self._transport = inner, registry, transport
        self._readiness = readiness

    @property
    def max_body_bytes(self) -> int:
        """See Exporter."""
        return self._inner.max_body_bytes

    def reserve(self, size: int) -> bool:
        """See Exporter."""
        return self._inner.reserve(size)

    def release(self, size: int) -> None:
        """See Exporter."""
        self._inner.release(size)

    async def export(self, request: Request) -> Answer:
        """See Exporter."""
        labels = (self._transport, request.signal.value)
        begun = time.monotonic()
        try:
            answer = await self._inner.export(request)
        except RefusalError as error:
            self._registry.add(m.REFUSED_REQUESTS, 1, *labels, error.reason.value)
            if error.reason is Reason.UNAVAILABLE:
                self._readiness.note(is_kept=False)
            raise
        self._readiness.note(is_kept=True)
        self._registry.add(m.RECEIVED_REQUESTS, 1, *labels)
        if answer.rejected:
            self._registry.add(m.REJECTED_RECORDS, answer.rejected, *labels)
        self._registry.add(m.RECEIVED_BYTES, len(request.body), *labels)
        self._registry.observe(m.REQUEST_SECONDS, time.monotonic() - begun, *labels)
        return answer


class Collector:
    """One collector: `start`, then `serve` until it is told to end."""

    def __init__(self, options: CollectorOptions) -> None:
        self._options = options
        self.registry = Registry()
        self._paths = target_spool(options.spool.directory)
        self._is_ending = False
        self._kept = asyncio.Event()
        self._receivers: list[Any] = []
        self._pusher: Any = None
        self._gate = Gate(None)
        self._certificates: list[Callable[[], None]] = []
        """What reads the certificates of a receiver again."""
        self._untranslated = Untranslated()
        self._wake: asyncio.Task[None] | None = None
        self._journal: Journal
        self._translator: Translator
        self.addresses: dict[str, str] = {}
        """Where it listens, by `grpc` and `http`."""

    async def start(self) -> None:
        """Listen. Raises UsageError and TargetError: what was taken by then is kept."""
        options = self._options
        self.registry.set(m.INFO, 1, __version__)
        self.registry.set(m.START_TIME, time.time())
        self.registry.before = self._measure
        make_state(self._paths.state)
        directory = intake_directory(self._paths.state)
        self._journal = Journal(directory, max_bytes=options.limits.journal_bytes)
        self._translator = Translator(options, self.registry, self._untranslated.reach)
        self._translator.on_damage = self._journal.roll
        self._readiness = Readiness(
            self._journal, options.limits.journal_bytes, lambda: self._translator.is_working
        )
        self._intake = Intake(
            self._journal,
            *_intake(options),
            kept=self._kept.set,
            is_over=lambda: self._is_ending,
        )
        if self._journal.stored_bytes:
            self._untranslated.begin(self._journal.end)
        self._translator.tell(self._journal.end, is_urgent=True)
        # A collector that was killed may have left its second process: requests need not wait for
        # that to end, and an address that is taken is to be told at once.
        try:
            await self._listen()
            await self._translator.start()
        except BaseException:
            await self._break_off()
            raise
        self._wake = asyncio.create_task(self._tell())
        self._pusher = self._pusher_of(options)
        if self._pusher is not None:
            self._pusher.start()

    @property
    def options(self) -> CollectorOptions:
        """What it runs with."""
        return self._options

    async def apply(self, options: CollectorOptions) -> None:
        """Take what can be taken at once, and read tokens and certificates again.

        Requests go on meanwhile. Raises UsageError where a file is wrong; nothing is taken then,
        but for certificates of another receiver.
        """
        tokens = _tokens(options)
        is_pushed_otherwise = options.metrics.otlp != self._options.metrics.otlp
        pusher = self._pusher_of(options) if is_pushed_otherwise else self._pusher
        for reload in self._certificates:
            reload()
        self._options = options
        self._gate.tokens = tokens
        self._intake.apply(*_intake(options))
        for receiver in self._receivers:
            receiver.pass_on(options.receivers.headers.pass_)
        self._translator.apply(options)
        if pusher is not self._pusher:
            before, self._pusher = self._pusher, pusher
            if pusher is not None:
                pusher.start()
            if before is not None:
                await asyncio.to_thread(before.stop)

    def _pusher_of(self, options: CollectorOptions) -> Any:
        if options.metrics.otlp is None:
            return None
        from .metrics_push import MetricsPusher  # noqa: PLC0415 - brings its library

        return MetricsPusher(self.registry, options.metrics.otlp)

    async def _listen(self) -> None:
        receivers = self._options.receivers
        self._gate.tokens = _tokens(self._options)
        if receivers.grpc.address is not None:
            await self._add("grpc", self._grpc())
        if receivers.http.address is not None:
            await self._add("http", self._http())

    async def _add(self, name: str, receiver: Any) -> None:
        host, port = await receiver.start()
        self._receivers.append(receiver)
        self.addresses[name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _grpc(self) -> Any:
        from ..receiver.grpc_server import (  # noqa: PLC0415 - brings its library
            GrpcLimits,
            GrpcReceiver,
        )
        from ..receiver.grpc_tls import ReloadedTls  # noqa: PLC0415

        own, address = self._options.receivers.grpc, self._options.receivers.grpc.address
        assert address is not None  # noqa: S101 - see _listen
        keepalive = own.keepalive
        tls = None if own.tls is None else ReloadedTls(own.tls.cert, own.tls.key, own.tls.client_ca)
        if tls is not None:
            self._certificates.append(tls.reload)
        return GrpcReceiver(
            Counted(self._intake, self.registry, "grpc", self._readiness),
            host=address.host,
            port=address.port,
            tls=tls,
            auth=self._gate,
            limits=GrpcLimits(
                streams=own.max_concurrent_streams,
                read_timeout_s=self._options.limits.request_seconds,
                ping_interval_s=keepalive.min_time_s,
                keepalive_s=keepalive.time_s,
                connection_age_s=keepalive.max_connection_age_s,
                connection_grace_s=keepalive.max_connection_age_grace_s,
            ),
            headers=self._options.receivers.headers.pass_,
        )

    def _http(self) -> Any:
        from ..receiver.http_bodies import HttpLimits  # noqa: PLC0415 - brings its library
        from ..receiver.http_server import Health, HttpReceiver  # noqa: PLC0415

        own, address = self._options.receivers.http, self._options.receivers.http.address
        assert address is not None  # noqa: S101 - see _listen
        options = self._options
        return HttpReceiver(
            Counted(self._intake, self.registry, "http", self._readiness),
            host=address.host,
            port=address.port,
            tls=self._context(own.tls),
            auth=self._gate,
            limits=HttpLimits(
                request_s=options.limits.request_seconds,
                idle_s=own.idle_s,
                connections=own.max_connections,
                upload_bytes=options.limits.upload_bytes,
            ),
            health=Health(
                live=_alive if options.health.enabled else _untold,
                ready=self._unready if options.health.enabled else _untold,
                metrics=self.registry.render if options.metrics.prometheus else None,
            ),
            passed_headers=options.receivers.headers.pass_,
            blobs=DirectoryBlobs(self._paths.snapshots),
            staging=intake_directory(self._paths.state) / "parts",
        )

    def _context(self, tls: ServerTls | None) -> Any:
        from ..receiver.tls import add_client_ca, reload_certificate, server_context  # noqa: PLC0415

        if tls is None:
            return None
        context = server_context(tls.cert, tls.key, tls.client_ca)

        def reload() -> None:
            reload_certificate(context, tls.cert, tls.key)
            if tls.client_ca is not None:
                add_client_ca(context, tls.client_ca)

        self._certificates.append(reload)
        return context

    def _unready(self) -> str:
        if self._is_ending:
            return "the collector is going down"
        return self._readiness.problem(self._options.limits.request_bytes)

    def _measure(self) -> None:
        """Set the gauges of this process; from any thread."""
        registry, journal, untranslated = self.registry, self._journal, self._untranslated
        journal.recount()
        registry.set(m.QUEUE_REQUESTS, journal.waiting, "disk")
        registry.set(m.QUEUE_REQUESTS, untranslated.requests, "translation")
        registry.set(m.QUEUE_BYTES, journal.stored_bytes, "journal")
        registry.set(m.QUEUE_BYTES, self._intake.in_flight, "in flight")
        registry.set(m.LAG_SECONDS, untranslated.age_s, "translation")

    async def _tell(self) -> None:
        """Wake the translation, not for every request by itself."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._untranslated.is_any else None):
                    await self._kept.wait()
            self._kept.clear()
            self._untranslated.keep(self._journal.end, self._journal.frames)
            self._translator.tell(self._journal.end, is_urgent=self._is_urgent())
            await asyncio.sleep(_WAKE_S)

    def _is_urgent(self) -> bool:
        """Whether the translation is to rest for nobody."""
        is_late = self._untranslated.age_s > _LATE_S
        is_short = self._readiness.is_short(self._options.limits.request_bytes)
        return is_late or is_short or self._is_ending

    async def stop(self) -> bool:
        """Take nothing more, translate and hand on what is there; whether all of it was."""
        deadline = time.monotonic() + self._options.drain_s
        self._translator.tell(self._journal.end, is_urgent=True)
        await self._close(min(5.0, self._options.drain_s))
        self._translator.tell(self._journal.end, is_urgent=True)
        is_done = await self._translator.finish(max(deadline - time.monotonic(), 1.0))
        if self._pusher is not None:
            await asyncio.to_thread(self._pusher.stop)
        return is_done

    async def _break_off(self) -> None:
        """End at once, in the midst of the start: what was taken by then waits in the journal."""
        await self._close(0.0)
        await self._translator.finish(0.0)

    @property
    def has_taken(self) -> bool:
        """Whether requests were acknowledged."""
        return self._journal.frames > 0

    async def _close(self, grace_s: float) -> None:
        self._is_ending = True
        for receiver in self._receivers:
            await receiver.stop(grace_s)
        if self._wake is not None:
            self._wake.cancel()
        await self._journal.close()


def _alive() -> str:
    return ""


def _untold() -> str:
    from ..receiver.http_answers import HttpError  # noqa: PLC0415 - brings its library

    raise HttpError(404, "health is not told here")


def _intake(options: CollectorOptions) -> tuple[IntakeLimits, Signals]:
    limits, signals = options.limits, options.receivers.signals
    return (
        IntakeLimits(limits.request_bytes, limits.request_elements, limits.in_flight_bytes),
        Signals(signals.logs, signals.metrics),
    )


def _tokens(options: CollectorOptions) -> Tokens | None:
    auth = options.receivers.auth
    if not auth.tokens and auth.tokens_file is None:
        return None
    return Tokens([token.reveal() for token in auth.tokens], auth.tokens_file)


async def run(
    options: CollectorOptions,
    announce: Callable[[dict[str, str]], None],
    read: Callable[[], Loaded],
    logs: Logging,
) -> int:
    """Run a collector until SIGTERM or SIGINT; 0 where all that it took is stored.

    `announce` is given the addresses once all receivers listen; `read` reads the configuration
    again, for SIGHUP; `logs` are those of this process. Raises UsageError, TargetError.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    hung_up = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    collector = Collector(options)
    if not await _started(collector, told):
        return 1 if collector.has_taken else 0
    announce(collector.addresses)
    reloading = asyncio.create_task(Reloading(collector, read, logs).run(hung_up))
    await told.wait()
    reloading.cancel()
    await asyncio.wait({reloading})
    logger.info("going down: what was taken is stored first")
    try:
        return 0 if await collector.stop() else 1
    except CirronOtelError as error:
        logger.error("%s", error)
        return 1


async def _started(collector: Collector, told: asyncio.Event) -> bool:
    """Start it; False where it was told to end before it had."""
    starting = asyncio.create_task(collector.start())
    ending = asyncio.create_task(told.wait())
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    starting.result()
    return True
