"""`h2d`: consecutive copies to a device are one scope; `meta` serves as a device here."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.torch import transfers
from cirron_otel.sdk.session.errors import errors
from tests.kit.sessions.spool_trees import Node, read_spool
from tests.sdk.instrumentation.device import Device

from .on_device import (
    gpu_ms,
    loader,
    parts,
    session,
    tree,
)

META = frozenset({"meta"})
ROW = 16
"""Bytes of four numbers."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still for a while between two copies does not tell them apart."""
    monkeypatch.setattr(transfers, "GAP_NS", 10**12)
    monkeypatch.setattr(transfers, "_STALE_NS", 10**12)


def _copies(node: Node) -> list[tuple[int, int]]:
    found = [child.record["attrs"] for child in node.children if child.name == "h2d"]
    return [(attrs["copies"], attrs["bytes"]) for attrs in found]


def _names(node: Node) -> list[str]:
    return [str(child.name) for child in node.children]


def test_copies_in_a_row_are_one_scope_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        model, criterion, optimizer = parts(Device())
        for x, y in loader():
            x.to("meta")
            y.to(torch.device("meta"), non_blocking=True)
            x.to(device="meta", dtype=torch.float64)
            x.to(torch.empty(0, device="meta"))
            criterion(model(x), y).backward()
            x.to("meta")
            optimizer.step()
            y.to("meta")
    for step in tree(tmp_path).find("step"):
        expected = [
            "data_load", "h2d", "forward", "loss", "backward", "h2d", "optimizer_step", "h2d",
        ]  # fmt: skip
        assert _names(step) == expected
        assert _copies(step) == [(4, 3 * ROW + 4), (1, ROW), (1, 4)]
        spans = [(child.record["start_ns"], child.record["end_ns"]) for child in step.children]
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        covered = sum(end - start for start, end in spans)
        rest = step.record["attrs"]["unattributed_ns"]
        assert covered + rest == step.record["end_ns"] - step.record["start_ns"]
        assert step.record["end_ns"] == spans[-1][1]


def test_scope_ends_with_the_last_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        torch.ones(4).to("meta")
        time.sleep(0.02)
        torch.ones(4).to("meta")
    (found,) = tree(tmp_path).children
    assert found.record["end_ns"] - found.record["start_ns"] >= 20_000_000
    assert "incomplete" not in found.record["attrs"]


def test_a_copy_that_comes_later_is_another_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "GAP_NS", 10_000_000)
    with session(tmp_path, monkeypatch, devices=META):
        torch.ones(4).to("meta")
        time.sleep(0.02)
        torch.ones(4).to("meta")
    assert _copies(tree(tmp_path)) == [(1, ROW), (1, ROW)]


def test_calls_that_copy_nothing_to_the_device_open_no_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        x, there = torch.ones(4), torch.empty(4, device="meta")
        x.to(torch.float64)
        x.to("cpu")
        x.to(x)
        x.to(dtype=torch.int32, copy=True)
        there.to("meta")
        there.to(torch.float64)
        with pytest.raises(TypeError):
            x.to(object())
        with pytest.raises(RuntimeError):
            x.to("nowhere")
    assert tree(tmp_path).children == []
    assert errors.counts == {}


def test_a_module_that_moves_is_one_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        tensors = [*model.parameters(), *model.buffers()]
        size = sum(tensor.nbytes for tensor in tensors)
        model.to("meta")
        assert all(parameter.is_meta for parameter in model.parameters())
    assert _copies(tree(tmp_path)) == [(len(tensors), size)]


def test_it_is_in_the_first_step_of_a_loop_without_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        model, criterion, optimizer = parts(Device())
        for _ in range(2):
            x, y = torch.ones(1, 4), torch.ones(1, 1)
            x.to("meta"), y.to("meta")
            criterion(model(x), y).backward()
            optimizer.step()
    steps = tree(tmp_path).find("step")
    assert [_copies(step) for step in steps] == [[(2, ROW + 4)]] * 2


