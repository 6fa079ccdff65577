"""The owner of a batch and the end of a step, in kinds of loops that public programs contain.

They are no rows of the comparison with other tools in docs/torch-conformance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .judging import faults
from .loops import Loop, Run, parts
from .tools import Ours, Untraced, run
from .trees import read

LOOPS: list[Loop] = []


def loop(tree: str) -> Callable[[Run], Run]:
    """Make a function one of the loops, with its expected tree."""

    def register(function: Run) -> Run:
        LOOPS.append(Loop(function.__name__, function, tree))
        return function

    return register


def _gradient_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, parts.INPUTS)).sum().backward()
    optimizer.step()


# --- forwards that no backward uses -------------------------------------------------------------


@loop("""
cirron.session
  forward x20
  step[0]
    forward x2
    zero_grad
    backward
    optimizer_step
  forward x3
  step[1]
    forward x2
    zero_grad
    backward
    optimizer_step
  forward x3
""")
def acting_with_gradients(ci: Any) -> Any:
    """An agent acts without no_grad; the target of a step is another network's."""
    policy, target = parts.network(), parts.network()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    actions = []
    for turn in range(26):
        actions.append(policy(torch.ones(1, parts.INPUTS)).argmax().item())
        if turn in (19, 22):
            with torch.no_grad():
                goal = target(torch.ones(3, parts.INPUTS))
            loss = (policy(torch.ones(3, parts.INPUTS)) - goal).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return actions


@loop("""
cirron.session
  step[0-2]
    zero_grad
    forward
    forward
    backward
    optimizer_step
""")
def detached_forward_of_another_model(ci: Any) -> Any:
    """A generator's output is detached: its forward is part of the critic's step."""
    generator, critic = parts.network(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        fake = generator(torch.ones(2, parts.INPUTS)).detach()
        critic(fake).sum().backward()
        optimizer.step()


@loop("""
cirron.session
  step[0-1]
    zero_grad
    forward
    backward
    optimizer_step
  eval[0]
    forward
    loss
    forward
    loss
  step[2-3]
    zero_grad
    forward
    backward
    optimizer_step
  eval[1]
    forward
    loss
    forward
    loss
""")
def evaluation_with_gradients(ci: Any) -> Any:
    """Without a loader, model.eval() and no no_grad: the forwards are no part of the next step."""
    model, criterion = parts.network(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for turn in range(4):
        _gradient_step(model, optimizer)
        if turn % 2:
            model.eval()
            for _ in range(2):
                total += criterion(model(torch.ones(3, parts.INPUTS)), torch.ones(3, 1)).item()
            model.train()
    return total


@loop("""
cirron.session
  eval[0]
    forward x2
  step[0]
    zero_grad
    forward
    backward
    optimizer_step
  eval[1]
    forward x2
  forward
""")
def evaluation_before_the_first_step(ci: Any) -> Any:
    """A model that an optimizer trains is evaluated before its first step; a teacher is not."""
    model, teacher = parts.network(), parts.network().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.no_grad()
    def estimate() -> None:
        model.eval()
        for _ in range(2):
            model(torch.ones(2, parts.INPUTS))
        model.train()

    estimate()
    _gradient_step(model, optimizer)
    estimate()
    with torch.no_grad():
        teacher(torch.ones(2, parts.INPUTS))


@loop("""
cirron.session
  step[0-2]
    zero_grad
    forward
    backward
    optimizer_step
""")
def trained_in_evaluation_mode(ci: Any) -> Any:
    """A model is trained in evaluation mode, without a loader."""
    model = parts.network().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        _gradient_step(model, optimizer)


# --- zero_grad ------------------------------------------------------------------------------------


@loop("""
cirron.session
  step[0-2]
    forward
    backward
    optimizer_step
    zero_grad
    forward
    backward
    optimizer_step
    zero_grad
""")
def zero_grad_after_the_last_of_two(ci: Any) -> Any:
    """Two optimizers, each followed by its zero_grad."""
    models = [parts.network(), parts.network()]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(2, parts.INPUTS)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@loop("""
cirron.session
  step[0-2]
    micro_step[0]
      zero_grad
      forward
      backward
    micro_step[1]
      forward
      backward
    optimizer_step
""")
def zero_grad_before_accumulating(ci: Any) -> Any:
    """The first of two backwards follows the zero_grad of its step."""
    model = parts.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.ones(2, parts.INPUTS)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("case", LOOPS, ids=lambda case: case.name)
def test_a_loop_gives_its_tree_and_the_same_result(case: Loop, tmp_path: Path) -> None:
    bare = run(case, Untraced(), tmp_path)
    assert bare.error == ""
    traced = run(case, Ours(), tmp_path)
    if wrong := faults(case, traced, read(tmp_path)[0]):
        pytest.fail("\n".join([case.title, *wrong]), pytrace=False)
    assert traced.result == bare.result
