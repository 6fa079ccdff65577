"""Loops without a loader: accumulation, manual updates, evaluations, modules without parameters.

They are no rows of the comparison with other tools in docs/torch-conformance.md.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import Tensor, nn
from torch.func import functional_call

import cirron_otel as ci

from .judging import faults
from .loops import Loop, Run, parts
from .loops.parts import Critic, Generator, Training
from .tools import Ours, Untraced, run
from .trees import read

LOOPS: list[Loop] = []


def loop(tree: str) -> Callable[[Run], Run]:
    """Make a function one of the loops, with its expected tree."""

    def register(function: Run) -> Run:
        LOOPS.append(Loop(function.__name__, function, tree))
        return function

    return register


@loop("""
cirron.session
  step[0-2]
    forward
    backward
    forward
    backward
    optimizer_step
""")
def no_loader_gradient_penalty(ci: Any) -> Any:
    """A gradient penalty by autograd.grad between two forwards: nothing is accumulated."""
    torch.manual_seed(0)
    critic = Critic()
    optimizer = torch.optim.Adam(critic.parameters())
    losses = []
    for _ in range(3):
        x = torch.randn(2, 4, requires_grad=True)
        real = critic(x)
        (gradient,) = torch.autograd.grad(real.sum(), x, create_graph=True)
        penalty = gradient.square().sum(1).mean()
        loss = penalty - real.mean() + critic(torch.randn(2, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-1]
    forward
    backward
    forward
    forward
    backward
    forward
    backward
    optimizer_step
""")
def no_loader_maml(ci: Any) -> Any:
    """MAML over two tasks: an inner step by autograd.grad and functional_call for each."""
    torch.manual_seed(0)
    model = Critic()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(2):
        outer = torch.zeros(())
        for _ in range(2):
            x, weights = torch.randn(2, 4), dict(model.named_parameters())
            loss = functional_call(model, weights, (x,)).square().mean()
            gradients = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
            adapted = {
                name: weight - 0.1 * gradient
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
            outer = outer + functional_call(model, adapted, (x,)).square().mean()
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
        losses.append(outer.item())
    return losses


@loop("""
cirron.session
  forward
  backward
  step[0-1]
    forward
    backward
    optimizer_step
""")
def no_loader_backward_before_the_optimizer_without_evaluation(ci: Any) -> Any:
    """A backward before the optimizer is constructed; the first step removes its gradients."""
    torch.manual_seed(0)
    model, data = Critic(), torch.randn(4, 4)
    model(data).mean().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0]
    micro_step[0-1]
      forward
      backward
    optimizer_step
  step[1-2]
    forward
    backward
    optimizer_step
""")
def no_loader_optimizer_in_the_step(ci: Any) -> Any:
    """An optimizer is constructed between two backwards that add up, then one before each step."""
    torch.manual_seed(0)
    model, data = Critic(), torch.randn(4, 4)
    model(data).mean().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(data).square().mean().backward()
    optimizer.step()
    losses = []
    for _ in range(2):
        model.zero_grad()
        out = model(data)
        loss = out.square().mean()
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-1]
    forward
    backward
    optimizer_step
  forward
  eval[0]
    forward
    loss
    forward
    loss
    forward
    loss
  forward
  loss
  step[2]
    forward
    backward
    optimizer_step
  eval[1]
    forward
""")
def no_loader_evaluation_beside_an_average(ci: Any) -> Any:
    """As in hlb-CIFAR10: an average of the weights and the model are evaluated in turn."""
    torch.manual_seed(0)
    model, data, criterion = Critic(), torch.randn(4, 4), nn.MSELoss()
    average = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        model.train()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    losses = []
    for _ in range(2):
        train()
    model.eval()
    with torch.no_grad():
        average(data)
        losses.append(criterion(model(data), data[:, :1]).item())
        losses.append(criterion(average(data), data[:, :1]).item())
        losses.append(criterion(model(data), data[:, :1]).item())
        losses.append(criterion(average(data), data[:, :1]).item())
    train()
    model.eval()
    with torch.no_grad():
        losses.append(model(data).mean().item())
    return losses


def _perturbed(model: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=by)


@loop("""
cirron.session
  step[0-2]
    forward
    backward
    forward
    backward
    optimizer_step
""")
def no_loader_sharpness(ci: Any) -> Any:
    """Sharpness-aware minimization: the weights change between two backwards of a step."""
    torch.manual_seed(0)
    model = Critic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(2, 4)
    losses = []
    for _ in range(3):
        model(x).square().mean().backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        _perturbed(model, 0.05)
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-2]
    forward
    backward
    forward
    backward
    forward
    backward
    optimizer_step
""")
def no_loader_adversarial(ci: Any) -> Any:
    """Two adversarial steps by backward, whose gradients are dropped, then the real one."""
    torch.manual_seed(0)
    model = Critic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        x = torch.randn(2, 4)
        for _ in range(2):
            x = x.detach().requires_grad_()
            model(x).sum().backward()
            x = x + 0.01 * x.grad.sign()
            optimizer.zero_grad()
        loss = model(x.detach()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-2]
    forward
    loss
    backward
    forward
    optimizer_step
""")
def no_loader_accuracy(ci: Any) -> Any:
    """The training accuracy is computed by a second forward, with gradients on, before the step."""
    training = Training()
    whole = parts.points(6).tensors
    for _ in range(3):
        training.backward(whole)
        training.losses.append(training.model(whole[0]).sum().item())
        training.update()
    return training.losses


