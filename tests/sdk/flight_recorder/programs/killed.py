"""Takes memory in a step until the kernel ends the process; `gentle` asks for little, and waits."""

from __future__ import annotations

import sys
import time

import cirron_otel as ci

MIB = 1 << 20


def main() -> None:
    with ci.scope("epoch", 0), ci.scope("step", 3):
        ci.flush()
        print("ready", flush=True)
        if "gentle" in sys.argv:
            time.sleep(600)
        taken = []
        while True:
            taken.append(bytearray(8 * MIB))


if "run" not in sys.argv:
    ci.profile(output_dir=sys.argv[1], flush_interval=0.05)
main()
