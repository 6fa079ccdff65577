"""A shell's part: runs the command in the foreground of a terminal, and types at it."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

master, slave = pty.openpty()
os.setsid()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
attributes = termios.tcgetattr(slave)
attributes[3] &= ~termios.ECHO
termios.tcsetattr(slave, termios.TCSANOW, attributes)
process = subprocess.Popen(
    sys.argv[1:],
    stdin=slave,
    stdout=slave,
    process_group=0,
)
os.tcsetpgrp(slave, process.pid)
text = bytearray()


def line() -> str:
    """The next line that the command writes."""
    while b"\n" not in text:
        text.extend(os.read(master, 4096))
    found, _, rest = bytes(text).partition(b"\n")
    text[:] = rest
    return found.decode().strip()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


ready, child, group = line().split()
assert int(group) == process.pid, "it is in the group of the job"
os.write(master, b"\x03")
print(line())
os.write(master, b"\x1a")
_, status = os.waitpid(process.pid, os.WUNTRACED)
assert os.WIFSTOPPED(status)
while state(int(child)) != "T":
    time.sleep(0.01)
print("stopped, and the command too")
os.killpg(process.pid, signal.SIGCONT)
print(line())
os.kill(process.pid, signal.SIGTERM)
print(line())
os.write(master, b"\n")
print("exit code", end=" ")
counts = line()
with contextlib.suppress(ChildProcessError):
    _, status = os.waitpid(process.pid, 0)
print(os.waitstatus_to_exitcode(status), "and", counts)
