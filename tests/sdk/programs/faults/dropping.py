"""More scopes than the buffers hold, in less time than a flush takes."""

import sys

import cirron_otel as ci

ci.profile(output_dir=sys.argv[1], frameworks="none", flush_interval=60, scope_capacity=100)
for _ in ci.batches(range(20_000)):
    pass
