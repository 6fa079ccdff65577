"""Digesting on a GPU, as far as torch's fake tensors show it: nothing is read, or waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cirron_otel.sdk.snapshots import digest_capture, digest_parts
from cirron_otel.sdk.snapshots.digest_capture import Digester
from cirron_otel.sdk.snapshots.digest_sums import Summing
from cirron_otel.sdk.snapshots.digest_weights import Matrix, Words
from cirron_otel.sdk.snapshots.stream_order import StreamOrder
from tests.sdk.snapshots.test_devices import Waits


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("multiplier", [Matrix, Words])
def test_nothing_waits(
    multiplier: Any, is_deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda _: 0)
    monkeypatch.setattr(digest_parts, "_FAKE", frozenset())
    monkeypatch.setattr(
        digest_capture, "Summing", lambda device: Summing(device, multiplier(device))
    )
    with FakeTensorMode():
        tensors = [
            torch.empty(300, 20, device="cuda"),
            torch.empty(7, device="cuda", dtype=torch.bfloat16)[1:],
            torch.empty(3, 4, device="cuda", dtype=torch.complex64).T,
            torch.empty(5_000_000, device="cuda", dtype=torch.float64),
            torch.empty(400, 5000, device="cuda")[:, ::2],
            torch.empty(3, device="cuda", dtype=torch.int8),
            torch.empty(4, device="cuda", dtype=torch.float8_e4m3fn),
            torch.empty(0, device="cuda"),
        ]
        named = [(str(number), each) for number, each in enumerate(tensors)]
        torch.use_deterministic_algorithms(is_deterministic)
        try:
            digester = Digester()
            with Waits() as waits:
                for _ in range(2):  # the plan is made, and reused
                    capture = digester.capture(named, has_numbers=True)
        finally:
            torch.use_deterministic_algorithms(False)
        assert capture.failed == []
        assert waits.found == []
        ((places, sums),) = capture.sums
        assert places == list(range(len(tensors)))
        assert [len(each.starts) for each in sums.numbers] == [4] * (len(tensors) - 1) + [0]
        sizes = [each.size for each in sums.numbers if each.starts]
        assert sizes == [4, 2, 4, 8, 4, 1, 1]
        size = 16 * (len(tensors) + 1) + 4 * sum(sizes)
        assert (sums.arrival.values.shape, sums.arrival.values.device.type) == ((size,), "cpu")
        assert sums.arrival._arrived is not None


class _Stream:
    """A stream whose calls are recorded; tests/perf/gpu/digests.py uses streams of a device."""

    def __init__(self, calls: list[str], name: str) -> None:
        self.calls, self.name = calls, name

    def record_event(self) -> str:
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.calls.append(f"{self.name} waits for {event}")


def test_another_stream_waits_until_tensors_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    one, other = _Stream(calls, "one"), _Stream(calls, "other")
    streams = [one]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: streams[0])
    order = StreamOrder(torch.device("cuda"))
    order.wait()
    order.created()
    order.wait()
    assert calls == []
    streams[0] = other
    order.wait()
    assert calls == ["other waits for event of one"]
    order.created()
    streams[0] = one
    order.wait()
    assert calls[1:] == ["one waits for event of other"]


def test_sums_use_the_order_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("wait", "created", "use"):
        monkeypatch.setattr(StreamOrder, name, lambda *_, name=name: calls.append(name))
    digester = Digester()
    for _ in range(2):
        digester.capture([("a", torch.ones(9000))], has_numbers=False)
    assert calls == ["created", "wait", "created", "use", "wait", "use"]
