"""CUDA as a source of events, as far as that can be tested without a GPU."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from cirron_otel.core.config.options import Config
from cirron_otel.sdk.instrumentation.patches import Patches
from cirron_otel.sdk.instrumentation.torch import cuda
from cirron_otel.sdk.instrumentation.torch.clock import Clock
from cirron_otel.sdk.instrumentation.torch.cuda import Cuda
from tests.kit.forked_scripts import ForkedScripts


class Graph:
    """The methods of `torch.cuda.CUDAGraph` that begin and end a capture."""

    fails = False

    def capture_begin(self, *_: Any, **__: Any) -> None:
        if self.fails:
            raise RuntimeError("a capture is underway")

    def capture_end(self) -> None:
        if self.fails:
            raise RuntimeError("the capture was invalidated")


@pytest.fixture(autouse=True)
def contexts(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The devices with a context; the first one is current."""
    found = {0}
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", found.__contains__, raising=False)
    return found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """CUDA in use, with a current stream that is not captured."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Cuda()


def _install(source: Cuda, quiet: Any = lambda: None) -> Patches:
    patches = Patches()
    source.install(patches, quiet)
    return patches


def test_source_is_off_until_cuda_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    is_up = False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_up)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    source = Cuda()
    assert source.is_off()
    is_up = True
    assert not source.is_off()


def test_source_is_off_until_the_device_has_a_context(source: Cuda, contexts: set[int]) -> None:
    """The model may be on another device than the current one: recording here would create a
    context."""
    contexts.clear()
    assert source.is_off()
    contexts.add(0)
    assert not source.is_off()
    contexts.clear()
    assert not source.is_off(), "what was seen once is there: it is not asked for each event"


def test_it_is_off_while_the_current_stream_is_captured(
    source: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert Cuda().is_off()
    assert not source.is_off()


def test_it_is_off_while_any_thread_captures(source: Cuda) -> None:
    _install(source)
    one, other = Graph(), Graph()
    threads = []
    for graph in (one, other):
        threads.append(threading.Thread(target=graph.capture_begin, args=("pool",)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert source.is_off()
    one.capture_end()
    assert source.is_off()
    other.capture_end()
    assert not source.is_off()


def test_failed_graph_capture_leaves_the_source_on(
    source: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(source)
    graph = Graph()
    monkeypatch.setattr(Graph, "fails", True)
    with pytest.raises(RuntimeError, match="underway"):
        graph.capture_begin()
    assert not source.is_off()
    monkeypatch.setattr(Graph, "fails", False)
    graph.capture_begin()
    monkeypatch.setattr(Graph, "fails", True)
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert not source.is_off()


def test_a_capture_without_an_end_is_over_with_its_graph(source: Cuda) -> None:
    _install(source)
    graph = Graph()
    graph.capture_begin()
    assert source.is_off()
    del graph
    gc.collect()
    assert not source.is_off()


def test_source_is_already_off_when_the_capture_callback_runs(source: Cuda) -> None:
    known = []
    _install(source, lambda: known.append(source.is_off()))
    Graph().capture_begin()
    assert known == [True]


def test_the_methods_come_back(source: Cuda) -> None:
    before = dict(vars(Graph))
    patches = _install(source)
    assert vars(Graph)["capture_begin"] is not before["capture_begin"]
    patches.undo()
    assert dict(vars(Graph)) == before


class Event:
    """The part of `torch.cuda.Event` that events are made of."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.streams: list[Any] = []

    def record(self, stream: Any = None) -> None:
        self.streams.append(stream)


def test_an_event_is_recorded_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[dict[str, int]] = []

    def stream(**options: int) -> int:
        created.append(options)
        return options["stream_id"]

    current, device = 7, 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentStream", lambda index: (current, index, 1), raising=False
    )
    source = Cuda()
    one, other = source.event(), source.event()
    one.record()
    other.record()
    current, device = 9, 1
    one.record()
    current, device = 7, 0
    one.record()
    assert (one.streams, other.streams) == ([7, 9, 7], [7])
    assert created == [
        {"stream_id": 7, "device_index": 0, "device_type": 1},
        {"stream_id": 9, "device_index": 1, "device_type": 1},
    ]


def test_torch_events_are_used_if_torch_lacks_the_stream_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.delattr(torch._C, "_cuda_getCurrentStream", raising=False)
    event = Cuda().event()
    event.record()
    assert (type(event), event.streams) == (Event, [None])


def test_torch_provides_the_functions_that_are_hooked_and_called() -> None:
    for name in ("capture_begin", "capture_end"):
        assert callable(getattr(torch.cuda.CUDAGraph, name))
    for name in ("record", "query", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    assert callable(torch.cuda.is_current_stream_capturing)
    assert torch.cuda.is_initialized() is False


def test_clock_exists_only_with_a_gpu_and_timing_enabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cuda.clock_of(Config()) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert isinstance(cuda.clock_of(Config()), Clock)
    assert cuda.clock_of(Config(cuda_timing=False)) is None
    assert cuda.devices() == {"cuda"}


PROGRAM = """
import os, torch
counted = []
torch.cuda.device_count = lambda: counted.append(1) or 1
def is_available():
    raise AssertionError("is_available initialises the driver")
torch.cuda.is_available = is_available
torch.cuda._lazy_init = lambda: os._exit(17)
import cirron_otel as ci
import tempfile
directory = tempfile.mkdtemp()
profiler = ci.profile(output_dir=directory, frameworks=["torch"], exporters="none",
                      cuda_memory=True)
assert counted
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
profiler.flush()
print(profiler.health()["last_errors"], torch.cuda.is_initialized())
ci.shutdown()
"""


def test_training_on_the_cpu_of_a_machine_with_a_gpu_makes_no_context(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    assert scripts.text(PROGRAM, tmp_path).stdout == "{} False\n"
