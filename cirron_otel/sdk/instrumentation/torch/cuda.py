"""CUDA, and platforms with its interface in torch (ROCm): events, graph captures, memory peaks.

Nothing here initializes CUDA. A program that trains on the CPU of a machine with a GPU, or that
forks first, must not get a CUDA context.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ....core.config.options import Config
from ...session.errors import record_error, report_problem
from ...tracing.graph_captures import captures
from ...tracing.hidden_frames import strip
from ..patches import Patches
from .clock import Clock

PHASE = "phase"
"""The value of the option `cuda_memory` that also records the peaks of phases."""
Peaks = tuple[int, int]
"""The peaks of allocated and of reserved bytes."""
Stream = tuple[int, int, int]
"""The number of a stream in torch, and the index and the type of its device."""
_MOST_STREAMS = 1_000
"""Streams whose objects are kept; then all are created again."""
PEAK = "cuda.memory_peak_bytes"
RESERVED_PEAK = "cuda.memory_reserved_peak_bytes"


class Cuda:
    """A source of events for `Clock`."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        self._event = _event_type(torch)
        self._is_initialized: Callable[[], bool] = torch.cuda.is_initialized
        self._is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._is_up = False
        self._device: Callable[[], int] = torch.cuda.current_device
        self._has_context = getattr(torch._C, "_cuda_hasPrimaryContext", _always)
        self._used: set[int] = set()
        """Devices with a context. An event on another device would create a context, which takes
        hundreds of MB."""
        captures.clear()

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
        return bool(captures) or self._is_capturing()

    def install(self, patches: Patches, wait_for_queries: Callable[[], None]) -> None:
        """Track the beginning and end of captures.

        Raises AttributeError if this torch lacks these methods.
        """
        import torch  # noqa: PLC0415

        owner = torch.cuda.CUDAGraph
        begin, end = owner.capture_begin, owner.capture_end

        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                key = id(self)
                captures[key] = weakref.ref(self, lambda _: captures.pop(key, None))
                wait_for_queries()
                try:
                    return begin(self, *args, **kwargs)
                except BaseException:
                    captures.pop(key, None)
                    raise
            except BaseException as error:
                strip(error)
                raise

        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                try:
                    return end(self, *args, **kwargs)
                finally:
                    captures.pop(id(self), None)
            except BaseException as error:
                strip(error)
                raise

        patches.replace(owner, "capture_begin", capture_begin)
        patches.replace(owner, "capture_end", capture_end)


def _event_type(torch: Any) -> Any:
    """Return the type of events, which are recorded on the current stream.

    `torch.cuda.Event.record` creates an object for that stream each time, which takes far longer
    than the recording.
    """
    found = getattr(torch._C, "_cuda_getCurrentStream", None)
    if found is None:
        return torch.cuda.Event
    current: Callable[[int], Stream] = found
    device, stream_type, streams = torch.cuda.current_device, torch.cuda.Stream, dict[Stream, Any]()

    class CurrentStreamEvent(torch.cuda.Event):  # type: ignore[misc]
        def record(self) -> None:
            key = current(device())
            stream = streams.get(key)
            if stream is None:
                if len(streams) >= _MOST_STREAMS:
                    streams.clear()
                number, of_device, kind = key
                stream = streams[key] = stream_type(
                    stream_id=number, device_index=of_device, device_type=kind
                )
            super().record(stream)

    return CurrentStreamEvent


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
            peaks = self._take()
            if peaks is not None:
                _set_peaks(step, peaks)
        except Exception as error:
            record_error("cuda memory", error)

    def _take(self) -> Peaks | None:
        """Return the peaks since the last call, and reset them; None without a device in use."""
        stats = self._cuda.memory_stats_as_nested_dict()
        if not stats or "allocated_bytes" not in stats:
            return None
        peaks = tuple(stats[name]["all"]["peak"] for name in ("allocated_bytes", "reserved_bytes"))
        self._cuda.reset_peak_memory_stats()
        return peaks[0], peaks[1]


