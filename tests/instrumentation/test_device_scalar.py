"""Marks of scalars on a GPU, as far as they can be seen without one."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cirron_otel.sdk import device_scalar
from cirron_otel.sdk.coerce import Deferred, RefusedValueError, coerce
from cirron_otel.sdk.device_scalar import Arriving, arriving, patience
from tests.snapshot.test_devices import Waits


def copy(value: float, *, is_here: bool) -> tuple[Arriving, torch.Tensor]:
    arrived = torch.tensor(int(is_here), dtype=torch.int32)
    return Arriving(torch.tensor(value), arrived), arrived


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_to_make_a_mark_of_one_waits_for_nothing(shape: tuple[int, ...]) -> None:
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            value = torch.empty(shape, dtype=dtype, device="cuda", requires_grad=False)
            with Waits() as waits:
                made = coerce(value)
            assert type(made) is Deferred
            assert waits.found == []


def test_the_copy_of_one_that_has_a_gradient_has_none() -> None:
    with FakeTensorMode():
        value = torch.empty((), device="cuda", requires_grad=True) * 2
        read = arriving(value)
    assert read is not None
    assert not read._told.requires_grad


def test_what_is_in_the_hosts_memory_is_no_business_of_it() -> None:
    assert arriving(torch.tensor(3.0)) is None
    assert arriving(3.0) is None


def test_it_is_read_when_the_flag_behind_it_is_here() -> None:
    read, arrived = copy(2.5, is_here=False)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join(0.05)
    assert found == []
    arrived.fill_(1)
    thread.join()
    assert found == [2.5]


def test_a_device_that_hangs_holds_up_one_flush_and_not_each_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "seconds", 0.02)
    monkeypatch.setattr(device_scalar, "SHORT_S", 0.0)
    waited: list[float] = []
    monkeypatch.setattr(device_scalar, "sleep", waited.append)
    lost = [copy(1.0, is_here=False)[0] for _ in range(3)]
    with pytest.raises(TimeoutError, match="did not come"):
        lost[0]()
    assert waited
    waited.clear()
    for each in lost[1:]:
        with pytest.raises(TimeoutError):
            each()
    assert waited == []
    assert copy(4.0, is_here=True)[0]() == 4.0
    assert patience.seconds == device_scalar.DEADLINE_S


def test_while_a_graph_is_captured_there_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        value = torch.empty((), device="cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RefusedValueError, match="captured"):
        coerce(value)
