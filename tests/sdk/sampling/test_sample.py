"""One sample: its marks, devices that are not in use, and a fault in each reader.

No GPU is needed: `Cuda` has the functions of `torch.cuda` that the readers call.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from cirron_otel.sdk.sampling.sample import SampledMark, SampleReader
from cirron_otel.sdk.tracing.graph_captures import captures

from .proc_files import (
    MIB,
    make_proc,
    make_v2,
    write_group,
    write_host,
)

GIB = 2**30


class Cuda:
    """The functions of `torch.cuda` that the readers call, with what they must not do."""

    def __init__(self, devices: int = 2) -> None:
        self.is_up = True
        self.allocated = [0] * devices
        self.ever = [False] * devices
        self.contexts: set[int] = set()
        self.broken: set[str] = set()

    def use(self, device: int, size: int) -> None:
        self.allocated[device], self.ever[device] = size, True

    def is_initialized(self) -> bool:
        return self.is_up

    def device_count(self) -> int:
        return len(self.allocated)

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        if "allocator" in self.broken:
            raise RuntimeError("no statistics")
        if not self.ever[device]:
            return {}
        size = self.allocated[device]
        return {
            "allocated_bytes": {"all": {"current": size, "peak": size, "allocated": 9}},
            "reserved_bytes": {"all": {"current": 2 * size, "peak": 2 * size, "allocated": 9}},
            "active_bytes": {"all": {"current": size + MIB, "peak": size, "allocated": 9}},
        }

    def mem_get_info(self, device: int) -> tuple[int, int]:
        assert self.ever[device], "a context would be created"
        self.contexts.add(device)
        if "memory" in self.broken:
            raise RuntimeError("no driver")
        return 3 * GIB, 4 * GIB

    def get_device_properties(self, device: int) -> Any:
        return types.SimpleNamespace(uuid=f"uuid-{device}")


class Nvml(types.ModuleType):
    """`pynvml` with a second GPU that cannot measure its power."""

    class NVMLError(Exception):
        """As in `pynvml`."""

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 - the name in `pynvml`
        """As in `pynvml`."""

    class NVMLError_NoPermission(NVMLError):  # noqa: N801, N818 - the name in `pynvml`
        """As in `pynvml`."""

    class NVMLError_InvalidArgument(NVMLError):  # noqa: N801, N818 - the name in `pynvml`
        """As in `pynvml`."""

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 - the name in `pynvml`
        """As in `pynvml`."""

    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.__spec__ = types.SimpleNamespace(name="pynvml")  # type: ignore[assignment]
        self.is_broken = self.is_over = False
        self.prefix = "GPU-"
        self.refused: type[Exception] | None = None

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_over = True

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if not uuid.startswith(self.prefix):
            raise self.NVMLError_NotFound
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if self.is_broken:
            raise self.NVMLError("lost")
        if self.refused is not None:
            raise self.refused
        return types.SimpleNamespace(gpu=25 if handle == "GPU-uuid-0" else 50)

    def nvmlDeviceGetTemperature(self, _handle: str, _sensor: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        if handle == "GPU-uuid-1":
            raise self.NVMLError_NotSupported
        return 123_456


class Bench:
    """A sampler's reader on written files and a simulated device, with a clock of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc = make_proc(root / "proc")
        self.group = make_v2(self.proc, root / "mount", "/job")
        write_group(self.group, 10 * MIB, 100 * MIB, v1=False)
        self.cuda = Cuda()
        self.torch: Any = None
        self.nvml = Nvml()
        self.now = 0.0
        monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        self.reader = SampleReader(self.proc, lambda: self.torch, seconds=lambda: self.now)

    def import_torch(self) -> None:
        backends = types.SimpleNamespace()
        version = types.SimpleNamespace(hip=None)
        self.torch = types.SimpleNamespace(cuda=self.cuda, backends=backends, version=version)

    def take(self, name: str = "memory") -> list[SampledMark]:
        return [mark for mark in self.reader.take() if mark[0] == name]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_torch_functions_used_by_the_readers_exist() -> None:
    for module in (torch.cuda, torch.xpu):
        for name in ("is_initialized", "device_count", "memory_stats_as_nested_dict"):
            assert callable(getattr(module, name))
    assert callable(torch.cuda.mem_get_info)
    assert callable(torch.cuda.get_device_properties)
    assert callable(torch.cuda._get_nvml_device_index)  # type: ignore[attr-defined]


def test_without_a_device_the_value_is_the_resident_set(bench: Bench) -> None:
    ((_, value, attributes),) = bench.take()
    page = 4096
    assert value == 1000 * page
    assert attributes == {
        "device_id": -1, "backend": "cpu", "process_rss_bytes": 1000 * page,
        "host_used_bytes": GIB // 2, "host_total_bytes": GIB,
        "cgroup_used_bytes": 10 * MIB, "cgroup_limit_bytes": 100 * MIB,
    }  # fmt: skip


