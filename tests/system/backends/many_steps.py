"""Steps as fast as they go: `many_steps.py STEPS`. Where they go, the environment says."""

from __future__ import annotations

import sys

import cirron_otel as ci

PHASES = ("forward", "backward", "optimizer_step")
EPOCHS = 5


def main(steps: int) -> None:
    ci.profile(frameworks=[])
    for _ in ci.epochs(range(EPOCHS)):
        for step in ci.batches(range(steps // EPOCHS)):
            for phase in PHASES:
                with ci.scope(phase):
                    pass
            if step % 100 == 0:
                ci.mark("loss", 1 / (1 + step))
    if not ci.shutdown():
        sys.exit("not all was sent")
    health = ci.health()
    if health["swallowed_errors"]:
        sys.exit(str(health["last_errors"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
