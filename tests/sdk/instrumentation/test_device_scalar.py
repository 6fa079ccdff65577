"""Marks of scalars on a GPU, as far as they can be tested without one."""

from __future__ import annotations

import json
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cirron_otel as ci
from cirron_otel.sdk.flush.json_attributes import plain_attributes
from cirron_otel.sdk.instrumentation.loggers import scalars
from cirron_otel.sdk.tracing import coerce as coerce_module
from cirron_otel.sdk.tracing import device_scalar, otel_span
from cirron_otel.sdk.tracing.coerce import Deferred, RefusedValueError, coerce, held, hold
from cirron_otel.sdk.tracing.device_scalar import Arriving, arriving, patience
from tests.sdk.snapshots.test_devices import Waits


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
    assert not read._copy.requires_grad


def test_a_logged_parameter_gets_no_weak_reference() -> None:
    """Torch does not convert a parameter that has one (`torch.utils.swap_tensors`)."""
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.empty((), device="cuda"))
        before = weakref.getweakrefcount(parameter)
        assert scalars._is_new("wandb", "logit_scale", parameter)
        assert not scalars._is_new("mlflow", "logit_scale", parameter)
        assert scalars._is_new("mlflow", "logit_scale", torch.nn.Parameter(parameter * 2))
        assert weakref.getweakrefcount(parameter) == before


def test_values_in_host_memory_are_not_deferred() -> None:
    assert arriving(torch.tensor(3.0)) is None
    assert arriving(3.0) is None


def test_value_is_read_once_its_arrival_flag_is_set() -> None:
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
    with pytest.raises(TimeoutError, match="did not arrive"):
        lost[0]()
    assert waited
    waited.clear()
    for each in lost[1:]:
        with pytest.raises(TimeoutError):
            each()
    assert waited == []
    assert copy(4.0, is_here=True)[0]() == 4.0
    assert patience.seconds == device_scalar.DEADLINE_S


def test_scalar_is_refused_during_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        value = torch.empty((), device="cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RefusedValueError, match="captured"):
        coerce(value)


class TestAttributes:
    """A tensor on a device is read when it is set: the flush queries nothing of CUDA."""

    @staticmethod
    def set_everywhere(session: Path, value: torch.Tensor) -> None:
        options = {"snapshots": None, "flush_interval": 3600.0}  # one batch, at the end
        with ci.profile(output_dir=session, **options), ci.scope("s", given=value) as scope:
            scope.set_attribute("set", value)
            scope.set_attributes({"several": value})
            scope.add_event("event", {"of an event": value})
            scope.record_exception(ValueError("x"), {"of an exception": value})
            ci.mark("m", 1.0, marked=value)

    def test_to_set_one_waits_for_nothing(self) -> None:
        with FakeTensorMode(), Waits() as waits:
            made = held(torch.empty((1,), device="cuda"))
        assert waits.found == []
        assert type(made) is Deferred
        assert held(torch.tensor(1.0)) == torch.tensor(1.0)
        assert held("text") == "text"

    def test_device_scalars_in_attributes_are_deferred_and_recorded(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked: list[float] = []

        def read() -> float:
            asked.append(1.0)
            return 2.5

        monkeypatch.setattr(coerce_module, "held", lambda _: Deferred(read))
        monkeypatch.setattr(otel_span, "held", lambda _: Deferred(read))
        self.set_everywhere(tmp_path, torch.tensor(7.0))
        (batch,) = (json.loads(each.read_bytes()) for each in (tmp_path / "spool").glob("*.json"))
        (span,) = (each for each in batch["spans"] if each["name"] == "s")
        assert span["attrs"] == {"given": 2.5, "set": 2.5, "several": 2.5}
        first, second = span["otel"]["events"]
        assert first["attributes"] == {"of an event": 2.5}
        assert second["attributes"]["of an exception"] == 2.5
        (mark,) = (each for each in batch["marks"] if each["name"] == "m")
        assert mark["attrs"] == {"marked": 2.5}
        assert len(asked) == 6

    def test_tensor_of_several_elements_is_described_and_not_read(self) -> None:
        with FakeTensorMode():
            value = torch.empty((2, 3), device="cuda")
            assert held(value) == "<FakeTensor of (2, 3) on cuda:0>"

    def test_scalar_during_graph_capture_is_described_and_not_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeTensorMode():
            value = torch.empty((), device="cuda")
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert held(value) == "<FakeTensor of () on cuda:0>"

    def test_one_that_does_not_come_is_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patience, "seconds", 0.0)
        read, _ = copy(1.0, is_here=False)
        assert plain_attributes({"k": Deferred(read)}) == {"k": "<Deferred>"}
        monkeypatch.setattr(patience, "seconds", device_scalar.DEADLINE_S)

    def test_value_that_raises_on_inspection_becomes_text(self) -> None:
        class Odd:
            @property
            def device(self) -> object:
                raise RuntimeError("no")

        attrs = {"odd": Odd()}
        hold(attrs)
        assert attrs == {"odd": "<Odd>"}
