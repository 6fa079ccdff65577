"""The collector's second process, which translates the intake journal and delivers the batches.

It receives on its standard input the options, pickled, followed by lines of JSON:

- `{"until": [segment, offset], "urgent": …}`: the end of the acknowledged frames in the journal,
  and whether the translation must not yield the CPU
- `{"options": …}`: new options, pickled, in base64
- `{"finish": seconds}`: finish the work within this time, and end

The end of the input means that the receiving process is gone; this process then ends after its
current step. It reports its position, its idleness and its counts as lines of JSON on its standard
output. `{"idle": [segment, offset]}` means that all frames before that position are in the spool;
the value is null if `until` is not known yet. `{"alive": true}` is sent while it uses the CPU: the
receiving process restarts a process that is silent.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import logging
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

from ...core.spool.blobs import BlobKey, tenant_key
from ...core.spool.dead_letters import dead_letter_names
from ...core.spool.eviction import CollectorFiles
from ...core.spool.paths import batch_names, target_spool
from ...core.spool.state import has_name, lock_named, make_state
from ...core.spool.writer import SpoolWriter
from ...errors import CirronOtelError, InputError, TargetError
from ..receiver.journal.files import GROUP_BYTES, PARTS, Position, intake_directory
from ..receiver.seen import Seen
from ..receiver.tenancy import FILE_NAME, TenantStore, tenant_of
from ..receiver.translation import Done, Translation
from . import clock_guard
from . import metrics as m
from .cpu_yield import Yielding
from .delivery_counters import SpoolCounts, folder_bytes
from .logs import Logging
from .memory import Trimmer
from .metrics import Registry
from .options_tree import secrets_of
from .retention import Retention, TableUpkeep

if TYPE_CHECKING:
    from .options import CollectorOptions

logger = logging.getLogger(__name__)

_LINGER_S = 0.1
"""The pause after a small group, seconds, so that more requests share the next batch: each batch
takes a file."""
_TROUBLE_S = (0.1, 0.2, 0.5, 1.0)
"""Delays between attempts, seconds. The first are short, since space may become free at any
moment."""
_IDLE_S = 1.0
_PREDECESSOR_S = 60.0
_FORGET_EVERY_S = 600.0
_DAMAGED_SHARE = 8
"""Copies of damaged files may take 1/8 of the limit of the journal."""
_SIGN_S = 5.0
"""The interval between signs of life during a long step, seconds."""
_DISTRUST_S = 60.0
"""Seconds until the clock is checked again after it could not be trusted."""


class Worker:
    """The work of the second process."""

    def __init__(self, options: CollectorOptions, logs: Logging) -> None:
        """Become the only consumer of the journal.

        Raises TargetError if another process is still its consumer, and the errors of Senders.
        """
        from .senders import Senders  # noqa: PLC0415 - imports optional libraries

        self._options, self._logs = options, logs
        self._paths = target_spool(options.spool.directory)
        make_state(self._paths.state)
        directory = intake_directory(self._paths.state)
        self._lock_path = directory / "consumer.lock"
        self._lock = _consumer_lock(self._lock_path)
        self._writer = SpoolWriter(
            options.spool.directory,
            options.spool.max_bytes,
            is_wanted=self._is_wanted,
            beside=CollectorFiles(self._file_of, lambda: folder_bytes(directory / PARTS)),
        )
        self._evicted = 0
        seen = Seen(directory / "seen.sqlite")
        self._owners = TenantStore(self._paths.state / FILE_NAME, self._present)
        self._translation = Translation(
            directory,
            self._writer,
            seen,
            self._owners,
            options.limits.journal_bytes // _DAMAGED_SHARE,
        )
        self._registry = Registry()
        self._counted = SpoolCounts(self._registry, self._paths, directory / PARTS)
        self._senders = Senders(options, self._owners, self._registry)
        self._inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._until: Position | None = None
        self._is_urgent = False
        self._finish_by: float | None = None
        self._forget_at = 0.0
        self._clock = clock_guard.ClockGuard(self._paths.state / clock_guard.FILE_NAME)
        self._retention = Retention()
        self._upkeep = TableUpkeep(options)
        self._yielding = Yielding()
        self._trimmer = Trimmer()
        self._troubles = 0
        """The number of consecutive failed attempts."""
        self._is_alone = threading.Event()
        self._is_ending = False

    def tell(self, message: dict[str, Any]) -> None:
        """Queue a message from the standard input; callable from any thread."""
        self._inbox.put(message)

    def leave(self) -> None:
        """End the process, because the receiving process is gone; called from any thread.

        The next collector waits for this process to end, and does the remaining work.
        """
        self._is_alone.set()
        self._inbox.put({})
        if self._is_ending:
            os._exit(1)

    def run(self) -> bool:
        """Work until `finish`; return whether all acknowledged requests are in the spool."""
        self._senders.start(self._paths)
        worked = self._attempt(self._recovered)
        while not self._is_alone.is_set() and self._is_there():
            self._listen(0.0 if worked or self._finish_by is not None else _IDLE_S)
            worked = self._attempt(self._work)
            self._tell_damage()
            self._trimmer.trim()
            if self._finish_by is not None and not worked:
                self._end()
                return not self._troubles
            if worked:
                self._yielding.rest(self._is_hurried)
        return False

    # --- the journal ----------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Process the queued messages; wait up to `seconds` for the first message."""
        with contextlib.suppress(Empty):
            message = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
            while True:
                if "until" in message:
                    self._until = Position(*message["until"])
                    self._is_urgent = bool(message.get("urgent"))
                if "finish" in message:
                    self._finish_by = time.monotonic() + float(message["finish"])
                if "options" in message:
                    self._apply(pickle.loads(base64.b64decode(message["options"])))  # noqa: S301
                if "begin" in message:
                    self._attempt(self._senders.begin)
                message = self._inbox.get_nowait()

    def _apply(self, options: CollectorOptions) -> None:
        """Apply the options that a reload can change; unchanged exporters keep running."""
        self._options = options
        self._logs.masking.hide(secrets_of(options))
        self._logs.apply(options.logs)
        try:
            self._senders.apply(options, lambda: self.tell({"begin": True}))
        except CirronOtelError as error:
            logger.error("the exporters are unchanged: %s", error, extra={"cause": str(error)})

    def _is_there(self) -> bool:
        """Return whether the journal's directory still exists.

        If it has been removed, the open files no longer have names, and a new process must start.
        """
        if has_name(self._lock, self._lock_path):
            return True
        message = f"{self._lock_path.parent} was removed or moved"
        logger.error("%s", message, extra={"cause": "gone"})
        say({"trouble": message})
        return False

    def _tell_damage(self) -> None:
        """Report a damaged segment, so that the writer stops appending to it."""
        number = self._translation.take_damaged()
        if number is not None:
            say({"damaged": number})

    def _recovered(self) -> bool:
        done = self._translation.recover()
        if done is not None:
            self._done(done)
        return False

    def _work(self) -> bool:
        # Until the first `until` arrives, frames may be incomplete: do not read them.
        done = self._translation.work(self._until) if self._until is not None else None
        if done is None:
            self._forget()
            return False
        self._done(done)
        return True

    def _attempt(self, what: Any) -> bool:
        """Call `what`, and return whether it did any work; after a failure the caller retries."""
        try:
            worked = bool(what())
        except CirronOtelError as error:
            self._troubles += 1
            logger.warning("%s", error, extra={"fields": {"cause": "spool"}, "cause": "spool"})
            say({"trouble": str(error)})
            if self._finish_by is not None and time.monotonic() > self._finish_by:
                return False
            time.sleep(_TROUBLE_S[min(self._troubles, len(_TROUBLE_S)) - 1])
            return self._finish_by is not None
        self._troubles = 0
        return worked

    def _tell_evicted(self) -> None:
        """Log new evictions. If there is no target, this is a warning, because the data is lost."""
        evicted = self._writer.drops.batches
        if evicted > self._evicted:
            level = logging.INFO if self._senders.are_any else logging.WARNING
            message = "the spool is at its cap of %d bytes: %d of its oldest batches were evicted"
            new, self._evicted = evicted - self._evicted, evicted
            logger.log(
                level, message, self._options.spool.max_bytes, new, extra={"cause": "evicted"}
            )

    def _is_wanted(self, name: str) -> bool:
        return self._senders.lack(name)

    def _file_of(self, name: str, key: BlobKey) -> BlobKey:
        # A batch of an unknown tenant keeps its files.
        return (
            key if self._owners.is_held(name) else tenant_key(key, tenant_of(self._owners.of(name)))
        )

    def _present(self) -> list[str]:
        """Return the batches in the spool, and those that are dead letters."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names += batch_names(self._paths.spool)
        with contextlib.suppress(InputError):
            names += dead_letter_names(self._paths)
        return names

    def _done(self, done: Done) -> None:
        self._senders.stored(done.names)
        self._counted.stored(done.names)
        self._tell_evicted()
        say({"position": list(done.position), **self._figures()})
        if done.size < GROUP_BYTES // 4 and self._finish_by is None:
            time.sleep(_LINGER_S)

    def _is_hurried(self) -> bool:
        """Return whether the next step must not be delayed."""
        self._listen(0.0)
        return self._is_urgent or self._finish_by is not None or self._is_alone.is_set()

    def _figures(self) -> dict[str, Any]:
        self._clock.look()
        self._counted.count(self._translation.take_counts(), self._writer.drops)
        self._senders.measure()
        return {"figures": self._registry.figures()}

    def _forget(self) -> None:
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_EVERY_S
            with contextlib.suppress(FileNotFoundError, InputError):
                dead_letters = dead_letter_names(self._paths)
                self._owners.retain([*batch_names(self._paths.spool), *dead_letters])
            is_trusted = self._clock.is_trusted()
            self._upkeep.start(self._options.parquet, is_clock_trusted=is_trusted)
            if is_trusted:
                window_ns = int(self._options.dedup.hours * 3600e9)
                self._translation.forget(time.time_ns() - window_ns)
                self._retention.start(self._options.storage)
            else:
                self._forget_at = now + _DISTRUST_S
                if self._clock.has_jumped:
                    logger.warning("the clock was changed: deletion by age pauses for an hour")
        say({"idle": self._until and list(self._until), **self._figures()})

    def _end(self) -> None:
        self._is_ending = True
        if self._is_alone.is_set():
            return
        left = max((self._finish_by or 0.0) - time.monotonic(), 0.0)
        self._senders.finish(left)
        undelivered = self._senders.undelivered()
        self._tell_undelivered(undelivered)
        say({"undelivered": undelivered, **self._figures()})
        self._translation.close()
        self._owners.close()
        os.close(self._lock)

    def _tell_undelivered(self, undelivered: dict[str, int]) -> None:
        for name, number in undelivered.items():
            logger.warning(
                "%d %s are not delivered to %s: they stay in %s and are sent after the next start",
                number,
                "snapshot files" if name == m.BLOBS else "batches",
                name,
                self._paths.root,
                extra={"cause": f"undelivered {name}"},
            )


def _consumer_lock(path: Path) -> int:
    """Return the lock of the journal's consumer, held until this process ends.

    The second process of a killed collector may still hold it, so wait for that process to end.
    """
    make_state(path.parent)
    deadline = time.monotonic() + _PREDECESSOR_S
    while (lock := lock_named(path)) is None:
        if time.monotonic() > deadline:
            raise TargetError(f"{path} is locked: another collector translates this journal")
        time.sleep(0.05)
    return lock


_writing = threading.Lock()


def say(message: dict[str, Any]) -> None:
    """Send a message to the receiving process, if it still exists; from any thread."""
    with contextlib.suppress(OSError), _writing:
        os.write(1, json.dumps(message).encode() + b"\n")


def _show_progress(thread: int) -> None:
    """Send a sign of life regularly, if a thread has used the CPU since the last one.

    A large request on a busy machine may take more than a minute. A thread that waits for a lock or
    for a broken disk uses no CPU.
    """
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return
    clock = time.pthread_getcpuclockid(thread)

    def watch() -> None:
        used_ns = 0
        while True:
            before, used_ns = used_ns, time.clock_gettime_ns(clock)
            if used_ns != before:
                say({"alive": True})
            time.sleep(_SIGN_S)

    threading.Thread(target=watch, daemon=True).start()


def listen(worker: Worker, source: BinaryIO) -> None:
    """Pass messages to the worker until the input ends."""
    for line in source:
        worker.tell(json.loads(line))
    worker.leave()


def main() -> None:
    """Run the second process."""
    source = sys.stdin.buffer
    options: CollectorOptions = pickle.load(source)  # noqa: S301 - our parent wrote it
    with Logging(options.logs, secrets_of(options)) as logs:
        try:
            worker = Worker(options, logs)
        except CirronOtelError as error:
            say({"failed": str(error)})
            sys.exit(1)
        gc.collect()
        gc.freeze()  # modules stay: the search for garbage would go through them for each group
        say({"ready": True})
        threading.Thread(target=listen, args=(worker, source), daemon=True).start()
        _show_progress(threading.get_ident())
        is_done = worker.run()
    os._exit(0 if is_done else 1)  # the listening thread may still be blocked


if __name__ == "__main__":
    main()
