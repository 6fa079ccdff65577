"""The collector's first process: it receives, keeps, acknowledges, and looks after the second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pickle
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from .. import __version__
from ..errors import CirronOtelError, TargetError, UsageError
from ..receiver.auth import Tokens
from ..receiver.blob_directory import DirectoryBlobs
from ..receiver.export import Answer, Exporter, RefusalError, Request
from ..receiver.intake import Intake, IntakeLimits, Signals
from ..receiver.journal import Journal
from ..receiver.journal_files import Position, intake_directory
from ..spool.paths import target_spool
from ..spool.state import make_state
from . import metrics as m
from .metrics import Registry
from .options import CollectorOptions, ServerTls

logger = logging.getLogger(__name__)

_WAKE_S = 0.02
"""So often the second process is told how far the journal is, at most."""
_RESTART_S = (0.2, 1.0, 5.0)
_START_S = 90.0


class Counted:
    """An exporter that counts what one transport brings."""

    def __init__(self, inner: Exporter, registry: Registry, transport: str) -> None:
        self._inner, self._registry, self._transport = inner, registry, transport

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
            raise
        self._registry.add(m.RECEIVED_REQUESTS, 1, *labels)
        self._registry.add(m.RECEIVED_BYTES, len(request.body), *labels)
        self._registry.observe(m.REQUEST_SECONDS, time.monotonic() - begun, *labels)
        return answer


class Translator:
    """The second process: started, told, listened to, and started again when it dies."""

    def __init__(self, options: CollectorOptions, registry: Registry) -> None:
        self._options, self._registry = options, registry
        self._process: asyncio.subprocess.Process | None = None
        self._until: Position | None = None
        self._ready = asyncio.Event()
        self._is_ending = False
        self._watch: asyncio.Task[None] | None = None
        self._deaths = 0
        self.position: Position | None = None
        """All before it is in the spool, as far as was said."""
        self.trouble = ""
        """Why it does not get on, as it said last."""

    async def start(self) -> None:
        """Start it, and wait until it works. Raises TargetError where it cannot."""
        self._watch = asyncio.create_task(self._keep())
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait(
            {waiting, self._watch}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if not self._ready.is_set():
            raise TargetError(self.trouble or "the translation does not start: see its log")

    def tell(self, until: Position) -> None:
        """How far the journal is on disk."""
        self._until = until
        self._say({"until": list(until)})

    async def finish(self, seconds: float) -> bool:
        """Let it come to its end; whether it did, in `seconds`."""
        self._is_ending = True
        if self._until is not None:
            self._say({"until": list(self._until)})
        self._say({"finish": seconds})
        process = self._process
        if process is None:
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), seconds + 2.0)
        if process.returncode is None:
            process.kill()
            await process.wait()
            return False
        if self._watch is not None:
            await self._watch
        return process.returncode == 0

    def _say(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _keep(self) -> None:
        while not self._is_ending:
            await self._run()
            if self._is_ending or not self._ready.is_set():
                return
            self._deaths += 1
            logger.warning("the translation has died: it is started again")
            await asyncio.sleep(_RESTART_S[min(self._deaths, len(_RESTART_S)) - 1])

    async def _run(self) -> None:
        program = "from cirron_otel.collector.worker import main; main()"
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=1 << 20, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        process.stdin.write(pickle.dumps(self._options))
        if self._until is not None:
            self._say({"until": list(self._until)})
        async for line in process.stdout:
            self._heard(json.loads(line))
        await process.wait()

    def _heard(self, message: dict[str, Any]) -> None:
        if message.get("ready"):
            self._ready.set()
        if "failed" in message:
            self.trouble = str(message["failed"])
        if "trouble" in message:
            self.trouble = str(message["trouble"])
        if "position" in message:
            self.position, self.trouble, self._deaths = Position(*message["position"]), "", 0
        counts = message.get("counts", {})
        self._registry.add(m.STORED_BATCHES, counts.get("batches", 0), "spool")
        self._registry.add(m.STORED_RECORDS, counts.get("spans", 0), "spool", "span")
        self._registry.add(m.DUPLICATES, counts.get("duplicates", 0), "all")
        for sender in message.get("senders", ()):
            waiting = sender.get("waiting")
            if waiting is not None:
                self._registry.set(m.QUEUE_REQUESTS, waiting, str(sender["target"]))


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
        self.addresses: dict[str, str] = {}
        """Where it listens, by `grpc` and `http`."""

    async def start(self) -> None:
        """Listen. Raises UsageError and TargetError."""
        options = self._options
        check_built(options)
        self.registry.set(m.INFO, 1, __version__)
        self.registry.set(m.START_TIME, time.time())
        make_state(self._paths.state)
        directory = intake_directory(self._paths.state)
        self._journal = Journal(directory, max_bytes=options.limits.journal_bytes)
        self._translator = Translator(options, self.registry)
        try:
            await self._translator.start()
            self._translator.tell(self._journal.end)
            limits = IntakeLimits(
                options.limits.request_bytes,
                options.limits.request_elements,
                options.limits.in_flight_bytes,
            )
            signals = Signals(options.receivers.signals.logs, options.receivers.signals.metrics)
            self._intake = Intake(
                self._journal, limits, signals, kept=self._kept.set, is_over=lambda: self._is_ending
            )
            await self._listen()
        except BaseException:
            await self.stop()
            raise
        self._wake = asyncio.create_task(self._tell())
        if options.metrics.otlp is not None:
            from .metrics_push import MetricsPusher  # noqa: PLC0415 - brings its library

            self._pusher = MetricsPusher(self.registry, options.metrics.otlp)
            self._pusher.start()

    async def _listen(self) -> None:
        receivers = self._options.receivers
        auth = None
        if receivers.auth.tokens or receivers.auth.tokens_file is not None:
            given = [token.reveal() for token in receivers.auth.tokens]
            auth = Tokens(given, receivers.auth.tokens_file)
        if receivers.grpc.address is not None:
            await self._add("grpc", self._grpc(auth))
        if receivers.http.address is not None:
            await self._add("http", self._http(auth))

    async def _add(self, name: str, receiver: Any) -> None:
        host, port = await receiver.start()
        self._receivers.append(receiver)
        self.addresses[name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _grpc(self, auth: Any) -> Any:
        from ..receiver.grpc_server import (  # noqa: PLC0415 - brings its library
            GrpcLimits,
            GrpcReceiver,
            GrpcTls,
        )

        own, address = self._options.receivers.grpc, self._options.receivers.grpc.address
        assert address is not None  # noqa: S101 - see _listen
        keepalive = own.keepalive
        return GrpcReceiver(
            Counted(self._intake, self.registry, "grpc"),
            host=address.host,
            port=address.port,
            tls=None if own.tls is None else GrpcTls(own.tls.cert, own.tls.key, own.tls.client_ca),
            auth=auth,
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

    def _http(self, auth: Any) -> Any:
        from ..receiver.http_bodies import HttpLimits  # noqa: PLC0415 - brings its library
        from ..receiver.http_server import Health, HttpReceiver  # noqa: PLC0415

        own, address = self._options.receivers.http, self._options.receivers.http.address
        assert address is not None  # noqa: S101 - see _listen
        options = self._options
        return HttpReceiver(
            Counted(self._intake, self.registry, "http"),
            host=address.host,
            port=address.port,
            tls=_context(own.tls),
            auth=auth,
            limits=HttpLimits(
                request_s=options.limits.request_seconds,
                idle_s=own.idle_s,
                connections=own.max_connections,
                upload_bytes=options.limits.upload_bytes,
            ),
            health=Health(
                ready=self._unready,
                metrics=self._metrics if options.metrics.prometheus else None,
            ),
            passed_headers=options.receivers.headers.pass_,
            blobs=DirectoryBlobs(self._paths.snapshots),
            staging=intake_directory(self._paths.state) / "parts",
        )

    def _unready(self) -> str:
        return "the collector is going down" if self._is_ending else self._translator.trouble

    def _metrics(self) -> tuple[bytes, str]:
        self.registry.set(m.QUEUE_REQUESTS, self._journal.waiting, "journal")
        self.registry.set(m.QUEUE_BYTES, self._journal.stored_bytes, "journal")
        self.registry.set(m.QUEUE_BYTES, self._intake.in_flight, "in flight")
        return self.registry.render()

    async def _tell(self) -> None:
        """Wake the translation, not for every request by itself."""
        while True:
            await self._kept.wait()
            self._kept.clear()
            self._translator.tell(self._journal.end)
            await asyncio.sleep(_WAKE_S)

    async def stop(self) -> bool:
        """Take nothing more, translate and hand on what is there; whether all of it was."""
        deadline = time.monotonic() + self._options.drain_s
        self._is_ending = True
        for receiver in self._receivers:
            await receiver.stop(min(5.0, self._options.drain_s))
        wake = getattr(self, "_wake", None)
        if wake is not None:
            wake.cancel()
        await self._journal.close()
        self._translator.tell(self._journal.end)
        is_done = await self._translator.finish(max(deadline - time.monotonic(), 1.0))
        if self._pusher is not None:
            await asyncio.to_thread(self._pusher.stop)
        return is_done


def check_built(options: CollectorOptions) -> None:
    """Raises UsageError for what can be said in a configuration and is not done yet."""
    if options.blobs.url is not None:
        raise UsageError(
            "blobs.url: snapshot files go into the spool's directory alone in this version: leave"
            " it out"
        )
    for number, exporter in enumerate(options.exporters):
        if getattr(exporter, "headers_from", ()):
            raise UsageError(
                f"exporters[{number}].headers_from: headers that came in are not sent on in this"
                " version: leave it out, or set `tenant`"
            )


def _context(tls: ServerTls | None) -> Any:
    from ..receiver.tls import server_context  # noqa: PLC0415

    return None if tls is None else server_context(tls.cert, tls.key, tls.client_ca)


async def run(options: CollectorOptions, announce: Callable[[dict[str, str]], None]) -> int:
    """Run a collector until SIGTERM or SIGINT; 0 where all that it took is stored.

    `announce` is given the addresses once all receivers listen. Raises UsageError, TargetError.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    loop.add_signal_handler(
        signal.SIGHUP,
        lambda: logger.warning("SIGHUP: the configuration is not read again: restart for that"),
    )
    collector = Collector(options)
    await collector.start()
    announce(collector.addresses)
    await told.wait()
    logger.info("going down: what was taken is stored first")
    try:
        return 0 if await collector.stop() else 1
    except CirronOtelError as error:
        logger.error("%s", error)
        return 1