def test_micro_steps_evaluations_and_user_steps_have_separate_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        model, criterion, optimizer = parts(Device())
        for number, (x, y) in enumerate(loader(4)):
            x.to("meta"), y.to("meta")
            criterion(model(x), y).backward()
            if number % 2:
                optimizer.step()
        with torch.no_grad():
            for x, y in loader(2):
                x.to("meta"), y.to("meta")
                model(x)
        with ci.scope("step"):
            x.to("meta"), y.to("meta")
        with ci.scope("request"):
            x.to("meta")
    root = tree(tmp_path)
    pair = (2, ROW + 4)
    assert [_copies(micro) for micro in root.find("micro_step")] == [[pair]] * 4
    assert _copies(root.one("eval")) == [pair] * 2
    by_hand = [step for step in root.children if step.name == "step"]
    assert [_copies(step) for step in by_hand] == [[pair]]
    assert _copies(root.one("request")) == [(1, ROW)]


def test_scopes_and_marks_between_copies_separate_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        x = torch.ones(4)
        with ci.scope("mine"):
            x.to("meta")
            with ci.scope("inner"):
                pass
            x.to("meta")
            ci.mark("between", 1)
            x.to("meta")
        x.to("meta")
    root = tree(tmp_path)
    assert _names(root.one("mine")) == ["h2d", "inner", "h2d"]
    assert _copies(root.one("mine")) == [(1, ROW), (2, 2 * ROW)]
    assert root.one("mine").values == [("between", 1)]
    assert _copies(root) == [(1, ROW)]


