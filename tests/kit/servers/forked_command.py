"""A program that lets a `CommandServer` run the command `cirron-otel`.

    python -IS forked_command.py ADDRESS COMMAND [ARGUMENT…]

The command gets this program's standard streams, directory and environment. The program passes
signals on to the command, and ends with its exit status. Commands whose own process matters, such
as one that starts a program in its process group, replace this process instead.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

_PROCESSES = {"collector", "run", "--follow"}


def _number(connection: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        more = connection.recv(8 - len(data))
        if not more:
            raise ConnectionError("the command server is gone")
        data += more
    return int.from_bytes(data)


def main() -> None:
    """Run the command, and end this process with its exit status."""
    address, *command = sys.argv[1:]
    if _PROCESSES.intersection(command):
        os.execv(command[0], command)
    passed_on = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    # The command may run before its process id is here.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    request = {"argv": command, "cwd": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(data).to_bytes(8)], [0, 1, 2])
        connection.sendall(data)
        pid = _number(connection)
        for each in passed_on:
            signal.signal(each, lambda number, _: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        code = os.waitstatus_to_exitcode(_number(connection))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