class PhaseMemory(Memory):
    """Also records the peaks in each phase: torch's statistics are reset at its start and end.

    The peaks of a phase include those of the phases inside it, and so do the peaks of a step.
    """

    def __init__(self, cuda: Any) -> None:
        """`cuda` is `torch.cuda`."""
        self._open: dict[Any, Peaks] = {}
        """The open phases, with their peaks up to the last reset."""
        self._since_step: Peaks = 0, 0
        super().__init__(cuda)

    def begin(self, step: Any) -> None:
        """Reset the peaks at the beginning of a step."""
        self._since_step = 0, 0
        super().begin(step)

    def begin_phase(self, phase: Any) -> None:
        """Reset the peaks at the beginning of a phase."""
        try:
            for left in [each for each in self._open if each._until or each._end]:
                del self._open[left]  # it was dropped
            if self._take() is not None:
                self._open[phase] = 0, 0
        except Exception as error:
            record_error("cuda memory", error)

    def end_phase(self, phase: Any) -> None:
        """Set the peaks of a phase at its end; a group of copies may end more than once."""
        try:
            peaks = self._take()
            earlier = self._open.pop(phase, None)
            if peaks is not None:
                _set_peaks(phase, peaks if earlier is None else earlier)
        except Exception as error:
            record_error("cuda memory", error)

    def end(self, step: Any) -> None:
        """Set the peaks of a step, those of its phases included."""
        super().end(step)
        try:
            if any(self._since_step):
                _set_peaks(step, self._since_step)
            self._since_step = 0, 0
        except Exception as error:
            record_error("cuda memory", error)

    def _take(self) -> Peaks | None:
        peaks = super()._take()
        if peaks is not None:
            self._since_step = _higher(self._since_step, peaks)
            for phase in self._open:
                self._open[phase] = _higher(self._open[phase], peaks)
        return peaks


class MemoryClock(Clock):
    """A clock that also records the device's memory in the phases that it measures."""

    def __init__(self, source: Any, memory: PhaseMemory) -> None:
        """`source` is the source of events."""
        super().__init__(source)
        self._memory = memory

    def begin(self, scope: Any) -> None:
        """Mark the beginning of a phase; nothing is recorded while the device is not in use."""
        super().begin(scope)
        if scope._stamps is not None:
            self._memory.begin_phase(scope)

    def end(self, scope: Any) -> None:
        """Mark the end of a phase."""
        super().end(scope)
        self._memory.end_phase(scope)


def _higher(one: Peaks, other: Peaks) -> Peaks:
    return max(one[0], other[0]), max(one[1], other[1])


def _set_peaks(scope: Any, peaks: Peaks) -> None:
    attrs = scope.attrs
    for key, peak in zip((PEAK, RESERVED_PEAK), peaks, strict=True):
        attrs[key] = max(peak, attrs.get(key, 0))


def _always(_device: int) -> bool:
    return True


def clock_of(config: Config, memory: Memory | None = None) -> Clock | None:
    """Return the clock of this process's device; None without a device, or if it is turned off.

    It also records the device's memory by phase if `memory` does.
    """
    is_by_phase = isinstance(memory, PhaseMemory)
    if not config.cuda_timing or not has_cuda():
        if is_by_phase:
            report_problem(
                "cuda memory", "cuda_memory=phase needs cuda_timing: only steps have peaks"
            )
        return None
    return MemoryClock(Cuda(), memory) if isinstance(memory, PhaseMemory) else Clock(Cuda())


def memory_of(config: Config) -> Memory | None:
    """Return the recorder of the device's memory; None without a device, or if it is turned off."""
    import torch  # noqa: PLC0415

    if not config.cuda_memory or not has_cuda():
        return None
    return (PhaseMemory if config.cuda_memory == PHASE else Memory)(torch.cuda)


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
