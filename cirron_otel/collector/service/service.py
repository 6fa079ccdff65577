"""The collector's first process: it receives, stores and acknowledges requests.

It also starts the second process, which translates the requests, restarts it if it dies, and
reloads the configuration on SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..._version import __version__
from ...core.spool.paths import target_spool
from ...core.spool.state import make_state
from ...errors import CirronOtelError
from ..receiver.intake import Intake, IntakeLimits, SignalPolicy
from ..receiver.journal.files import intake_directory
from ..receiver.journal.writer import IntakeJournal
from . import metrics as m
from .config_file import ConfigError, Loaded
from .listeners import Listeners
from .logs import Logging
from .metrics import Registry
from .options import CollectorOptions
from .options_tree import diff, secrets_of
from .readiness import Readiness, Untranslated
from .second_process import SILENCE_S, Translator
from .systemd import ServiceManager

if TYPE_CHECKING:
    from .logs import Logging
    from .options import CollectorOptions


logger = logging.getLogger(__name__)


class Reloadable(Protocol):
    """A running collector."""

    @property
    def options(self) -> CollectorOptions:
        """The options in effect."""

    async def apply(self, options: CollectorOptions) -> None:
        """Apply new options."""


class Reloading:
    """Applies changed options to a running collector."""

    def __init__(self, collector: Reloadable, read: Callable[[], Loaded], logs: Logging) -> None:
        """`read` returns the current configuration, validated, or raises ConfigError."""
        self._collector, self._read, self._logs = collector, read, logs
        self._count = 0

    async def run(self, requested: asyncio.Event) -> None:
        """Reload each time `requested` is set, until cancelled."""
        while True:
            await requested.wait()
            requested.clear()
            self._count += 1
            try:
                await self._again()
            except ConfigError as error:
                self._refused(list(error.problems))
            except CirronOtelError as error:
                self._refused([str(error)])

    async def _again(self) -> None:
        loaded = await asyncio.to_thread(self._read)
        changes = diff(self._collector.options, loaded.options)
        self._logs.masking.hide(secrets_of(loaded.options))
        await self._collector.apply(changes.options)
        self._logs.apply(changes.options.logs)
        for warning in loaded.warnings:
            self._log(logging.WARNING, warning)
        if changes.restart:
            paths = ", ".join(changes.restart)
            self._log(logging.WARNING, f"changed, but not applied before a restart: {paths}")
        applied = ", ".join(changes.at_once) or "no other changes"
        self._log(
            logging.INFO, f"the configuration, tokens and certificates were reloaded: {applied}"
        )

    def _refused(self, problems: list[str]) -> None:
        for problem in problems:
            self._log(logging.ERROR, problem)
        self._log(logging.ERROR, "the configuration is invalid: the previous one stays in effect")

    def _log(self, level: int, message: str) -> None:
        # Include the reload's number: the same message of two reloads is not a repetition.
        logger.log(level, "%s", message, extra={"cause": f"reload {self._count} {message}"})


_WAKE_S = 0.02
"""The shortest interval between two reports of the journal's end position to the second process,
seconds."""
_LOOK_S = 0.5
"""The longest interval between two reports of the journal's end position while requests wait for
translation, seconds."""
UNDELIVERED = 7
"""The exit code if all data is in the spool, but a target has not received all of it."""
_LATE_S = 10.0
"""Once requests have waited this long to be translated, seconds, translation no longer yields the
CPU to other processes."""


class CollectorService:
    """One collector: call `start`, then `apply` on each reload, then `stop`."""

    def __init__(self, options: CollectorOptions, silence_s: float = SILENCE_S) -> None:
        """For `silence_s` see Translator."""
        self._options, self._silence_s = options, silence_s
        self.registry = Registry()
        self._paths = target_spool(options.spool.directory)
        self._is_ending = False
        self._written = asyncio.Event()
        self._pusher: Any = None
        self._untranslated = Untranslated()
        self._wake: asyncio.Task[None] | None = None
        self._journal: IntakeJournal
        self._translator: Translator
        self._listeners: Listeners | None = None

    async def start(self) -> None:
        """Listen, and start the second process. Raises UsageError and TargetError; requests
        accepted before the error stay stored.
        """
        options = self._options
        self.registry.set(m.INFO, 1, __version__)
        self.registry.set(m.START_TIME, time.time())
        self.registry.before = self._measure
        make_state(self._paths.state)
        directory = intake_directory(self._paths.state)
        self._journal = IntakeJournal(directory, max_bytes=options.limits.journal_bytes)
        self._translator = Translator(
            options, self.registry, self._untranslated.reach, self._silence_s
        )
        self._translator.on_damage = self._journal.roll
        self._readiness = Readiness(
            self._journal, options.limits.journal_bytes, lambda: self._translator.is_working
        )
        self._intake = Intake(
            self._journal,
            *_intake(options),
            on_written=self._written.set,
            is_over=lambda: self._is_ending,
        )
        if self._journal.stored_bytes:
            self._untranslated.begin(self._journal.end)
        self._translator.tell(self._journal.end, is_urgent=True)
        # Listen before the translation starts: it may have to wait for the second process of a
        # collector that was killed. An address in use is also reported immediately.
        try:
            self._listeners = Listeners(
                options, self._intake, self.registry, self._readiness, self._paths
            )
            await self._listeners.start(self._unready)
            await self._translator.start()
        except BaseException:
            await self._break_off()
            raise
        self._wake = asyncio.create_task(self._tell())
        self._pusher = self._pusher_of(options)
        if self._pusher is not None:
            self._pusher.start()

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each receiver, by its name: `grpc`, `http` or `traceml`."""
        return {} if self._listeners is None else self._listeners.addresses

    @property
    def options(self) -> CollectorOptions:
        """The options in effect."""
        return self._options

    async def apply(self, options: CollectorOptions) -> None:
        """Apply the options that a reload can change, and reread tokens and certificates.

        The collector keeps serving requests. If a file is invalid, raises UsageError and changes
        nothing, except perhaps the certificates of another receiver.
        """
        is_pushed_otherwise = options.metrics.otlp != self._options.metrics.otlp
        pusher = self._pusher_of(options) if is_pushed_otherwise else self._pusher
        assert self._listeners is not None  # noqa: S101 - set by start()
        commit = self._listeners.apply(options)
        self._options = options
        commit()
        self._intake.apply(*_intake(options))
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
        from .metrics_push import MetricsPusher  # noqa: PLC0415 - only if it is used

        return MetricsPusher(self.registry, options.metrics.otlp)

    def _unready(self) -> str:
        if self._is_ending:
            return "the collector is shutting down"
        return self._readiness.problem(self._options.limits.request_bytes)

    def _measure(self) -> None:
        """Set the gauges of this process; callable from any thread."""
        registry, journal, untranslated = self.registry, self._journal, self._untranslated
        journal.recount()
        registry.set(m.QUEUE_REQUESTS, journal.waiting, "disk")
        registry.set(m.QUEUE_REQUESTS, untranslated.requests, "translation")
        registry.set(m.QUEUE_BYTES, journal.stored_bytes, "journal")
        registry.set(m.QUEUE_BYTES, self._intake.in_flight, "in flight")
        registry.set(m.LAG_SECONDS, untranslated.age_s, "translation")

    async def _tell(self) -> None:
        """Report the journal's end position to the translation, at most once every `_WAKE_S`
        seconds.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._untranslated.is_any else None):
                    await self._written.wait()
            self._written.clear()
            self._untranslated.keep(self._journal.end, self._journal.frames)
            self._translator.tell(self._journal.end, is_urgent=self._is_urgent())
            await asyncio.sleep(_WAKE_S)

    def _is_urgent(self) -> bool:
        """Return whether the translation must not yield the CPU to other processes."""
        is_late = self._untranslated.age_s > _LATE_S
        is_short = self._readiness.is_short(self._options.limits.request_bytes)
        return is_late or is_short or self._is_ending

    async def stop(self) -> bool:
        """Stop accepting requests, then translate and deliver; return whether all requests are
        stored.
        """
        deadline = time.monotonic() + self._options.drain_s
        self._translator.tell(self._journal.end, is_urgent=True)
        await self._close(min(5.0, self._options.drain_s))
        self._translator.tell(self._journal.end, is_urgent=True)
        is_done = await self._translator.finish(max(deadline - time.monotonic(), 1.0))
        if self._pusher is not None:
            await asyncio.to_thread(self._pusher.stop)
        return is_done

    @property
    def is_undelivered(self) -> bool:
        """Whether any target had not received all batches when the collector stopped."""
        return bool(self._translator.undelivered)

    async def _break_off(self) -> None:
        """Abort the start; requests that were already accepted stay in the journal."""
        await self._close(0.0)
        await self._translator.finish(0.0)

    @property
    def has_taken(self) -> bool:
        """Whether any request was acknowledged."""
        return self._journal.frames > 0

    async def _close(self, grace_s: float) -> None:
        self._is_ending = True
        if self._listeners is not None:
            await self._listeners.stop(grace_s)
        if self._wake is not None:
            self._wake.cancel()
        await self._journal.close()


def _intake(options: CollectorOptions) -> tuple[IntakeLimits, SignalPolicy]:
    limits, signals = options.limits, options.receivers.signals
    return (
        IntakeLimits(limits.request_bytes, limits.request_elements, limits.in_flight_bytes),
        SignalPolicy(signals.logs, signals.metrics),
    )


async def run(
    options: CollectorOptions,
    announce: Callable[[dict[str, str]], None],
    read: Callable[[], Loaded],
    logs: Logging,
) -> int:
    """Run a collector until SIGTERM or SIGINT; return its exit code.

    The code is 0 if all requests are stored and delivered, 1 if not all are in the spool, and
    UNDELIVERED if a target has not received all of them.

    `announce` is called with the addresses once all receivers listen. `read` rereads the
    configuration on SIGHUP. `logs` are the logs of this process. Raises UsageError, TargetError.
    """
    end_requested, hung_up = asyncio.Event(), asyncio.Event()
    with _signals({
        signal.SIGTERM: end_requested, signal.SIGINT: end_requested, signal.SIGHUP: hung_up,
    }):  # fmt: skip
        return await _run(CollectorService(options), announce, read, logs, end_requested, hung_up)


@contextlib.contextmanager
def _signals(events: dict[signal.Signals, asyncio.Event]) -> Iterator[None]:
    """Set the event of each signal that arrives within the block; ignore these signals after it.

    The exit code is determined then. The event loop's own handlers would be removed when the loop
    is closed, and another signal would end the process with a code of its own.
    """
    loop = asyncio.get_running_loop()

    def receive(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(events[signal.Signals(number)].set)

    for number in events:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number in events:
            signal.signal(number, signal.SIG_IGN)


async def _run(
    collector: CollectorService,
    announce: Callable[[dict[str, str]], None],
    read: Callable[[], Loaded],
    logs: Logging,
    end_requested: asyncio.Event,
    hung_up: asyncio.Event,
) -> int:
    if not await _started(collector, end_requested):
        return 1 if collector.has_taken else 0
    announce(collector.addresses)
    manager = ServiceManager()
    manager.send("READY=1")
    watching = asyncio.create_task(manager.watch())
    reloading = asyncio.create_task(Reloading(collector, read, logs).run(hung_up))
    await end_requested.wait()
    reloading.cancel()
    await asyncio.wait({reloading})
    manager.send("STOPPING=1")
    logger.info("shutting down: accepted requests are stored first")
    try:
        if not await collector.stop():
            return 1
        return UNDELIVERED if collector.is_undelivered else 0
    except CirronOtelError as error:
        logger.error("%s", error)
        return 1
    finally:
        watching.cancel()


async def _started(collector: CollectorService, end_requested: asyncio.Event) -> bool:
    """Start the collector; return False if a signal ended it first."""
    starting = asyncio.create_task(collector.start())
    ending = asyncio.create_task(end_requested.wait())
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    starting.result()
    return True
