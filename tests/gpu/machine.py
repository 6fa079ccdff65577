"""The device that is measured, and sessions that are read afterwards."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import cirron_otel as ci
from tests.sdk.spool_trees import Node, read_spool


class CheckError(AssertionError):
    """What was shown is not what it should be."""


def expect(holds: bool, what: str) -> None:
    """Raise CheckError, saying what does not hold."""
    if not holds:
        raise CheckError(what)


@dataclass
class Machine:
    """A GPU, or, in a rehearsal, the CPU with small sizes."""

    device: str
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def size(self, on_gpu: int, rehearsed: int) -> int:
        """A size, or a number of steps."""
        return on_gpu if self.is_gpu else rehearsed

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def work(self, milliseconds: float) -> None:
        """Keep the device busy for about so long, the host not at all."""
        if self.is_gpu:
            torch.cuda._sleep(int(milliseconds * 1.5e6))

    def timed(self, function: Callable[[], Any]) -> float:
        """Milliseconds from before to after it on an idle device."""
        self.synchronize()
        start = time.perf_counter()
        function()
        self.synchronize()
        return (time.perf_counter() - start) * 1e3


@dataclass
class Traced:
    """A session, its root when it is over."""

    profiler: Any
    root: Node | None = None

    def find(self, name: str) -> list[Node]:
        """The scopes of a name, in order."""
        assert self.root is not None, "the session is not over"
        return self.root.find(name)


@contextmanager
def traced(**options: Any) -> Iterator[Traced]:
    """A session in a directory that is gone afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        profiler = ci.profile(
            **{
                "output_dir": directory, "frameworks": ["torch"], "exporters": "none",
                "join": "none", "handle_signals": False, "snapshots": None,
                "flush_interval": 0.2, **options,
            }
        )  # fmt: skip
        found = Traced(profiler)
        try:
            yield found
            errors = profiler.health()["last_errors"]
            expect(not errors, f"errors were kept from the training: {errors}")
        finally:
            ci.shutdown()
        found.root = read_spool(Path(directory)).session


def gpu_ms(node: Node) -> float | None:
    """A scope's time on the device."""
    found = node.record["gpu_ns"]
    return None if found is None else found / 1e6


def median(values: list[float]) -> float:
    """The median; CheckError where there are none."""
    expect(bool(values), "nothing was measured")
    return statistics.median(values)
