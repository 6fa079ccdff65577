"""Explicit configuration: a `Cirron` and its methods, a config dict, and every argument."""

import os
from pathlib import Path

import cirron as ci

os.environ["CIRRON_WORKSPACE_ID"] = "from the environment"
cirron = ci.Cirron(
    output_dir="elsewhere",
    snapshots="stats",
    sample_rate=0.5,
    flush_interval=0.25,
    spool_max_bytes=10_000_000,
    workspace_id="research",
    ingest_path="/v1/traces",
    output="spool",
    trace_buffer_max_spans=100,
)
print(cirron.output_dir.rstrip("/").rsplit("/", 1)[-1], cirron.workspace_id, cirron.sample_rate)
print(cirron.flush_interval, cirron.spool_max_bytes, cirron.ingest_path, cirron.snapshots)
profiler = cirron.profile(
    {"flush_interval": 0.75, "sample_rate": 0.25}, frameworks=[], snapshots="stats", enabled=True
)
print(profiler.enabled, profiler.installed_hooks, profiler.cirron is cirron)
with cirron.scope("by the instance", 7, way="instance"):
    cirron.mark("loss", 0.5, step=1)
    with ci.scope("by the module"):
        ci.mark("loss", 0.25)
for _ in cirron.epochs(range(2)):
    for _ in cirron.batches(range(2)):
        cirron.mark("inside", 1, kind="summary")


@cirron.inference
def predict(number: int) -> int:
    return number


print(predict(5))
profiler.flush()
print(Path("elsewhere/spool").is_dir())
profiler.shutdown()