def test_each_device_in_use_has_a_mark_and_no_other_is_touched(bench: Bench) -> None:
    bench.import_torch()
    assert bench.take()[0][2]["backend"] == "cpu"
    bench.cuda.use(1, 7 * MIB)
    ((_, value, attributes),) = bench.take()
    assert value == 7 * MIB
    assert attributes | {"host_used_bytes": 0} == {
        "device_id": 1, "backend": "cuda", "allocator_reserved_bytes": 14 * MIB,
        "allocator_active_bytes": 8 * MIB, "allocator_inactive_bytes": 6 * MIB,
        "device_used_bytes": GIB, "device_free_bytes": 3 * GIB, "device_total_bytes": 4 * GIB,
        "process_rss_bytes": 4_096_000, "host_used_bytes": 0, "host_total_bytes": GIB,
        "cgroup_used_bytes": 10 * MIB, "cgroup_limit_bytes": 100 * MIB,
    }  # fmt: skip
    assert bench.cuda.contexts == {1}
    bench.cuda.use(0, MIB)
    assert [mark[2]["device_id"] for mark in bench.take()] == [0, 1]
    bench.cuda.use(1, 0)
    assert [mark[1] for mark in bench.take()] == [MIB, 0]


def test_a_device_that_is_not_initialised_is_left_alone(bench: Bench) -> None:
    bench.import_torch()
    bench.cuda.is_up = False
    bench.cuda.memory_stats_as_nested_dict = None  # type: ignore[assignment, method-assign]
    assert [mark[2]["backend"] for mark in bench.take()] == ["cpu"]
    assert bench.reader.failures == 0


def test_the_driver_is_not_called_while_a_graph_is_captured(bench: Bench) -> None:
    bench.import_torch()
    bench.cuda.use(0, MIB)
    captures[1] = None
    try:
        ((_, value, attributes),) = bench.take()
    finally:
        captures.clear()
    assert value == MIB
    assert "device_used_bytes" not in attributes
    assert bench.cuda.contexts == set()
    assert "device_used_bytes" in bench.take()[0][2]


def test_the_gauges_of_each_gpu(bench: Bench) -> None:
    bench.import_torch()
    bench.cuda.use(0, MIB)
    bench.cuda.use(1, MIB)
    for _ in range(2):
        marks = bench.reader.take()
        gauges = [mark for mark in marks if mark[0].startswith("hw.")]
        assert gauges == [
            ("hw.gpu.utilization", 0.25, {"hw.id": "cuda:0"}),
            ("hw.temperature", 61, {"hw.id": "cuda:0"}),
            ("hw.power", 123.456, {"hw.id": "cuda:0"}),
            ("hw.gpu.utilization", 0.5, {"hw.id": "cuda:1"}),
            ("hw.temperature", 61, {"hw.id": "cuda:1"}),
        ]
        assert not [mark for mark in marks if mark[0] == "memory.degraded"]
    bench.reader.close()
    assert bench.nvml.is_over


def test_without_a_device_in_use_pynvml_is_not_imported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pynvml")
    bench.import_torch()
    bench.reader.take()
    assert "pynvml" not in sys.modules


FAULTS: dict[str, tuple[str, set[str]]] = {
    "process": ("process", {"process_rss_bytes"}),
    "host": ("host", {"host_used_bytes", "host_total_bytes"}),
    "cgroup": ("cgroup", {"cgroup_used_bytes", "cgroup_limit_bytes"}),
    "memory": ("cuda:0 memory", {"device_used_bytes", "device_free_bytes", "device_total_bytes"}),
    "nvml": ("cuda:0 nvml", set()),
}


def _break(bench: Bench, fault: str) -> Any:
    """Break a reader; return the function that mends it."""
    if fault == "nvml":
        bench.nvml.is_broken = True
        return lambda: setattr(bench.nvml, "is_broken", False)
    if fault in ("memory", "allocator"):
        bench.cuda.broken.add(fault)
        return bench.cuda.broken.clear
    file = {
        "process": bench.proc / "self" / "statm",
        "host": bench.proc / "meminfo",
        "cgroup": bench.group / "memory.current",
    }[fault]
    text = file.read_text()
    file.write_text("?")
    return lambda: file.write_text(text)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reader_that_fails(bench: Bench, fault: str) -> None:
    reader, lost = FAULTS[fault]
    bench.import_torch()
    bench.cuda.use(0, MIB)
    ((_, _, whole),) = bench.take()
    mend = _break(bench, fault)
    notices = []
    for _ in range(10):
        bench.now += 0.1
        marks = bench.reader.take()
        notices += [mark for mark in marks if mark[0] in ("memory.degraded", "memory.recovered")]
        (mark,) = (mark for mark in marks if mark[0] == "memory")
        assert set(mark[2]) == set(whole) - lost
        assert 0 not in mark[2].values() or mark[2]["device_id"] == 0
        assert None not in mark[2].values()
    ((name, value, attributes),) = notices
    assert (name, value) == ("memory.degraded", reader)
    assert ": " in attributes["error"]
    assert bench.reader.failures == 1, "the reader was called during its pause"
    mend()
    bench.now += 0.05
    assert bench.take("memory.recovered") == []
    bench.now += 60
    ((_, value, attributes),) = bench.take("memory.recovered")
    assert value == reader
    assert attributes == {"failures": 1, "degraded_ns": pytest.approx(60.95e9)}
    assert set(bench.take()[0][2]) == set(whole)
    assert bench.take("memory.recovered") == []


