"""Measuring on a GPU, as far as it can be seen without one: torch's own fake tensors.

They have a device and no values: an operation whose outcome the host would have to read raises, as
does one between tensors of two devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cirron_otel.sdk.snapshots import batched, capture
from cirron_otel.sdk.snapshots.arrival import Arrival
from cirron_otel.sdk.snapshots.statistics import BINS
from cirron_otel.sdk.snapshots.tensors import Subject

COLUMNS = len(batched.COLUMNS) + BINS


class Waits(TorchDispatchMode):
    """Notes the copies between devices that the host waits for, or may: out of memory that is not
    pinned (CUDA's documentation, "API synchronization behavior").
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._pinned: list[Any] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        done = function(*args, **(kwargs or {}))
        if (kwargs or {}).get("pin_memory"):
            self._pinned.append(done)
        devices = {each.device.type for each in (*args, done) if isinstance(each, torch.Tensor)}
        is_blocking = not ((kwargs or {}).get("non_blocking") or (args[2:3] and args[2] is True))
        host = [each for each in (*args, done) if _is_on_host(each)]
        if "_to_copy" in str(function):
            host = [each for each in args if _is_on_host(each)]  # torch makes the copy pinned
        pinned = {_memory(each) for each in self._pinned}
        is_pinned = all(_memory(each) in pinned for each in host)
        if len(devices) > 1 and "copy" in str(function) and (is_blocking or not is_pinned):
            self.found.append(str(function))
        return done


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


@pytest.fixture
def tensors() -> Iterator[list[Any]]:
    """Of a GPU, as odd as any."""
    with FakeTensorMode():
        yield [
            torch.empty(300, 20, device="cuda"),
            torch.empty(7, device="cuda", dtype=torch.bfloat16),
            torch.empty(3, 4, device="cuda", dtype=torch.complex64).T,
            torch.empty(5_000_000, device="cuda", dtype=torch.float64),
            torch.empty(40, 50, device="cuda")[:, ::2],
            torch.empty(4, device="cuda", dtype=torch.int8),
            torch.empty(4, device="cuda", dtype=torch.float8_e4m3fn),
        ]


def test_fake_device_detects_host_reads_and_blocking_copies(tensors: list[Any]) -> None:
    with pytest.raises(DataDependentOutputException):
        tensors[0].sum().item()
    with Waits() as waits:
        tensors[0].to("cpu", non_blocking=True)
        assert waits.found == []
        tensors[0].to("cpu")
        torch.empty(300, 20).copy_(tensors[0])
        torch.empty(300, 20).copy_(tensors[0], non_blocking=True)
        torch.empty(300, 20).to("cuda", non_blocking=True)
        torch.empty(300, 20, pin_memory=True).copy_(tensors[0], non_blocking=True)
    assert len(waits.found) == 4


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_no_step_depends_on_a_value_or_waits(tensors: list[Any], is_deterministic: bool) -> None:
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        with Waits() as waits:
            found = batched.measure(tensors, [0, 0, 3, 0, 0, 0, 0], batched.ON_DEVICE)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (found.shape, found.device.type) == ((len(tensors), COLUMNS), "cuda")
    assert waits.found == []


def test_results_reach_the_host_in_one_copy_without_waiting(tensors: list[Any]) -> None:
    subjects = [Subject(str(n), False, [], "", {}, each) for n, each in enumerate(tensors)]
    found = capture.Capture(subjects)
    with Waits() as waits:
        capture._measure(found)
    (result,) = found._results
    rows = result.rows.values
    assert (rows.device.type, rows.shape) == ("cpu", (len(tensors), COLUMNS))
    assert result.rows._arrived is not None
    assert waits.found == []
    assert found.failures == []


def test_one_that_cannot_be_measured_there_takes_no_other_with_it(
    tensors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest stays on the device: what is copied to the host would be waited for."""
    measure = batched.measure

    def without_fp8(some: list[Any], *others: Any) -> Any:
        if any(each.dtype is torch.float8_e4m3fn for each in some):
            raise RuntimeError("not implemented for 'Float8_e4m3fn'")
        return measure(some, *others)

    monkeypatch.setattr(batched, "measure", without_fp8)
    found = capture.Capture([Subject(str(n), False, [], "", {}, t) for n, t in enumerate(tensors)])
    capture._measure(found)
    assert [each.numbers for each in found._results] == [[n] for n in range(len(tensors) - 1)]
    assert [each.failure is not None for each in found.subjects] == [False] * 6 + [True]


def test_results_are_read_only_after_the_arrival_flag_is_set() -> None:
    subject = Subject("w", False, [2], "float32")
    found = capture.Capture([subject])
    rows = batched.measure([torch.tensor([1.0, 3.0])], [0], 64)
    flag = torch.zeros(1, dtype=torch.int32)
    arrival = Arrival(rows)
    arrival._arrived = flag
    found._results.append(capture._Result([0], arrival))
    assert not found.is_measured
    flag.fill_(1)
    assert found.is_measured
    (record,) = found.records()
    assert record.stats is not None
    assert record.stats["mean"] == 2.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_gpu_statistics_equal_host_statistics() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(700, 600), torch.nn.LayerNorm(600))
    with torch.no_grad():
        net[1].weight[0] = float("nan")
    here = {each.name: each for each in capture.take(net).records()}
    taken = capture.take(net.to("cuda"))
    torch.cuda.synchronize()
    assert taken.is_measured
    for record in taken.records():
        assert record.stats is not None
        assert record.stats.keys() == here[record.name].stats.keys()  # type: ignore[union-attr]
        for key in ("mean", "std", "min", "max", "norm"):
            assert record.stats[key] == pytest.approx(here[record.name].stats[key])  # type: ignore[index]
