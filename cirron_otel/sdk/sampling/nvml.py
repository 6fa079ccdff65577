"""Utilization, temperature and power of NVIDIA GPUs, through the package `nvidia-ml-py`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Final

from ... import semconv as sc

MODULE: Final = "pynvml"


class Nvml:
    """NVML's readings of the devices of torch."""

    def __init__(self, cuda: Any) -> None:
        """`cuda` is `torch.cuda`. Raises ImportError or NVMLError if NVML cannot be used."""
        self._nvml: Any = importlib.import_module(MODULE)
        self._cuda = cuda
        self._handles: dict[int, Any] = {}
        self._unsupported: set[tuple[int, str]] = set()
        self._nvml.nvmlInit()

    def read(self, device: int) -> Iterator[tuple[str, float]]:
        """Yield the name and value of each reading that the device supports. Raises NVMLError."""
        handle = self._handles.get(device)
        if handle is None:
            handle = self._handles[device] = self._handle(device)
        nvml = self._nvml
        readings: tuple[tuple[str, Callable[[], float]], ...] = (
            (sc.GPU_UTILIZATION, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            (
                sc.GPU_TEMPERATURE,
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            ),
            (sc.GPU_POWER, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        )
        for name, read in readings:
            if (device, name) in self._unsupported:
                continue
            try:
                yield name, read()
            except nvml.NVMLError_NotSupported:
                self._unsupported.add((device, name))

    def _handle(self, device: int) -> Any:
        """Return NVML's handle of a device: by UUID, because the numbers may differ."""
        uuid = getattr(self._cuda.get_device_properties(device), "uuid", None)
        if uuid is not None:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return self._nvml.nvmlDeviceGetHandleByIndex(self._cuda._get_nvml_device_index(device))

    def close(self) -> None:
        """Release NVML."""
        self._nvml.nvmlShutdown()


def is_installed() -> bool:
    """Return whether `nvidia-ml-py` is installed; it is not imported."""
    return importlib.util.find_spec(MODULE) is not None
