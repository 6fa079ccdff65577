"""Spools, batches and deliveries as the tests make them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cirron_otel.core.delivery.batch_target import BatchTarget
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.retry_policy import Backoff, RetryPolicy
from cirron_otel.core.spool.owner import Owner
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.cirron.batches import CirronTarget

QUICK = RetryPolicy(Backoff(first=0.01, longest=0.05), misconfigured=0.02, sweep=0.05)
KEY = "cirron_secret_0123456789"
SESSION = "5e55104000000001" + "a" * 16


def until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait until something holds; `seconds` is far more than it takes."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


class Process:
    """What a recording process is to a delivery: an owner that seals batches."""

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        self.paths = target_spool(root)
        self.owner = Owner.acquire(self.paths)
        self.writer = SpoolWriter(root, max_bytes, durable=False)
        self.numbers = itertools.count(1)
        self.sealed: list[str] = []

    def seal(self, snapshots: list[dict[str, Any]] | None = None, size: int = 0) -> str:
        """Seal a batch of one span; gives its file's name."""
        number = next(self.numbers)
        batch = batch_of(self.owner.new_batch_id(), time.time_ns(), number, snapshots, size)
        self.sealed.append(batch["batch_id"])
        return self.writer.write(json.dumps(batch, separators=(",", ":")).encode()).name

    def delivery(
        self, target: BatchTarget, policy: RetryPolicy = QUICK, **options: Any
    ) -> Delivery:
        return Delivery(self.paths, self.owner, target, policy=policy, **options)

    def snapshot(self, span: str, content: bytes, kind: str = "weights") -> dict[str, Any]:
        """Write a snapshot file, and give the record that names it."""
        path = self.paths.snapshots / span / f"{kind}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {"span_id": span, "tensor_name": "w", "blob_uri": f"file://{path}"}


def batch_of(
    batch_id: str,
    created_ns: int,
    number: int,
    snapshots: list[dict[str, Any]] | None = None,
    size: int = 0,
) -> dict[str, Any]:
    span = {
        "id": f"{number:016x}" + SESSION[16:],
        "name": "step",
        "parent_id": SESSION,
        "index": number,
        "start_ns": created_ns - 1000,
        "end_ns": created_ns,
        "cpu_ns": None,
        "gpu_ns": None,
        "memory_peak_bytes": None,
        "thread_id": 1,
        "pid": os.getpid(),
        "rank": 0,
        "attrs": {"text": "x" * size},
        "mark_ids": [],
    }
    return {
        "schema_version": 1,
        "sdk_version": "0.3.0",
        "batch_id": batch_id,
        "created_ns": created_ns,
        "spans": [span],
        "marks": [],
        "snapshots": snapshots or [],
        "otel": {"session": SESSION, "trace_id": SESSION},
    }


def cirron_target(url: str, sender: str = "test", **options: Any) -> CirronTarget:
    return CirronTarget(url, "/v1/traces", KEY, sender, **{"timeout": 20.0, **options})


CHILD = """
import sys, time
from pathlib import Path
from tests.kit.spools.deliveries import Process, cirron_target
url, root, name, count = sys.argv[1:5]
process = Process(Path(root))
delivery = process.delivery(cirron_target(url, name))
delivery.start()
for _ in range(int(count)):
    delivery.notify(process.seal())
print(*process.sealed, flush=True)
sys.stdin.readline()
print(delivery.finish(60), flush=True)
process.owner.release()
"""


def child(url: str, root: Path, name: str, count: int) -> subprocess.Popen[str]:
    """A process that seals batches and sends them; it says their ids, and finishes when told to."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, url, str(root), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
