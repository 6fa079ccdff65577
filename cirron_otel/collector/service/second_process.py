"""The collector's handle on its second process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import TargetError
from ..receiver.journal.files import Position
from . import memory
from . import metrics as m
from .metrics import Registry
from .options import CollectorOptions

logger = logging.getLogger(__name__)

_RESTART_S = (0.2, 1.0, 5.0)
_START_S = 90.0
_GRACE_S = 2.0
SILENCE_S = 60.0
"""A process that has sent no message for this long is restarted, seconds. An idle process sends one
each second."""
_SECOND_LOOK_S = 5.0
"""How long to wait for a message after that, seconds: this process may itself have been stopped."""
_LINE_BYTES = 1 << 20


_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path[:] = sys.argv[1:]
from cirron_otel.collector.service.worker import main
main()
"""
"""The receiving process decides when this one ends. A service manager sends SIGTERM to both,
perhaps while this one imports its modules."""


def command(path: Sequence[str]) -> list[str]:
    """Return the command that starts the second process with an import path.

    It must import the same modules as this process, and not those of the working directory or
    another installation.
    """
    return [sys.executable, "-P", "-c", _PROGRAM, *path]


class _SilentError(Exception):
    """The process runs, but sends no messages."""


class Translator:
    """Starts the second process, exchanges messages with it, and restarts it when it dies."""

    def __init__(
        self,
        options: CollectorOptions,
        registry: Registry,
        reached: Callable[[Position], None] = lambda _: None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`reached` is called with each new position of the translation.

        A process that sends no message for `silence_s` seconds is killed and restarted.
        """
        self._options, self._registry, self._reached = options, registry, reached
        self._silence_s = silence_s
        self._process: asyncio.subprocess.Process | None = None
        self._until: Position | None = None
        self._is_urgent = False
        self._ready = asyncio.Event()
        self._finish_by: float | None = None
        self._is_told = False
        """Whether `finish` was sent to the current process."""
        self._is_hurried = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._deaths = 0
        self.position: Position | None = None
        """The last reported position: all frames before it are in the spool."""
        self.on_damage: Callable[[int], None] = lambda _: None
        """Called with the number of a damaged segment of the journal."""
        self.is_working = False
        """Whether the process is running and ready."""
        self.trouble = ""
        """The last reported reason why the translation makes no progress."""
        self.undelivered: dict[str, int] = {}
        """The number of batches that each target had not received when the process ended; targets
        that received all are omitted."""

    async def start(self) -> None:
        """Start the process, and wait until it is ready. Raises TargetError if it fails."""
        self._watch = asyncio.create_task(self._keep())
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait(
            {waiting, self._watch}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if not self._ready.is_set():
            raise TargetError(self.trouble or "the translation does not start: see its log")

    def apply(self, options: CollectorOptions) -> None:
        """Send new options to the process; a restarted process starts with them."""
        self._options = options
        self._say({"options": base64.b64encode(pickle.dumps(options)).decode("ascii")})

    def tell(self, until: Position, *, is_urgent: bool) -> None:
        """Send the end of the journal, and whether its translation must not yield the CPU."""
        self._until, self._is_urgent = until, is_urgent
        self._say_until()

    async def finish(self, seconds: float) -> bool:
        """Let the process finish its work; return whether it did so within `seconds`.

        If `seconds` is 0, the process is killed immediately; the second process of the next
        collector does the remaining work.
        """
        self._finish_by = time.monotonic() + seconds
        self._is_hurried.set()
        self._say_finish()
        watch, self._watch = self._watch, None
        if watch is None:
            return False
        if seconds > 0:
            await asyncio.wait({watch}, timeout=seconds + _GRACE_S)
        is_done = watch.done()
        watch.cancel()
        await asyncio.wait({watch})
        process = self._process
        if process is not None:
            await process.wait()
        for name, number in self.undelivered.items():  # for the final metrics push
            self._registry.set(m.QUEUE_REQUESTS, number, name)
        return is_done and process is not None and process.returncode == 0

    def _say(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps(message).encode() + b"\n")

    def _say_until(self) -> None:
        if self._until is not None:
            self._say({"until": list(self._until), "urgent": self._is_urgent})

    def _say_finish(self) -> None:
        if self._finish_by is not None and self._process is not None:
            self._say_until()
            self._say({"finish": max(self._finish_by - time.monotonic(), 0.0)})
            self._is_told = True

    async def _keep(self) -> None:
        """Run the process, and restart it when it dies, until it has received `finish`.

        A process that was killed is always restarted. One that exits is not restarted if none has
        been ready before, because the next one would exit for the same reason.
        """
        while True:
            self._is_told = False
            reason = await self._attempt()
            self.is_working = False
            self._registry.end("translation")
            if not self._was_killed() and (self._is_told or not self._ready.is_set()):
                return
            if self._finish_by is not None and time.monotonic() >= self._finish_by:
                return
            self._deaths += 1
            logger.warning("%s: it is restarted", reason, extra={"cause": reason})
            wait = _RESTART_S[min(self._deaths, len(_RESTART_S)) - 1]
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_hurried.wait(), wait)

    def _was_killed(self) -> bool:
        process = self._process
        return process is not None and (process.returncode or 0) < 0

    async def _attempt(self) -> str:
        """Run a process until it ends, and return why it ended."""
        self._process = None
        try:
            await self._run()
        except _SilentError:
            return f"the translation has not answered for {self._silence_s:g} s"
        except OSError as error:
            # uvloop reports the lack of file descriptors as error number -1.
            why = "too few descriptors" if error.errno == -1 else error.strerror or error
            self.trouble = f"the translation cannot be started: {why}"
            return self.trouble
        except Exception as error:
            logger.exception("the messages of the translation cannot be read")
            return f"the messages of the translation cannot be read ({type(error).__name__})"
        return "the translation has died"

    async def _run(self) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            *command(sys.path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES, start_new_session=True, env={**memory.KEPT, **os.environ},
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        try:
            # The process may have ended already, which uvloop reports as a RuntimeError.
            with contextlib.suppress(ConnectionError, RuntimeError):
                process.stdin.write(pickle.dumps(self._options))
                self._say_until()
                self._say_finish()
            await self._listen(process.stdout)
            await process.wait()
        except _SilentError:
            process.kill()
            # A process that waits for a broken disk cannot even be killed. The next one then waits
            # for its lock.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE_S)
            raise
        finally:
            if process.returncode is None:
                process.kill()

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        """Receive the process's messages, and skip anything else that a library writes to the
        stream.

        Raises _SilentError if no message arrives for too long.
        """
        while True:
            try:
                line = await self._line(stream)
                if not line:
                    return
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError
            except (ValueError, RecursionError):
                logger.warning(
                    "the translation sent an invalid message", extra={"cause": "message"}
                )
            else:
                self._heard(message)

    async def _line(self, stream: asyncio.StreamReader) -> bytes:
        """Return the next line. Raises _SilentError if none arrives for too long."""
        # The start includes waiting for a predecessor, and the end has its own deadline.
        is_limited = self.is_working and self._finish_by is None
        for limit_s in (self._silence_s, _SECOND_LOOK_S) if is_limited else ():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(limit_s, self._silence_s)):
                    return await stream.readline()
        if is_limited and self._finish_by is None:
            raise _SilentError
        return await stream.readline()

    def _heard(self, message: dict[str, Any]) -> None:
        if message.get("ready"):
            self._ready.set()
            self.is_working = True
        if "failed" in message:
            self.trouble = str(message["failed"])
        if "trouble" in message:
            self.trouble = str(message["trouble"])
        if "position" in message:
            self.position, self.trouble, self._deaths = Position(*message["position"]), "", 0
            self._reached(self.position)
        if "undelivered" in message:
            self.undelivered = {str(k): int(v) for k, v in message["undelivered"].items()}
        if "damaged" in message:
            self.on_damage(int(message["damaged"]))
        if "idle" in message:
            self.trouble = ""
            if message["idle"]:
                self._reached(Position(*message["idle"]))
        if "figures" in message:
            self._registry.merge("translation", message["figures"])
