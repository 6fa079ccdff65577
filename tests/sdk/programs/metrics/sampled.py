"""Is sampled for a while. Arguments: directory, options as JSON. It prints `health()`."""

from __future__ import annotations

import json
import sys
import time

import cirron_otel as ci


def main() -> None:
    directory, options = sys.argv[1], json.loads(sys.argv[2])
    samples = options.pop("samples")
    ci.profile(frameworks=[], output_dir=directory, flush_interval=0.05, **options)
    for _ in ci.batches(range(1000)):
        with ci.scope("forward"):
            time.sleep(0.02)
        ci.mark("memory", 5)
        if ci.health()["sampling"]["samples"] >= samples:
            break
    ci.shutdown()
    print(json.dumps(ci.health()))


if __name__ == "__main__":
    main()
