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
        nvml = self._nvml
        self._refusals = (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_InvalidArgument,
        )
        """The errors of a reading that the device, or a part of one, will never have."""
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
            except self._refusals:
                self._unsupported.add((device, name))

    def _handle(self, device: int) -> Any:
        """Return NVML's handle of a device: by UUID, because the numbers may differ."""
        uuid = getattr(self._cuda.get_device_properties(device), "uuid", None)
        if uuid is not None:
            return self._by_uuid(str(uuid))
        return self._nvml.nvmlDeviceGetHandleByIndex(self._cuda._get_nvml_device_index(device))

    def _by_uuid(self, uuid: str) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except (self._nvml.NVMLError_NotFound, self._nvml.NVMLError_InvalidArgument):
            return self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")  # part of a GPU

    def close(self) -> None:
        """Release NVML."""
        self._nvml.nvmlShutdown()


def is_installed() -> bool:
    """Return whether `nvidia-ml-py` is installed; it is not imported."""
    return importlib.util.find_spec(MODULE) is not None