@pytest.mark.parametrize("fault", ["allocator", "process"])
def test_failed_reader_omits_its_mark_until_it_recovers(bench: Bench, fault: str) -> None:
    if fault == "allocator":
        bench.import_torch()
        bench.cuda.use(0, MIB)
        bench.reader.take()
    mend = _break(bench, fault)
    bench.now += 1
    assert {mark[0] for mark in bench.reader.take()} == {"memory.degraded", *_others(fault)}
    bench.now += 0.5
    assert bench.take() == []
    mend()
    bench.now += 61
    assert len(bench.take()) == 1


def _others(fault: str) -> set[str]:
    cpu = {"process.cpu.utilization"} if fault == "allocator" else set()
    return cpu | ({"hw.gpu.utilization", "hw.temperature", "hw.power"} if cpu else set())


def test_alerts_on_each_limit(bench: Bench) -> None:
    bench.import_torch()
    bench.cuda.use(0, MIB)
    assert bench.take("memory.warning") == []
    write_group(bench.group, 90 * MIB, 100 * MIB, v1=False)
    ((_, value, attributes),) = bench.take("memory.warning")
    assert value == 90 * MIB
    assert attributes == {
        "limit": "cgroup", "limit_bytes": 100 * MIB, "threshold": 0.85, "share": 0.9
    }  # fmt: skip
    write_host(bench.proc, 1000, 10)
    bench.cuda.mem_get_info = lambda _: (GIB, 100 * GIB)  # type: ignore[method-assign]
    alerts = bench.take("memory.critical")
    assert [mark[2]["limit"] for mark in alerts] == ["cuda:0", "host"]
    assert bench.take("memory.critical") == bench.take("memory.warning") == []


def test_a_torch_that_cannot_be_examined_is_one_failure(bench: Bench) -> None:
    bench.torch = types.SimpleNamespace(cuda=bench.cuda)  # without backends
    assert [mark[1] for mark in bench.take("memory.degraded")] == ["torch"]
    assert [mark[2]["backend"] for mark in bench.take()] == ["cpu"]
    bench.import_torch()
    bench.cuda.use(0, MIB)
    bench.now += 1
    assert [mark[2]["backend"] for mark in bench.take()] == ["cuda"]


def test_a_module_that_is_not_torch_is_one_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs and tests put replacements into `sys.modules`."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())  # type: ignore[arg-type]
    bench.reader = SampleReader(bench.proc, seconds=lambda: bench.now)
    assert {mark[0] for mark in bench.reader.take()} == {"memory", "memory.degraded"}
    bench.now += 0.5
    assert [mark[2]["backend"] for mark in bench.take()] == ["cpu"]


def test_a_directory_that_may_not_be_read_has_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_args: Any, **_options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    for name in ("stat", "open"):
        monkeypatch.setattr(os, name, denied)
    reader = SampleReader(tmp_path, torch=lambda: None)
    monkeypatch.undo()
    assert [mark[0] for mark in (*reader.take(), *reader.take())] == ["process.cpu.utilization"]
    assert reader.failures == 0


def test_a_gauge_that_fails_for_good_hides_no_other(bench: Bench) -> None:
    """In a container or on a part of a GPU, single readings are refused."""
    bench.import_torch()
    bench.cuda.use(0, MIB)
    bench.nvml.refused = bench.nvml.NVMLError_NoPermission
    names = [mark[0] for _ in range(2) for mark in bench.reader.take()]
    assert names.count("hw.temperature") == names.count("hw.power") == 2
    assert "hw.gpu.utilization" not in names
    assert "memory.degraded" not in names


def test_mig_instance_is_matched_to_its_device(bench: Bench) -> None:
    """NVML's name of an instance of a multi-instance GPU begins with another word."""
    bench.import_torch()
    bench.cuda.use(0, MIB)
    bench.nvml.prefix = "MIG-"
    marks = bench.reader.take()
    assert ("hw.gpu.utilization", 0.5, {"hw.id": "cuda:0"}) in marks
    assert "memory.degraded" not in [mark[0] for mark in marks]
    bench.cuda.use(1, MIB)
    bench.nvml.prefix = "?"
    assert [mark[1] for mark in bench.take("memory.degraded")] == ["cuda:1 nvml"]


def test_without_nvidia_ml_py_no_gpu_gauges_are_sampled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cirron_otel.sdk.sampling.sample.is_installed", lambda: False)
    bench.import_torch()
    bench.cuda.use(0, MIB)
    names = {mark[0] for _ in range(2) for mark in bench.reader.take()}
    assert names == {"memory", "process.cpu.utilization"}
    assert bench.reader.failures == 0
