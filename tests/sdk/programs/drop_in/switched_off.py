"""`enabled=False`: everything may be called, nothing is recorded."""

from pathlib import Path

import cirron as ci

profiler = ci.profile(enabled=False)
print(profiler.enabled, profiler.installed_hooks)
for epoch in ci.epochs(range(2)):
    for step in ci.batches(range(2)):
        with ci.scope("forward"):
            ci.mark("loss", 0.5)
            print(epoch, step)


@ci.inference
def predict(number: int) -> int:
    return number


print(predict(1))
profiler.flush()
profiler.shutdown()
ci.flush()
ci.shutdown()
print(Path(".cirron/spool").exists())
