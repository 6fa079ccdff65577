"""Notifications to systemd: the start, the end, and the watchdog (sd_notify(3)).

Without the variables of systemd, nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping

_SHARE = 0.4
"""The interval between two notifications, as a share of the watchdog's time: systemd recommends
less than half of it."""


class ServiceManager:
    """Notifies the service manager that started this process, if there is one."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Read the variables from `environ`, by default those of the process."""
        variables = os.environ if environ is None else environ
        self._address = variables.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # a name without a file
            self._address = "\0" + self._address[1:]
        usec = variables.get("WATCHDOG_USEC", "")
        is_meant = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.interval_s = int(usec) / 1e6 * _SHARE if usec.isdigit() and is_meant else 0.0
        """The time between two notifications of the watchdog, seconds; 0 without a watchdog."""

    def send(self, state: str) -> None:
        """Send a state, such as `READY=1`. Errors are ignored: the state is not essential."""
        if self._address:
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notice,
            ):
                notice.sendto(state.encode(), self._address)

    async def watch(self) -> None:
        """Notify the watchdog for as long as the event loop runs, until cancelled."""
        while self.interval_s:
            self.send("WATCHDOG=1")
            await asyncio.sleep(self.interval_s)
