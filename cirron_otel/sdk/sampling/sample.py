"""One sample: reads memory, CPU and GPU, and returns the marks to make.

A reader that fails is not called again until its pause is over, and its values are absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import semconv as sc
from ..tracing.graph_captures import is_capturing
from ..tracing.mark import SampleAttributes
from . import device_readers as dev
from . import host_readers as host
from .alerts import AlertState
from .nvml import Nvml, is_installed
from .reader_state import ReaderState

SampledMark = tuple[str, Any, SampleAttributes]
"""Name, value, attributes."""


@dataclass(slots=True)
class _Device:
    """The readings of one device in one sample."""

    backend: str
    number: int
    allocated: int | None = None
    values: dict[str, int] = field(default_factory=dict)
    gauges: list[tuple[str, float]] = field(default_factory=list)


class SampleReader:
    """Takes samples; used only by the sampler's thread."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        torch: Callable[[], Any] = dev.imported_torch,
        is_capturing: Callable[[], bool] = is_capturing,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open no device yet.

        `proc` is the mount point of procfs. `torch` returns the imported torch, or None.
        `is_capturing` returns whether a CUDA graph is being captured.
        """
        self._torch_of, self._is_capturing, self._seconds = torch, is_capturing, seconds
        self._torch: Any = None
        self._allocators: list[dev.Allocator] = []
        makers = {
            "process": host.process_reader, "host": host.host_reader, "cgroup": host.cgroup_reader,
        }  # fmt: skip
        readers = {name: make(proc) for name, make in makers.items()}
        self._host = {name: read for name, read in readers.items() if read is not None}
        self._cpu = host.CpuReader()
        self._nvml: Nvml | None = None
        self._has_nvml: bool | None = None
        self.states: dict[str, ReaderState] = {}
        """The states of the readers that have failed, by name."""
        self._alerts: dict[str, AlertState] = {}
        self._notices: list[SampledMark] = []
        self.failures = 0
        """The number of failed readings so far."""

    def take(self) -> list[SampledMark]:
        """Return the marks of one sample. Raises nothing that a reader raises."""
        self._notices = []
        # The allocators come first, because the scope of the sample was determined just now.
        devices = self._devices()
        common: dict[str, int] = {}
        for name, read in self._host.items():
            common |= self._read(name, read) or {}
        marks = self._memory(devices, common)
        marks += self._alerts_of(devices, common)
        cpu = self._read("cpu", self._cpu.read)
        if cpu is not None:
            marks.append((sc.CPU_UTILIZATION, cpu, SampleAttributes()))
        for device in devices:
            attributes = {sc.HW_ID: f"{device.backend}:{device.number}"}
            marks += [(n, value, SampleAttributes(attributes)) for n, value in device.gauges]
        return marks + self._notices

    def close(self) -> None:
        """Release NVML."""
        if self._nvml is not None:
            self._nvml.close()

    # --- readers --------------------------------------------------------------------------------

    def _read(self, name: str, read: Callable[[], Any]) -> Any:
        """Call a reader if it is due; return its result, None if it fails or is not due."""
        state = self.states.get(name)
        if state is not None and not state.is_due(self._seconds()):
            return None
        try:
            result = read()
        except Exception as error:
            self._failed(name, error)
            return None
        if state is not None and state.failures:
            lasted = self._seconds() - state.since
            attributes = SampleAttributes(
                failures=state.succeeded(), degraded_ns=round(lasted * 1e9)
            )
            self._notices.append((sc.MEMORY_RECOVERED, name, attributes))
        return result

    def _failed(self, name: str, error: Exception) -> None:
        self.failures += 1
        state = self.states.setdefault(name, ReaderState())
        if state.failed(self._seconds()):
            text = f"{type(error).__name__}: {error}"[:256]
            self._notices.append((sc.MEMORY_DEGRADED, name, SampleAttributes(error=text)))

    def _devices(self) -> list[_Device]:
        if self._torch is None and not self._read("torch", self._find_torch):
            return []
        devices = []
        for allocator in self._allocators:
            backend = allocator.backend
            found = self._read(f"{backend} allocator", allocator.read) or {}
            for number in sorted(found.keys() | allocator.used):
                allocated, values = found.get(number, (None, {}))
                device = _Device(backend, number, allocated, values)
                self._read_device(allocator, device)
                devices.append(device)
        return devices

    def _find_torch(self) -> bool:
        """Find the allocators; return whether the program has imported torch."""
        torch = self._torch_of()
        if torch is not None:
            self._allocators = list(dev.allocators(torch))
            self._torch = torch
        return torch is not None

    def _read_device(self, allocator: dev.Allocator, device: _Device) -> None:
        number, name = device.number, f"{device.backend}:{device.number}"
        # A call of the CUDA runtime from another thread can break the capture of a graph.
        if not self._is_capturing():
            device.values |= self._read(f"{name} memory", lambda: allocator.memory(number)) or {}
        if device.backend == "cuda" and self._has_nvml is not False:
            device.gauges = self._read(f"{name} nvml", lambda: self._gauges(number)) or []

    def _gauges(self, number: int) -> list[tuple[str, float]]:
        if self._has_nvml is None:
            self._has_nvml = self._torch.version.hip is None and is_installed()
        if not self._has_nvml:
            return []
        if self._nvml is None:
            self._nvml = Nvml(self._torch.cuda)
        return list(self._nvml.read(number))

    # --- marks ----------------------------------------------------------------------------------

    def _memory(self, devices: list[_Device], common: dict[str, int]) -> list[SampledMark]:
        """Return the mark of each device, or of the process if it uses no device."""
        if not devices:
            resident = common.get(host.RSS)
            known: dict[str, Any] = {dev.DEVICE_ID: dev.CPU_ID, dev.BACKEND: dev.CPU}
            attributes = SampleAttributes(known | common)
            return [] if resident is None else [(sc.MEMORY, resident, attributes)]
        marks = []
        for device in devices:
            if device.allocated is not None:
                known = {dev.DEVICE_ID: device.number, dev.BACKEND: device.backend}
                attributes = SampleAttributes(known | device.values | common)
                marks.append((sc.MEMORY, device.allocated, attributes))
        return marks

    def _alerts_of(self, devices: list[_Device], common: dict[str, int]) -> list[SampledMark]:
        """Return the alerts on the limits of the devices, of the cgroup, and of the host."""
        limits = []
        for device in devices:
            values = device.values
            used = values.get(dev.DEVICE_USED, values.get(dev.RESERVED))
            name = f"{device.backend}:{device.number}"
            limits.append((name, used, values.get(dev.DEVICE_TOTAL)))
        limits.append(("cgroup", common.get(host.CGROUP_USED), common.get(host.CGROUP_LIMIT)))
        limits.append(("host", common.get(host.HOST_USED), common.get(host.HOST_TOTAL)))
        alerts: list[SampledMark] = []
        for name, used, limit in limits:
            if used is None or not limit:
                continue
            alert = self._alerts.setdefault(name, AlertState()).crossed(used / limit)
            if alert is not None:
                attributes = SampleAttributes(
                    limit=name, limit_bytes=limit, threshold=alert[1], share=used / limit
                )
                alerts.append((alert[0], used, attributes))
        return alerts
