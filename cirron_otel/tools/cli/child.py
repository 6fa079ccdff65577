"""The job that `cirron-otel run` starts: a child process, to which signals are forwarded."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128
"""The exit codes that a shell returns in these cases (POSIX, XCU 2.8.2)."""

_PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP,
)  # fmt: skip
_AWAITED = (*_PASSED_ON, signal.SIGCHLD)
# Signals that Python ignores from startup. The default handling is restored for the child, as
# `subprocess` does.
_RESTORED = [
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ") if hasattr(signal, name)
]
_BY_KERNEL = 0x80
"""`si_code` of a signal from the terminal rather than from a process (sigaction(2), SI_KERNEL)."""


class NotStartedError(Exception):
    """The command cannot be started; `code` is the exit code that a shell would return."""

    def __init__(self, command: str, error: OSError) -> None:
        """`error` is the OSError that was raised when the command was started."""
        self.code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
        reason = "no such command" if self.code == NOT_FOUND else error.strerror or str(error)
        super().__init__(f"{command or '(no word)'}: {reason}")


@contextlib.contextmanager
def signals_held() -> Iterator[set[signal.Signals]]:
    """Hold back the signals meant for a child while the block runs; `Child.wait` receives them.

    Enter it before any thread is started. Yields the signals that were blocked before.
    """
    # If SIGCHLD is inherited as ignored, the kernel reaps the child, and its exit code is lost.
    chld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        yield {signal.Signals(each) for each in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if chld is not None:
            signal.signal(signal.SIGCHLD, chld)


class Child:
    """A running command.

    It uses our stdin, stdout and stderr. With a controlling terminal, it stays in our process
    group, like the child of a shell script: the terminal signals both processes. Without a
    terminal, it has its own process group, so that a signal sent to our group reaches it once,
    forwarded by us.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], held: set[signal.Signals]
    ) -> None:
        """Start the command within `signals_held`, which yielded `held`. Raises NotStartedError."""
        self._is_apart = not _has_terminal()
        options: dict[str, Any] = {"setpgroup": 0} if self._is_apart else {}
        if not command[0]:  # Python raises ValueError for an empty name
            raise NotStartedError("", FileNotFoundError(errno.ENOENT, ""))
        try:
            self.pid = os.posix_spawnp(
                command[0], list(command), dict(environ), setsigmask=held, setsigdef=_RESTORED,
                **options,
            )  # fmt: skip
        except OSError as error:
            raise NotStartedError(command[0], error) from None

    def wait(self) -> int:
        """Forward signals until the child ends, and return its exit code.

        The code is 128 + n if signal n ended the child.
        """
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
        # Discard signals that arrived at the same time: they were meant for the child, which has
        # ended.
        while signal.sigpending() & set(_AWAITED):
            signal.sigwait(_AWAITED)
        return code if code >= 0 else BY_SIGNAL - code

    def _stop(self, was_sent: bool) -> None:
        """Stop together with the child, and continue the child when we continue.

        A signal from the terminal is not forwarded, because the terminal sends it to the child too.
        """
        if was_sent:
            self._send(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if was_sent or self._is_stopped():
            self._send(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the child has just ended
            if self._is_apart:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def _next_signal() -> tuple[int, bool]:
    """Return the next signal, and whether it was sent by a process rather than by the terminal."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_AWAITED)
        return info.si_signo, info.si_code != _BY_KERNEL
    number = signal.sigwait(_AWAITED)
    return number, number not in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