def test_copies_inside_of_a_phase_are_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moving(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x.to("meta")
            return super().forward(x)

    def collate(samples: Any) -> Any:
        torch.ones(4).to("meta")
        return torch.stack(samples)

    with session(tmp_path, monkeypatch, devices=META):
        model = Moving(4, 1)
        for x in DataLoader([torch.ones(4)] * 2, 2, collate_fn=collate):  # type: ignore[arg-type]
            model(x).sum().backward()
    (step,) = tree(tmp_path).find("step")
    names = [name for micro in step.children for name in _names(micro)]
    assert "h2d" not in names + _names(step)


def test_a_copy_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
            raise RuntimeError("out of memory")

        __torch_function__ = torch._C._disabled_torch_function_impl

    refusing = Tensor._make_subclass(Refusing, torch.ones(4))
    with session(tmp_path, monkeypatch, devices=META):
        for tensors in ([torch.ones(4), refusing], [refusing], [torch.ones(4)]):
            for tensor in tensors:
                is_refused = tensor is refusing
                with pytest.raises(RuntimeError, match="memory") if is_refused else nullcontext():
                    tensor.to("meta")
    root = tree(tmp_path)
    failed = [(child.record.get("otel") or {}).get("status", {}) for child in root.children]
    assert [status.get("code", 0) for status in failed] == [2, 2, 0]
    assert _copies(root) == [(2, 2 * ROW), (1, ROW), (1, ROW)]


def test_sparse_tensors_have_no_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session(tmp_path, monkeypatch, devices=META):
        torch.eye(3).to_sparse().to("meta")
    assert _copies(tree(tmp_path)) == [(1, 0)]


def test_a_run_that_nothing_follows_is_sealed_without_a_word_from_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_STALE_NS", 0)
    with session(tmp_path, monkeypatch, devices=META) as profiler, torch.no_grad():
        with ci.scope("request"):
            torch.ones(4).to("meta")
        assert profiler.flush(20)
        assert [span["name"] for span in read_spool(tmp_path).spans] == ["h2d", "request"]
        with ci.scope("request"):
            torch.ones(4).to("meta")
    assert [_copies(node) for node in tree(tmp_path).find("request")] == [[(1, ROW)]] * 2


@pytest.mark.parametrize("has_clock", [False, True])
def test_a_flush_between_two_copies_does_not_part_them(
    has_clock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    device.keeps_up = True
    clock = device if has_clock else None
    with session(tmp_path, monkeypatch, clock, devices=META) as profiler:
        model, criterion, optimizer = parts(device)
        for x, y in loader(1):
            criterion(model(x), y).backward()
            optimizer.step()
            x.to("meta")
            device.clock.poll()
            assert profiler.flush(20)
            assert "h2d" not in [span["name"] for span in read_spool(tmp_path).spans]
            device.work(3)
            x.to("meta")
    (step,) = tree(tmp_path).find("step")
    assert _copies(step) == [(2, 2 * ROW)]
    assert step.children[-1].record["end_ns"] == step.record["end_ns"]
    assert gpu_ms(step.children[-1]) == (3 if has_clock else None)


def test_a_thread_that_ends_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META) as profiler:
        thread = threading.Thread(target=lambda: torch.ones(4).to("meta"))
        thread.start()
        thread.join()
        assert profiler.flush(20)
        assert [span["name"] for span in read_spool(tmp_path).spans] == ["h2d"]


@pytest.mark.parametrize("lag_ms", [0, 100])
def test_copies_have_the_devices_time(
    lag_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    original = torch.Tensor.to

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device.work(2)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    with session(tmp_path, monkeypatch, device, devices=META):
        model, criterion, optimizer = parts(device)
        made = 0
        for number, (x, y) in enumerate(loader(50)):
            x.to("meta")
            device.work(0.5)
            y.to("meta")
            criterion(model(x), y).backward()
            optimizer.step()
            x.to("meta"), y.to("meta")
            device.done_ms = device.enqueued_ms - lag_ms
            if number == 25:
                made = device.made
        assert device.made == made
        device.catch_up()
    steps = tree(tmp_path).find("step")
    for step in steps:
        assert [gpu_ms(n) for n in step.children if n.name == "h2d"] == [4.5, 4]
        assert gpu_ms(step) == 4.5 + 5 + 1 + 10 + 3 + 4
    assert len(steps) == 50


# --- what stands where `Tensor.to` stood ---------------------------------------------------------

BEFORE = {torch.Tensor.to: "to", torch.Tensor.cuda: "cuda"}
"""A table like those that subclasses of tensors keep, made before a session."""


class Listening(Tensor):
    """Looks for the functions that are called on it, in every way that is common."""

    heard: list[tuple[bool, bool, bool]]
    names: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(func.__name__)
        if func.__name__ == "to":
            cls.heard.append(
                (func is torch.Tensor.to, func in BEFORE, func in {torch.Tensor.to: 1})
            )
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_find_the_functions_that_they_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Listening.heard, Listening.names = [], []
    mine = torch.ones(4).as_subclass(Listening)
    with session(tmp_path, monkeypatch, devices=META):
        assert type(mine.to("meta")) is Listening
        during = {torch.Tensor.to}
        assert type(mine.to(torch.float64)) is Listening
    assert {torch.Tensor.to: "to", torch.Tensor.cuda: "cuda"} == BEFORE
    assert torch.Tensor.to in during
    assert Listening.heard == [(True, True, True)] * 2
    assert Listening.names == ["to", "to"]  # we ask it nothing
    assert _copies(tree(tmp_path)) == [(1, ROW)]


def test_replacement_of_tensor_to_mimics_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = torch.Tensor.to
    with session(tmp_path, monkeypatch, devices=META):
        ours: Any = torch.Tensor.to
        assert ours is not original
        assert (ours.__name__, ours.__doc__) == ("to", original.__doc__)
        assert pickle.loads(pickle.dumps(ours)) is copy.deepcopy(ours) is original
        assert torch.equal(ours(torch.ones(2), torch.float64), torch.ones(2, dtype=torch.float64))
        assert vars(torch.Tensor)["to"] is ours
    assert torch.Tensor.to is original
    assert "to" not in vars(torch.Tensor)


def test_compiled_functions_copy_without_a_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, devices=META):

        @torch.compile(backend="eager", fullgraph=True)
        def double(x: Tensor) -> Tensor:
            return x.to(torch.float64) * 2 + x.to("cpu")

        assert torch.equal(double(torch.ones(2)), torch.full((2,), 3, dtype=torch.float64))
    assert torch.equal(double(torch.ones(2)), torch.full((2,), 3, dtype=torch.float64))
