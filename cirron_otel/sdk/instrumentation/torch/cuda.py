"""CUDA, and platforms with its interface in torch (ROCm): events, graph captures, memory peaks.

Nothing here initializes CUDA. A program that trains on the CPU of a machine with a GPU, or that
forks first, must not get a CUDA context.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ....core.config.options import Config
from ...session.errors import record_error
from ..patches import Patches
from .clock import Clock

PEAK = "cuda.memory_peak_bytes"
RESERVED_PEAK = "cuda.memory_reserved_peak_bytes"


class Cuda:
    """A source of events for `Clock`."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        self._event = torch.cuda.Event
        self._is_initialized: Callable[[], bool] = torch.cuda.is_initialized
        self._is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._is_up = False
        self._device: Callable[[], int] = torch.cuda.current_device
        self._has_context = getattr(torch._C, "_cuda_hasPrimaryContext", _always)
        self._used: set[int] = set()
        """Devices with a context. An event on another device would create a context, which takes
        hundreds of MB."""
        self._captures: dict[int, Any] = {}
        """The graphs being captured, on any thread and stream, by their ids. The references are
        weak, because `capture_end` may never be called for a capture that failed."""

    def event(self) -> Any:
        """Return an event that measures time."""
        return self._event(enable_timing=True)

    def is_off(self) -> bool:
        """Return whether the current device has no context yet, or a graph is being captured."""
        if not self._is_up:
            self._is_up = self._is_initialized()
            if not self._is_up:
                return True
        device = self._device()
        if device not in self._used:
            if not self._has_context(device):
                return True
            self._used.add(device)
        return bool(self._captures) or self._is_capturing()

    def install(self, patches: Patches, wait_for_queries: Callable[[], None]) -> None:
        """Track the beginning and end of captures.

        Raises AttributeError if this torch lacks these methods.
        """
        import torch  # noqa: PLC0415

        captures = self._captures
        owner = torch.cuda.CUDAGraph
        begin, end = owner.capture_begin, owner.capture_end

        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            key = id(self)
            captures[key] = weakref.ref(self, lambda _: captures.pop(key, None))
            wait_for_queries()
            try:
                return begin(self, *args, **kwargs)
            except BaseException:
                captures.pop(key, None)
                raise

        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(self, *args, **kwargs)
            finally:
                captures.pop(id(self), None)

        patches.replace(owner, "capture_begin", capture_begin)
        patches.replace(owner, "capture_end", capture_end)


class Memory:
    """Records the allocator's peaks in each step; this resets torch's peak statistics.

    Its methods raise nothing.
    """

    def __init__(self, cuda: Any) -> None:
        """`cuda` is `torch.cuda`."""
        self._cuda = cuda
        self.begin(None)

    def begin(self, _step: Any) -> None:
        """Reset the peaks at the beginning of a step."""
        try:
            if self._cuda.is_initialized():
                self._cuda.reset_peak_memory_stats()
        except Exception as error:
            record_error("cuda memory", error)

    def end(self, step: Any) -> None:
        """Set `cuda.memory_peak_bytes` and `cuda.memory_reserved_peak_bytes` at the end of a step.

        The values are those of the current device. The method may be called again if more work
        belongs to the step. A step without a loader is recognised late, so its measurement begins
        at the end of the previous step.
        """
        try:
            stats = self._cuda.memory_stats_as_nested_dict()
            if stats and "allocated_bytes" in stats:
                attrs = step._attrs
                if attrs is None:
                    attrs = step._attrs = {}
                for key, name in ((PEAK, "allocated_bytes"), (RESERVED_PEAK, "reserved_bytes")):
                    attrs[key] = max(stats[name]["all"]["peak"], attrs.get(key, 0))
                self._cuda.reset_peak_memory_stats()
        except Exception as error:
            record_error("cuda memory", error)


def _always(_device: int) -> bool:
    return True


def clock_of(config: Config) -> Clock | None:
    """Return the clock of this process's device; None without a device, or if it is turned off."""
    return Clock(Cuda()) if config.cuda_timing and has_cuda() else None


def memory_of(config: Config) -> Memory | None:
    """Return the recorder of the device's memory; None without a device, or if it is turned off."""
    import torch  # noqa: PLC0415

    return Memory(torch.cuda) if config.cuda_memory and has_cuda() else None


def devices() -> frozenset[str]:
    """Return the device types to which copies are recorded."""
    import torch  # noqa: PLC0415

    if has_cuda():
        return frozenset({"cuda"})
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return frozenset()  # in torch 2.6, `current_accelerator` would raise
    current = accelerator.current_accelerator()
    return frozenset({current.type} - {"cpu", "cuda"})


def has_cuda() -> bool:
    """Return whether there is a GPU.

    `is_available` would initialize the driver, after which no forked child could use it;
    `device_count` queries NVML instead.
    """
    import torch  # noqa: PLC0415

    return bool(torch.cuda.device_count())
