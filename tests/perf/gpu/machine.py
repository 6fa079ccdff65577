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
from tests.kit.sessions.spool_trees import Node, read_spool


class CheckError(AssertionError):
    """What was shown is not what it should be."""


class Unavailable(Exception):  # noqa: N818 - it is no error
    """It cannot be shown here; the message says why."""

    def __init__(self, message: str, lacks: str = "") -> None:
        """`lacks` names what the machine does not have, where that is the reason."""
        super().__init__(message)
        self.lacks = lacks


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

    @contextmanager
    def unwaiting(self) -> Iterator[None]:
        """In it, torch raises where the host would wait for the device."""
        if self.is_gpu:
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if self.is_gpu:
                torch.cuda.set_sync_debug_mode("default")

    def race(self, function: Callable[[], Any]) -> tuple[float, float]:
        """Milliseconds until the host, which may not wait, and until the device is through."""
        self.synchronize()
        start = time.perf_counter()
        with self.unwaiting():
            function()
            host = time.perf_counter() - start
        self.synchronize()
        return host * 1e3, (time.perf_counter() - start) * 1e3


@dataclass
class Traced:
    """A session; its root, its health and its batches when it is over."""

    profiler: Any
    root: Node | None = None
    health: dict[str, Any] = field(default_factory=dict)
    unread: int = 0
    """Scopes that went out without the device's time, for it was not known by the deadline."""
    batches: list[dict[str, Any]] = field(default_factory=list)

    def find(self, name: str) -> list[Node]:
        """The scopes of a name, in order."""
        assert self.root is not None, "the session is not over"
        return self.root.find(name)


@contextmanager
def traced(*, may_be_late: bool = False, **options: Any) -> Iterator[Traced]:
    """A session in a directory that is gone afterwards; CheckError where it went wrong.

    `may_be_late` is for what holds the host up for longer than scopes wait for the device.
    """
    with tempfile.TemporaryDirectory() as directory:
        profiler = ci.profile(
            **{
                "output_dir": directory, "frameworks": ["torch"], "exporters": "none",
                "join": "none", "handle_signals": False, "snapshots": None,
                "flush_interval": 0.2, **options,
            }
        )  # fmt: skip
        found = Traced(profiler)
        instrumentation: Any = profiler.instrumentation
        clock = instrumentation.hooks["torch"].torch_state.clock
        try:
            yield found
        finally:
            is_done = ci.shutdown()
        expect(is_done, "the session was not closed in time")
        expect(clock is not None or not torch.cuda.is_available(), "there is no clock")
        found.health = profiler.health()
        errors = found.health["last_errors"]
        expect(not errors, f"errors were kept from the training: {errors}")
        found.unread = 0 if clock is None else clock.unread
        expect(may_be_late or not found.unread, f"{found.unread} scopes whose time was not read")
        spool = read_spool(Path(directory))
        found.root, found.batches = spool.session, spool.batches


def gpu_ms(node: Node) -> float | None:
    """A scope's time on the device."""
    found = node.record["gpu_ns"]
    return None if found is None else found / 1e6


def median(values: list[float]) -> float:
    """The median; CheckError where there are none."""
    expect(bool(values), "nothing was measured")
    return statistics.median(values)
