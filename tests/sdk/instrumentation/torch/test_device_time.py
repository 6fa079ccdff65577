"""`gpu_ns` in training loops, measured on a device whose time the loop advances."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.torch import cuda
from cirron_otel.sdk.instrumentation.torch.clock import DEADLINE_S
from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.instrumentation.device import Device, Value

from .judging import BY_HAND, faults
from .loops import Loop, every
from .on_device import (
    BACKWARD_MS,
    FORWARD_MS,
    LOSS_MS,
    OPTIMIZER_MS,
    RECOMPUTE_MS,
    gpu_ms,
    loader,
    parts,
    session,
    tree,
)
from .tools import Ours, run
from .trees import read

STEP_MS = FORWARD_MS + LOSS_MS + BACKWARD_MS + OPTIMIZER_MS
PHASES = {
    "forward": FORWARD_MS,
    "loss": LOSS_MS,
    "backward": BACKWARD_MS,
    "optimizer_step": OPTIMIZER_MS,
}


@pytest.fixture
def device() -> Device:
    return Device()


def _sealed(directory: Path, name: str) -> list[dict[str, Any]]:
    """The spans of a name that are sealed so far."""
    return [span for span in read_spool(directory).spans if span["name"] == name]


def _train(device: Device, *, batches: int = 3, every: int = 1, **options: Any) -> None:
    """Two passes; the optimizer steps every so many batches, the device is behind."""
    model, criterion, optimizer = parts(device, **options)
    for _ in range(2):
        for number, (x, y) in enumerate(loader(batches)):
            criterion(model(x), y).backward()
            if (number + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
            device.done_ms = device.enqueued_ms - 2
    device.catch_up()


def test_phases_and_steps_have_the_devices_time(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        _train(device)
    root = tree(tmp_path)
    steps = root.find("step")
    assert len(steps) == 6
    for step in steps:
        assert gpu_ms(step) == STEP_MS
        timed = {n.name: gpu_ms(n) for n in step.children}
        assert timed == {"data_load": None, **PHASES, "zero_grad": None}
    assert [gpu_ms(n) for n in (root, *root.find("epoch"))] == [None] * 3


def test_gpu_time_of_a_step_includes_work_between_its_phases(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        model, criterion, optimizer = parts(device)
        for x, y in loader():
            device.work(100)  # before the first of them, on the stream
            out = model(x)
            device.work(7)
            criterion(out, y).backward()
            optimizer.step()
            device.work(100)
        device.catch_up()
    assert [gpu_ms(step) for step in tree(tmp_path).find("step")] == [STEP_MS + 7] * 3


def test_micro_steps_have_it_too(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        _train(device, batches=3, every=3)
    steps = tree(tmp_path).find("step")
    each = STEP_MS - OPTIMIZER_MS
    assert [gpu_ms(step) for step in steps] == [3 * each + OPTIMIZER_MS] * 2
    for step in steps:
        assert [gpu_ms(micro) for micro in step.find("micro_step")] == [each] * 3


@pytest.mark.parametrize("every", [1, 2])
def test_a_step_without_a_loader_has_it(
    device: Device, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        model, criterion, optimizer = parts(device)
        for number in range(4):
            criterion(model(torch.ones(1, 4)), torch.ones(1, 1)).backward()
            if (number + 1) % every == 0:
                optimizer.step()
            device.catch_up()
    steps = tree(tmp_path).find("step")
    assert [gpu_ms(s) for s in steps] == [every * (STEP_MS - OPTIMIZER_MS) + OPTIMIZER_MS] * (
        4 // every
    )


def test_recomputation_counts_toward_the_gpu_time_of_backward(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        _train(device, is_checkpointed=True)
    for backward in tree(tmp_path).find("backward"):
        assert gpu_ms(backward) == BACKWARD_MS + RECOMPUTE_MS
        assert gpu_ms(backward.one("recompute")) == RECOMPUTE_MS


def test_an_evaluation_longer_than_the_deadline_loses_no_time(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device) as profiler:
        model, _, _ = parts(device)
        device.keeps_up = True
        with torch.no_grad():
            for x, _ in loader(200):
                model(x)
                device.seconds += DEADLINE_S / 100
                profiler.instrumentation.on_flush()
    found = [gpu_ms(node) for node in tree(tmp_path).one("eval").find("forward")]
    assert found == [FORWARD_MS] * 200


def test_thousands_of_phases_share_a_few_events(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped steps, passes that are none and phases that fail give theirs back, too."""
    with session(tmp_path, monkeypatch, device):
        model, criterion, optimizer = parts(device)

        def once() -> None:
            for number, (x, y) in enumerate(loader(2)):  # a tail, and a step by hand in a step
                with ci.scope("step", index=number):
                    criterion(model(x), y).backward()
                    optimizer.step()
            for x, y in loader(3):
                criterion(model(x), y).backward()  # accumulated; the tail never steps
            for x, _ in loader(1):
                model(x)
            next(iter(loader()))
            with pytest.raises(RuntimeError):
                model(torch.ones(1, 3))
            device.done_ms = device.enqueued_ms

        for _ in range(5):
            once()
        made = device.made
        for _ in range(100):
            once()
        assert device.made <= made + 10


