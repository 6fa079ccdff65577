"""A plain training loop; flushed in the middle, so that marks stand apart from their spans."""

import cirron as ci

ci.mark("before_profile", 1)
ci.profile(snapshots=None)
with ci.scope("warmup"):
    pass
for epoch in ci.epochs(range(3)):
    for number, _ in enumerate(ci.batches(range(4))):
        with ci.scope("step", index=epoch * 4 + number):
            with ci.scope("forward", layer="conv1"):
                pass
            with ci.scope("backward"):
                ci.mark("grad_norm", 0.1 * number)
            ci.mark("loss", 1.0 / (epoch + 1), step=number)
        if number == 1:
            ci.mark("lr", 3e-4)
            ci.flush()
    ci.mark("accuracy", 0.5 + epoch / 10, kind="summary")
ci.mark("run", "done")
ci.shutdown()
ci.mark("after_shutdown", True)
