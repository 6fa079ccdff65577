"""A plain training loop, with marks of both kinds, a flush in the middle and a warm-up."""

import cirron as ci


def forward(value: float) -> float:
    with ci.scope("forward", layer="conv1", depth=3) as scope:
        scope.attrs["found_inside"] = scope.name
        return value * 0.5


profiler = ci.profile(frameworks=[], snapshots=None, flush_interval=0.5)
with ci.scope("warmup", iterations=2):
    forward(1.0)
for epoch in ci.epochs(range(3)):
    ci.mark("lr", 3e-4, schedule="cosine")
    for step in ci.batches([10, 20, 30]):
        with ci.scope("data_load"):
            pass
        loss = forward(step / 7)
        with ci.scope("backward", index=step):
            ci.mark("grad_norm", 0.25, layer={"name": "conv1", "shape": [3, 3]})
        with ci.scope("optimizer_step", None):
            pass
        ci.mark("loss", loss, step=step)
        ci.mark("skipped", step == 20)
    if epoch == 1:
        ci.flush()
        profiler.flush()
    ci.mark("accuracy", 0.5 + epoch / 10, kind="summary")
    ci.mark("stage", "validation", kind="summary")
ci.mark("final_loss", 0.125, kind="summary")
ci.mark("samples", 90)
ci.shutdown()