@loop("""
cirron.session
  step[0-5]
    forward
    backward
    optimizer_step
""")
def no_loader_two_fits(ci: Any) -> Any:
    """Two models, one fitted after the other, each with an optimizer of its own."""
    torch.manual_seed(0)
    losses = []
    for _ in range(2):
        model = Critic()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-3]
    forward
    backward
    optimizer_step
""")
def no_loader_folds(ci: Any) -> Any:
    """Four folds of one step each: a new model and a new optimizer for each, all of which stay."""
    torch.manual_seed(0)
    kept, losses = [], []
    for _ in range(4):
        model = Critic()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        kept.append(optimizer)
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Flat(nn.Module):
    """Has no parameters, and calls a module that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        return self.flatten(x)


@loop("""
cirron.session
  forward{module=Generator} x3
  forward{module=Critic}
  step[0-2]
    forward{module=Generator}
    forward{module=Critic}
    backward
    optimizer_step
""")
def no_loader_extractor(ci: Any) -> Any:
    """A feature extractor without parameters comes before two models, in rollouts and updates."""
    torch.manual_seed(0)
    extractor, body, head = Flat(), Generator(), Critic()
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    losses = []
    with torch.no_grad():
        for _ in range(2):
            body(extractor(torch.randn(2, 3)))
        losses.append(head(body(extractor(torch.randn(2, 3)))).sum().item())
    extractor = Flat()  # unlike the other one, it is never called before a model
    for _ in range(3):
        optimizer.zero_grad()
        loss = head(body(extractor(torch.randn(2, 3)))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-5]
    forward
    backward
""")
def no_loader_weights_by_hand(ci: Any) -> Any:
    """SGD by hand without a loader: changes of the weights end the steps."""
    torch.manual_seed(0)
    model = Critic()
    losses = []
    for _ in range(6):
        model.zero_grad()
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        _perturbed(model, -0.05)
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0-2]
    micro_step[0-1]
      forward
      backward
  eval[0]
    forward x2
  step[3-5]
    micro_step[0-1]
      forward
      backward
""")
def no_loader_accumulation_by_hand(ci: Any) -> Any:
    """The same with gradients of two batches a step, and an evaluation in the middle."""
    torch.manual_seed(0)
    model = Critic()
    losses = []
    for number in range(6):
        for _ in range(2):
            loss = model(torch.randn(2, 4)).square().mean()
            loss.backward()
        _perturbed(model, -0.05)
        model.zero_grad()
        losses.append(loss.item())
        if number == 2:
            model.eval()
            with torch.no_grad():
                losses += [model(torch.randn(2, 4)).sum().item() for _ in range(2)]
            model.train()
    return losses


@loop("""
cirron.session
  step[0-1]
    forward
    loss
    backward
    optimizer_step
  eval[0]
    forward
    loss
    forward
    loss
  step[2-3]
    forward
    loss
    backward
    optimizer_step
  eval[1]
    forward
    loss
    forward
    loss
""")
def evaluations_without_loader(ci: Any) -> Any:
    """Two epochs over a list of batches, each followed by an evaluation over another list."""
    training = Training()
    batches = list(zip(*(part.split(3) for part in parts.points(6).tensors), strict=True))
    for _ in range(2):
        training.model.train()
        for batch in batches:
            training.step(batch)
        training.model.eval()
        with torch.no_grad():
            training.evaluate(batches)
    return training.losses


@loop("""
cirron.session
  forward{module=Critic}
  step[0]
    forward{module=Generator}
    backward
    optimizer_step
  forward{module=Critic}
  step[1]
    forward{module=Generator}
    backward
    optimizer_step
""")
def teacher_without_loader(ci: Any) -> Any:
    """A frozen teacher is called first, without gradients: it was not trained, so no evaluation."""
    torch.manual_seed(0)
    student, teacher = Generator(), Critic().eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    losses = []
    for _ in range(2):
        with torch.no_grad():
            target = teacher(torch.randn(2, 4))
        optimizer.zero_grad()
        loss = (student(torch.randn(2, 3)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  step[0]
    optimizer_step
      forward
      loss
      backward
  step[1]
    optimizer_step!
      forward
      loss
  step[2-3]
    optimizer_step
      forward
      loss
      backward
""")
def closure_that_raises(ci: Any) -> Any:
    """The error is caught, and the loop goes on."""
    training = Training()
    whole = parts.points().tensors
    for index in range(4):

        def closure(index: int = index) -> Tensor:
            training.optimizer.zero_grad()
            loss = training.loss(whole)
            if index == 1:
                raise ValueError
            loss.backward()
            training.losses.append(loss.item())
            return loss

        with contextlib.suppress(ValueError):
            training.optimizer.step(closure)
    return training.losses


@pytest.mark.parametrize("case", LOOPS, ids=lambda case: case.name)
def test_a_loop_without_a_loader_gives_its_tree(case: Loop, tmp_path: Path) -> None:
    bare = run(case, Untraced(), tmp_path)
    assert bare.error == ""
    traced = run(case, Ours(), tmp_path)
    assert traced.result == bare.result
    (recorded,) = read(tmp_path).values()
    assert faults(case, traced, recorded) == []


def test_other_processors_receive_upkeep_after_an_optimizer_step_once(tmp_path: Path) -> None:
    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ci.profile(output_dir=tmp_path, provider=provider, handle_signals=False)
    try:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        ci.shutdown()
        provider.shutdown()
    names = Counter(span.name for span in memory.get_finished_spans())
    assert (names["step"], names["optimizer_step"], names["zero_grad"]) == (3, 3, 3)
