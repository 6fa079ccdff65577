"""More marks on one span than a span may carry as events."""

import cirron as ci

ci.profile(snapshots=None)
with ci.scope("step", index=0):
    for number in range(2500):
        ci.mark("loss", number / 7, step=number)
ci.shutdown()
