"""A command as a child process: its exit code is ours, and the signals that we get are its.

It runs with our stdin, stdout and stderr. With a controlling terminal it stays in our process
group, as a shell script's child does: the terminal reaches both. Without one it has a group of its
own, so that a signal that is sent to ours comes to it once, through us.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128
"""Exit codes as a shell gives them (POSIX, XCU 2.8.2)."""

_PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP,
)  # fmt: skip
_AWAITED = (*_PASSED_ON, signal.SIGCHLD)
# What Python ignores at its start, and a child is to have as it is by default (subprocess does so).
_RESTORED = [
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ") if hasattr(signal, name)
]
_BY_KERNEL = 0x80
"""`si_code` of a signal that no process sent: the terminal's (sigaction(2), SI_KERNEL)."""


class NotStartedError(Exception):
    """The command cannot be started; `code` is the exit code that a shell gives for it."""

    def __init__(self, command: str, error: OSError) -> None:
        """`error` is what starting it met."""
        self.code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
        reason = "no such command" if self.code == NOT_FOUND else error.strerror or str(error)
        super().__init__(f"{command or '(no word)'}: {reason}")


@contextlib.contextmanager
def signals_held() -> Iterator[set[signal.Signals]]:
    """Within the block the signals that a child gets wait for `Child.wait`.

    To be entered before any thread is started. Yields the signals that were held before.
    """
    # Inherited as ignored, it would have the kernel reap the child.
    chld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        yield {signal.Signals(each) for each in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if chld is not None:
            signal.signal(signal.SIGCHLD, chld)


class Child:
    """A command that runs."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], held: set[signal.Signals]
    ) -> None:
        """Start it, in `signals_held`, which gave `held`. Raises NotStartedError."""
        self._is_apart = not _has_terminal()
        options: dict[str, Any] = {"setpgroup": 0} if self._is_apart else {}
        if not command[0]:  # Python refuses it before the kernel could
            raise NotStartedError("", FileNotFoundError(errno.ENOENT, ""))
        try:
            self.pid = os.posix_spawnp(
                command[0], list(command), dict(environ), setsigmask=held, setsigdef=_RESTORED,
                **options,
            )  # fmt: skip
        except OSError as error:
            raise NotStartedError(command[0], error) from None

    def wait(self) -> int:
        """Pass signals on until it has ended; its exit code, 128 and n where signal n ended it."""
        while True:
            number, was_sent = _next_signal()
            if number == signal.SIGCHLD:
                code = self._ended()
                if code is not None:
                    return code
            elif number == signal.SIGTSTP:
                self._stop(was_sent)
            elif was_sent:
                self._send(number)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid != self.pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        # What came in the same moment was meant for both of us: it is dead.
        while signal.sigpending() & set(_AWAITED):
            signal.sigwait(_AWAITED)
        return code if code >= 0 else BY_SIGNAL - code

    def _stop(self, was_sent: bool) -> None:
        """Stop with it, and go on with it. What the terminal's group is sent, it gets itself."""
        if was_sent:
            self._send(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if was_sent or self._is_stopped():
            self._send(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        asked = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, asked) is not None

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if self._is_apart:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def _next_signal() -> tuple[int, bool]:
    """The next signal, and whether a process sent it, to us and not to the terminal's group."""
    if hasattr(signal, "sigwaitinfo"):
        found = signal.sigwaitinfo(_AWAITED)
        return found.si_signo, found.si_code != _BY_KERNEL
    number = signal.sigwait(_AWAITED)
    return number, number not in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