def test_a_stalled_training_gives_its_spans_out_at_the_deadline(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device) as profiler:
        model, criterion, optimizer = parts(device)
        for number, (x, y) in enumerate(loader(3)):
            criterion(model(x), y).backward()
            optimizer.step()
            if number == 1:
                # On the flush thread, while this one stands here.
                profiler.flush(20)
                before = len(_sealed(tmp_path, "forward"))
                device.seconds += DEADLINE_S
                profiler.flush(20)
                assert len(_sealed(tmp_path, "forward")) == before + 2
                assert device.queries <= 2
        device.catch_up()
    steps = tree(tmp_path).find("step")
    assert [gpu_ms(n) for step in steps for n in step.find("forward")] == [None, None, FORWARD_MS]


def test_spans_of_each_batch_are_sorted_despite_pending_gpu_times(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device) as profiler:
        model, criterion, optimizer = parts(device)
        for number, (x, y) in enumerate(loader(20)):
            criterion(model(x), y).backward()
            optimizer.step()
            device.done_ms = device.enqueued_ms - STEP_MS * (number % 4)
            if number % 3 == 0:
                profiler.flush(20)
        device.catch_up()
    spool = read_spool(tmp_path)
    assert len(spool.batches) > 3
    for batch in spool.batches:
        order = [(span["end_ns"], span["id"]) for span in batch["spans"]]
        assert order == sorted(order)
    assert [gpu_ms(step) for step in spool.session.find("step")] == [STEP_MS] * 20


def test_thinning_retains_complete_steps_while_gpu_times_are_pending(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device, detail_every=4, detail_slow_factor=1e9) as profiler:
        model, criterion, optimizer = parts(device)
        for number, (x, y) in enumerate(loader(12)):
            criterion(model(x), y).backward()
            optimizer.step()
            device.done_ms = device.enqueued_ms - 1.5 * STEP_MS
            if number % 2:
                profiler.flush(20)
        device.catch_up()
    steps = tree(tmp_path).find("step")
    assert [gpu_ms(step) for step in steps] == [STEP_MS] * 12
    kept = [[n.name for n in step.children] for step in steps]
    assert kept == [["data_load", *PHASES] if n % 4 == 0 else [] for n in range(12)]


