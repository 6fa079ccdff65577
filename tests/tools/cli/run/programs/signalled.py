"""Counts the signals that it gets, until it is told to end by SIGTERM, or by its stdin."""

import os
import signal
import sys

counts = {"SIGINT": 0, "SIGTERM": 0, "SIGUSR1": 0, "SIGCONT": 0}


def count(number: int, _: object) -> None:
    name = signal.Signals(number).name
    counts[name] += 1
    os.write(1, f"{name}\n".encode())


# `signal.pause` would sleep through a signal that comes just before it.
awake, wakeup = os.pipe()
os.set_blocking(wakeup, False)
signal.set_wakeup_fd(wakeup)
for each in counts:
    signal.signal(getattr(signal, each), count)
os.write(1, f"ready {os.getpid()} {os.getpgid(0)}\n".encode())
while not counts["SIGTERM"]:
    os.read(awake, 1)
# What was sent twice has come by the time that this was asked for.
sys.stdin.readline()
print("counts", *counts.values(), flush=True)
sys.exit(5)
