"""A run that ends by SIGKILL: no session, an epoch whose end nobody saw."""

import os
import signal

import cirron as ci

ci.profile(snapshots=None)
for epoch in ci.epochs(range(100)):
    for _ in ci.batches(range(3)):
        with ci.scope("forward"):
            ci.mark("loss", 1.0)
    ci.mark("epoch_loss", 1.0, kind="summary")
    ci.flush()
    if epoch == 2:
        with ci.scope("never flushed"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
