"""CUDA, and what has its interface in torch (ROCm): events, graph captures, the allocator's peaks.

Nothing here brings CUDA up: a program that trains on the CPU of a machine with a GPU, or that
forks first, is not to have a context made for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...config import Config
from ...sdk.errors import record_error
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
        """Devices with a context: an event on another one would make it, for hundreds of MB."""
        self._captures: dict[int, Any] = {}
        """Graphs that are being captured, on any thread and stream, by their ids: weak references,
        for a capture that failed may have no end."""

    def event(self) -> Any:
        """An event that measures time."""
        return self._event(enable_timing=True)

    def is_off(self) -> bool:
        """Whether the current device has no context yet, or a graph is captured."""
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

    def install(self, patches: Patches, quiet: Callable[[], None]) -> None:
        """Follow the beginning and end of captures.

        Raises AttributeError where torch has no such methods any more.
        """
        import torch  # noqa: PLC0415

        captures = self._captures
        owner = torch.cuda.CUDAGraph
        begin, end = owner.capture_begin, owner.capture_end

        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            key = id(self)
            captures[key] = weakref.ref(self, lambda _: captures.pop(key, None))
            quiet()
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
    """The allocator's peaks of a step. It resets the peak statistics that torch keeps.

    Its methods raise nothing.
    """

    def __init__(self, cuda: Any) -> None:
        """`cuda` is `torch.cuda`."""
        self._cuda = cuda
        self.begin(None)

    def begin(self, _step: Any) -> None:
        """A step begins."""
        try:
            if self._cuda.is_initialized():
                self._cuda.reset_peak_memory_stats()
        except Exception as error:
            record_error("cuda memory", error)

    def end(self, step: Any) -> None:
        """It ends: `cuda.memory_peak_bytes` and `cuda.memory_reserved_peak_bytes`, of the device
        that is current; again, where more belongs to it. A step without a loader, which is known
        late, begins where the one before ended.
        """
        try:
            found = self._cuda.memory_stats_as_nested_dict()
            if found and "allocated_bytes" in found:
                attrs = step._attrs
                if attrs is None:
                    attrs = step._attrs = {}
                for key, name in ((PEAK, "allocated_bytes"), (RESERVED_PEAK, "reserved_bytes")):
                    attrs[key] = max(found[name]["all"]["peak"], attrs.get(key, 0))
                self._cuda.reset_peak_memory_stats()
        except Exception as error:
            record_error("cuda memory", error)


def _always(_device: int) -> bool:
    return True


def clock_of(config: Config) -> Clock | None:
    """The clock of this process's device; None where there is none, or it is not wanted."""
    return Clock(Cuda()) if config.cuda_timing and has_cuda() else None


def memory_of(config: Config) -> Memory | None:
    """What reads the device's memory; None where there is none, or it is not wanted."""
    import torch  # noqa: PLC0415

    return Memory(torch.cuda) if config.cuda_memory and has_cuda() else None


def devices() -> frozenset[str]:
    """Types of the devices that data are copied to."""
    import torch  # noqa: PLC0415

    if has_cuda():
        return frozenset({"cuda"})
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return frozenset()  # asking torch 2.6 which one it is would raise
    found = accelerator.current_accelerator()
    return frozenset({found.type} - {"cpu", "cuda"})


def has_cuda() -> bool:
    """Whether there is a GPU. `is_available` would initialise the driver, after which no forked
    child can use it; counting asks NVML.
    """
    import torch  # noqa: PLC0415

    return bool(torch.cuda.device_count())
