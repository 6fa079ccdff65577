"""Run a command until it ends or until our standard input closes, whatever closed it.

The tests start every backend through this script and hold the other end of its input, so that
nothing survives them, not even when they are killed. The first line of output is the pid of the
command; the exit status is the command's own (128 + N after signal N).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

GRACE_SECONDS = 5.0


def _end_with_input(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def main(command: list[str]) -> int:
    """Run the command; returns its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    status = child.wait()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
