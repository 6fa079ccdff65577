"""The batches of a training job, and a platform that goes away and comes back."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

from .cirron_server import CirronServer

SESSION = "5e55" * 8
STEPS, SPANS = 2, 6
"""A batch holds as many steps, and a step, with itself, as many spans."""
_BEGIN_NS = 1_790_000_000_000_000_000


def until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait until something holds; `seconds` is far more than it takes."""
    end = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if holds():
            return
        assert asked < end, "waited in vain"
        # An expensive question is asked less often.
        time.sleep(min(0.1, 0.02 + 4 * (time.monotonic() - asked)))


def second(number: int) -> bytes:
    """The batch of a second of a training job that makes two steps a second."""
    begin_ns = _BEGIN_NS + number * 10**9
    spans = [
        _span(number * STEPS * SPANS + each, begin_ns + each * 10**7, each % SPANS)
        for each in range(STEPS * SPANS)
    ]
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": f"{number:032x}",
        "created_ns": begin_ns + 10**9, "spans": spans, "marks": [], "snapshots": [],
        "otel": {"session": SESSION},
    }  # fmt: skip
    return json.dumps(batch, separators=(",", ":")).encode()


def _span(number: int, start_ns: int, within: int) -> dict[str, Any]:
    parent = SESSION if within == 0 else span_id(number - within)
    return {
        "id": span_id(number), "name": "forward" if within else "step", "parent_id": parent,
        "index": number, "start_ns": start_ns, "end_ns": start_ns + 10**6, "cpu_ns": 5,
        "gpu_ns": None, "memory_peak_bytes": None, "thread_id": 1, "pid": 1, "rank": 0,
        "attrs": {"layer": "conv1"}, "mark_ids": [],
    }  # fmt: skip


def span_id(number: int) -> str:
    """The id of the span of that number, counted from the first second on."""
    return f"{number + 1:016x}{SESSION[16:]}"


def post(http: str, bodies: list[bytes], threads: int = 4) -> None:
    """Post batches as so many processes would, each on one connection; all are acknowledged."""

    def some(share: list[bytes]) -> None:
        with contextlib.closing(HTTPConnection(http.removeprefix("http://"), timeout=60)) as to:
            for body in share:
                to.request("POST", "/v1/traces", body, {"Content-Type": "application/json"})
                answer = to.getresponse()
                assert (answer.status, bool(answer.read())) == (202, True)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, [bodies[each::threads] for each in range(threads)]))


class Platform:
    """The Cirron platform in a process of its own, which says what it took."""

    def __init__(self, endpoint: str) -> None:
        program = f"from tests.kit.servers.away import serve; serve({endpoint.split(':')[1]})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._said() == "listening"

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def count(self) -> int:
        """How many batches it has taken."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._said())

    def stop(self) -> list[str]:
        """The ids of the batches that it took, each as often as it came."""
        told, _ = self._process.communicate(timeout=60)
        found: list[str] = json.loads(told)
        return found

    def kill(self) -> None:
        """End it, whether it has ended or not."""
        self._process.kill()
        self._process.communicate()


def serve(port: int) -> None:
    """The program of Platform."""
    server = CirronServer()
    with server.running(port):
        print("listening", flush=True)
        for _ in sys.stdin:
            print(len(server.accepted), flush=True)
    print(json.dumps(server.accepted), flush=True)
