"""Records steps and marks. Arguments: directory, options of `profile()` as JSON.

`fork` among the options: a child does the same, with a session of its own. `told`: a file that is
waited for before the end. It prints `health()`,
whether `shutdown` was content, and which modules of OpenTelemetry's metrics were imported.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from opentelemetry import metrics, trace

import cirron_otel as ci

OF_METRICS = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp")


def train(epochs: int, steps: int) -> None:
    for epoch in ci.epochs(range(epochs)):
        for step in ci.batches(range(steps)):
            trace.get_current_span().set_attribute("samples", 8)
            for name in ("data_load", "forward", "loss"):
                with ci.scope(name), ci.scope("inside"):
                    pass
            ci.mark("Train Loss", 1 / (1 + step))
            ci.mark("step", step)
            ci.mark("diverged", math.nan)
            ci.mark("epoch_loss", 0.5, kind="summary")
        with ci.scope("eval"), ci.scope("forward"):
            ci.mark("accuracy", 0.1 * epoch)
        ci.flush()


def forked(epochs: int) -> int:
    pid = os.fork()
    if not pid:
        code = 9
        try:
            train(epochs, 3)
            code = 0 if ci.shutdown() else 1
        finally:
            os._exit(code)
    return pid


def main() -> None:
    directory, options = sys.argv[1], json.loads(sys.argv[2])
    is_forking, timeout = options.pop("fork", False), options.pop("timeout", None)
    told = options.pop("told", None)
    ci.profile(frameworks=[], output_dir=directory, flush_interval=0.02, **options)
    said: dict[str, Any] = {"session": ci.health()["session_id"]}
    before = set(sys.modules)
    train(2, 10)
    if is_forking:
        for epochs in (1, 2):
            _, status = os.waitpid(forked(epochs), 0)
            if status:
                sys.exit(f"the child left with status {status}")
        train(1, 10)
    while told is not None and not Path(told).exists():
        time.sleep(0.01)
    said["done"] = ci.shutdown(timeout)
    said["health"] = ci.health()
    said["late"] = sorted(name for name in set(sys.modules) - before if "opentelemetry" in name)
    said["global"] = type(metrics.get_meter_provider()).__name__
    said["modules"] = sorted(name for name in sys.modules if name.startswith(OF_METRICS))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
