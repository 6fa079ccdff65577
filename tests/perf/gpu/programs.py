"""Checks of operations during a traced training, in other threads or inside it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sysconfig
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cirron_otel as ci

from .loops import Training
from .machine import (
    CheckError,
    Machine,
    Unavailable,
    expect,
    gpu_ms,
    traced,
)

_PATIENCE_S = 60


def capture(machine: Machine) -> None:
    """A graph is captured while two threads have scopes that wait for the device."""
    training = Training(machine, 64, 2)
    static = torch.ones(training.rows, 64, device=machine.device)
    is_ready, is_capturing, has_asked = threading.Event(), threading.Event(), threading.Event()
    problems: list[BaseException] = []
    with traced(flush_interval=0.02) as session:
        hooks = session.profiler.instrumentation.hooks["torch"]

        def other() -> None:
            try:
                with torch.no_grad():
                    training.net(static)
                is_ready.set()
                is_capturing.wait(_PATIENCE_S)
                for _ in range(50):
                    if hooks.torch_state.clock is not None:
                        hooks.torch_state.clock.poll()
                    hooks.on_flush()
                has_asked.set()
            except BaseException as error:
                problems.append(error)
                is_ready.set()
                has_asked.set()

        training.run(3)
        thread = threading.Thread(target=other)
        thread.start()
        is_ready.wait(_PATIENCE_S)

        def while_captured() -> None:
            is_capturing.set()
            expect(has_asked.wait(_PATIENCE_S), "the other thread did not ask")

        replayed = _capture(machine, training, static, while_captured)
        thread.join()
        training.run(3)
    expect(not problems, f"the other thread failed: {problems}")
    eager = training.net(static).detach()
    expect(bool(torch.isfinite(replayed).all()), "what was replayed is not finite")
    machine.figures["steps"] = len(session.find("step"))
    if machine.is_gpu:
        expect(replayed.shape == eager.shape, "the graph computed something else")
        known = [gpu_ms(node) for node in session.find("backward")][-3:]
        expect(None not in known, f"after the capture: {known}")


def _capture(machine: Machine, training: Training, static: Tensor, inside: Any) -> Tensor:
    """Capture forward and backward, and replay them; what the forward gave."""
    net, criterion = training.net, training.criterion
    if not machine.is_gpu:
        inside()
        return net(static).detach()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net.zero_grad(set_to_none=True)
            criterion(net(static), training.target).backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    net.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        out = net(static)
        inside()
        criterion(out, training.target).backward()
    expected = net(static).detach().clone()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    expect(torch.allclose(out, expected, rtol=1e-3, atol=1e-5), "the replay gives something else")
    return out.detach().clone()


def compiled(machine: Machine) -> None:
    """The same losses, traced and not; CUDA graphs inside, where there is a GPU."""

    def train() -> list[float]:
        torch._dynamo.reset()
        training = Training(machine, 64, 2)
        if machine.is_gpu:
            training.net = torch.compile(training.net, mode="reduce-overhead")
        else:
            training.net = torch.compile(training.net, backend="eager")
        training.run(12)
        return training.told()

    try:
        expected = train()
    except Exception as error:
        told = f"untraced it fails, too: {type(error).__name__}: {error}"
        raise Unavailable(told, lacks=_lacked_by_compilers()) from error
    with traced(may_be_late=True) as session:
        found = train()
    machine.figures["unread"] = session.unread
    expect(torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4), "other losses")
    names = [child.name for step in session.find("step")[-3:] for child in step.children]
    machine.figures["phases"] = names[: len(names) // 3]
    for name in ("forward", "backward", "optimizer_step"):
        expect(names.count(name) == 3, f"{name} is not once in each step: {names}")
    if machine.is_gpu:
        known = [gpu_ms(node) for node in session.find("forward")][-3:]
        expect(None not in known, f"forwards without the device's time: {known}")


def _lacked_by_compilers() -> str:
    """What the machine does not have of what torch.compile needs for a GPU."""
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    has = {
        "triton": importlib.util.find_spec("triton") is not None,
        "a C compiler": any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))),
        "Python.h": header.is_file(),
    }
    return ", ".join(name for name, is_there in has.items() if not is_there)


def recompute(machine: Machine) -> None:
    """It is a child of its backward, with a time of its own, from another thread."""
    training = Training(machine, machine.size(1024, 8), 4, is_checkpointed=True)
    with traced() as session:
        training.run(5)
    backwards = session.find("backward")
    expect(len(backwards) == 5, f"{len(backwards)} backwards")
    for backward in backwards:
        below = backward.find("recompute")
        expect(len(below) == 1, f"{len(below)} recomputes in a backward")
        expect(below[0] in backward.children, "the recompute is not directly below")
        if machine.is_gpu:
            ours, around = gpu_ms(below[0]), gpu_ms(backward)
            expect(ours is not None and around is not None, "no time on the device")
            expect((ours or 0) < (around or 0), f"{ours} ms of a backward of {around} ms")
            threads = below[0].record["thread_id"], backward.record["thread_id"]
            expect(threads[0] != threads[1], "it was computed on the thread of the backward")
    expect(len(session.find("recompute")) == 5, "a recompute hangs elsewhere")


def skipped(machine: Machine) -> None:
    """GradScaler with a fused Adam: the steps with infinite gradients are marked, also the last."""
    infinite = (2, 5)
    net = nn.Linear(8, 8).to(machine.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(machine.device)  # type: ignore[attr-defined]
    loader = torch.utils.data.DataLoader(torch.arange(6.0).repeat(8, 1).T.contiguous(), 1)
    with traced() as session:
        for number, x in enumerate(loader):
            optimizer.zero_grad()
            factor = float("inf") if number in infinite else 1.0
            scaler.scale(net(x.to(machine.device)).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    steps = session.find("step")
    marked = [step.record["index"] for step in steps if step.record["attrs"].get("skipped")]
    machine.figures.update({"steps": len(steps), "skipped": marked})
    expect(tuple(marked) == infinite, f"marked are {marked}, not {infinite}")


def identical(machine: Machine) -> None:
    """Losses and weights, bit by bit."""
    torch.use_deterministic_algorithms(True)

    def train(*, is_watched: bool = False) -> tuple[list[float], str]:
        training = Training(
            machine, machine.size(256, 8), 4, dropout=0.1,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        )  # fmt: skip
        if is_watched:
            ci.watch(training.net)
        training.run(machine.size(200, 20))
        state = hashlib.sha256()
        for parameter in training.net.parameters():
            state.update(parameter.detach().cpu().numpy().tobytes())
        return training.told(), state.hexdigest()

    expected = train()
    if train() != expected:
        raise CheckError("untraced, two runs differ: nothing can be shown")
    with traced(snapshots="stats", cuda_memory=True) as session:
        found = train(is_watched=True)
    taken = session.health["snapshots"]["count"]
    machine.figures.update(
        {"steps": len(session.find("step")), "snapshots": taken, "last_loss": found[0][-1]}
    )
    expect(taken == 1, f"{taken} snapshots at the end of one epoch")
    expect(found == expected, "the runs differ")