def test_a_capture_in_the_middle_of_a_phase_costs_its_time_alone(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        model, criterion, optimizer = parts(device)
        for number, (x, y) in enumerate(loader(3)):
            if number == 1:
                hook = model.layer.register_forward_hook(
                    lambda *_: setattr(device, "is_capturing", True)
                )
            out = model(x)
            loss = criterion(out, y)
            if number == 1:
                hook.remove()
                device.is_capturing = False
            loss.backward()
            optimizer.step()
            device.catch_up()
    first, second, third = tree(tmp_path).find("step")
    assert gpu_ms(first) == gpu_ms(third) == STEP_MS
    assert {n.name: gpu_ms(n) for n in second.children} == {
        "data_load": None, **PHASES, "forward": None, "loss": None,
    }  # fmt: skip
    assert gpu_ms(second) == BACKWARD_MS + OPTIMIZER_MS


def test_two_threads_train_side_by_side(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their work is enqueued on one stream here; what is asked, each asks for itself."""
    turn = threading.Lock()
    problems: list[BaseException] = []

    def train() -> None:
        try:
            model, criterion, optimizer = parts(device)
            for x, y in loader(5):
                with turn:
                    criterion(model(x), y).backward()
                    optimizer.step()
                    device.catch_up()
        except BaseException as error:
            problems.append(error)

    with session(tmp_path, monkeypatch, device):
        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # The last step of each is asked for by the end of the session.
        device.is_anyones = True
    assert problems == []
    assert [gpu_ms(step) for step in tree(tmp_path).find("step")] == [STEP_MS] * 10


class Found:
    """What a GradScaler on a GPU finds: it is copied from there, and never asked there."""

    device = torch.device("cuda")

    def __init__(self, value: Value) -> None:
        self.detach, self.to, self.item = value.detach, value.to, value.item


class FusedSGD(torch.optim.SGD):
    """Leaves steps out by itself, as fused optimizers do."""

    _step_supports_amp_scaling = True
    scaler: Any
    found: list[Found]

    def step(self, closure: Any = None) -> Any:
        found = {Found.device: self.found.pop(0)}
        self.scaler._per_optimizer_states[id(self)]["found_inf_per_device"] = found
        self.grad_scale = self.found_inf = None
        return super().step(closure)


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_a_step_that_a_fused_optimizer_left_out_is_marked(
    device: Device, last: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, whose step is settled right after."""
    with session(tmp_path, monkeypatch, device):
        model, criterion, _ = parts(device)
        optimizer = FusedSGD(model.parameters(), lr=0.01)
        optimizer.scaler = scaler = torch.amp.GradScaler("cpu")
        optimizer.found = [Found(Value(device, value)) for value in (0.0, 0.0, last)]
        for x, y in loader(3):
            scaler.scale(criterion(model(x), y)).backward()
            scaler.step(optimizer)
            scaler._per_optimizer_states.clear()  # as `update` does, which would ask
        device.on_pause = device.catch_up
    skipped = [step.record["attrs"].get("skipped") for step in tree(tmp_path).find("step")]
    assert skipped == [None, None, True if last else None]


def test_the_end_waits_for_the_last_step(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        model, criterion, optimizer = parts(device)
        for x, y in loader(2):
            criterion(model(x), y).backward()
            optimizer.step()
        device.on_pause = device.catch_up
    assert device.pauses == 1
    assert [gpu_ms(step) for step in tree(tmp_path).find("step")] == [STEP_MS] * 2


def test_a_device_that_never_answers_costs_its_time_alone(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, monkeypatch, device):
        model, criterion, optimizer = parts(device)
        for x, y in loader(2):
            criterion(model(x), y).backward()
            optimizer.step()
    steps = tree(tmp_path).find("step")
    assert [[n.name for n in step.children] for step in steps] == [["data_load", *PHASES]] * 2
    assert [gpu_ms(step) for step in steps] == [None] * 2


LOOPS = [
    loop
    for loop in every().values()
    if loop.ranks == 1 and not loop.slow and not loop.needs and loop.group != "compiling"
]


@pytest.mark.parametrize("loop", LOOPS[::4], ids=lambda loop: loop.name)
def test_a_loop_gives_its_tree_with_a_device_that_lags(
    loop: Loop, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < tuple(map(int, loop.since.split("."))):
        pytest.skip(f"needs torch {loop.since}")
    lags = random.Random(loop.name)

    def is_off() -> bool:
        """Asked at each end of a phase: the device has worked, and comes on now and then."""
        device.work(1)
        if lags.random() < 0.3:
            device.done_ms = device.enqueued_ms - lags.choice([0, 5, 20])
        return False

    monkeypatch.setattr(device, "is_off", is_off)
    device.on_pause = device.catch_up
    device.is_anyones = True  # threads that a loop has ended are asked for at the end
    monkeypatch.setattr(cuda, "clock_of", lambda *_: device.clock)
    outcome = run(loop, Ours(), tmp_path)
    assert faults(loop, outcome, read(tmp_path)[0]) == []
    assert device.violations == []
    assert not any(line.waiting for line in device.clock._all_queues)
    if loop.group != BY_HAND:
        steps = [step for step in tree(tmp_path).find("step") if step.find("optimizer_step")]
        assert all(gpu_ms(step) is not None for step in steps)
