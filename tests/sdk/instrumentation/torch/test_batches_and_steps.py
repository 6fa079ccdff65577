"""The owner of a batch and the end of a step, in kinds of loops that public programs contain.

They are no rows of the comparison with other tools in docs/torch-conformance.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from .judging import faults
from .loops import Loop, Run, parts
from .loops.parts import Training
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
def acting_after_zero_grad(ci: Any) -> Any:
    """A step that begins with zero_grad contains all forwards up to its backward."""
    policy = parts.network()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        policy(torch.ones(1, parts.INPUTS)).argmax().item()
        policy(torch.ones(3, parts.INPUTS)).sum().backward()
        optimizer.step()


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


# --- passes whose batches are not used ------------------------------------------------------------


@loop("""
cirron.session
  loader_pass
    data_load x3
  loader_pass
    data_load x2
  step[0]
    zero_grad
    forward
    loss
    backward
    optimizer_step
  eval[0]
    forward
    loss
  step[1]
    zero_grad
    forward
    loss
    backward
    optimizer_step
  eval[1]
    forward
    loss
""")
def data_in_one_tensor(ci: Any) -> Any:
    """Loaders only fill tensors; the training that follows has no loader."""
    training = Training()
    train, held_out = (
        [torch.cat(parts_of) for parts_of in zip(*parts.loader(count), strict=True)]
        for count in (6, 4)
    )
    for _ in range(2):
        training.model.train()
        training.step(train)
        training.model.eval()
        with torch.no_grad():
            training.evaluate([held_out])
    return training.losses


@loop("""
cirron.session
  loader_pass
    data_load x3
  step[0-3]
    zero_grad
    forward
    loss
    backward
    optimizer_step
""")
def statistics_in_a_generator(ci: Any) -> Any:
    """A generator expression reads the loader; its last batch dies with it."""
    training = Training()
    mean = sum(x.sum().item() for x, _ in parts.loader())
    for _ in range(4):
        training.step((torch.ones(2, parts.INPUTS) + mean, torch.ones(2, 1)))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  loader_pass
    data_load x2
  epoch[1]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  loader_pass
    data_load x3
""")
def loader_timed_between_epochs(ci: Any) -> Any:
    """Two batches are fetched to measure the loader, and all labels are read in evaluation mode."""
    training = Training()
    loader = parts.loader()
    labels = []
    for epoch in range(2):
        for batch in loader:
            training.step(batch)
        if epoch == 0:
            for number, _ in enumerate(loader):
                if number == 1:
                    break
    training.model.eval()
    for _, y in loader:
        labels += y.flatten().tolist()
    return training.losses, labels


@loop("""
cirron.session
  loader_pass
    data_load x3
  loader_pass
    data_load x2
  step[0-2]
    zero_grad
    forward
    loss
    backward
    optimizer_step
  eval[0]
    forward
    loss
    forward
    loss
  step[3-5]
    zero_grad
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
def batches_of_two_loaders_in_lists(ci: Any) -> Any:
    """The batches of both loaders are kept; a batch that is used later is no fetch's batch."""
    training = Training()
    train, held_out = list(parts.loader()), list(parts.loader(4))
    for _ in range(2):
        training.model.train()
        for batch in train:
            training.step(batch)
        training.model.eval()
        with torch.no_grad():
            training.evaluate(held_out)
    return training.losses


# --- loaders with their own `__iter__` ------------------------------------------------------------


class Repeating:
    """A sampler that begins again for ever."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Endless(DataLoader[Any]):
    """A loader that keeps one iterator, and counts the batches of an epoch itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = len(self.batch_sampler)
        object.__setattr__(self, "batch_sampler", Repeating(self.batch_sampler))
        self.kept: Any = None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        if self.kept is None:
            self.kept = super().__iter__()
        for _ in range(self.count):
            yield next(self.kept)


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[1]
    step[0-1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  eval[1]
    data_load
    forward
    loss
    data_load
    forward
    loss
""")
def endless_loaders(ci: Any) -> Any:
    """Both loaders never end; the second epoch is left by a break."""
    training = Training()
    train, held_out = Endless(parts.points(6), 2), Endless(parts.points(4), 2)
    for epoch in range(2):
        training.model.train()
        for number, batch in enumerate(train):
            training.step(batch)
            if epoch == number == 1:
                break
        training.model.eval()
        with torch.no_grad():
            training.evaluate(held_out)
    return training.losses


class Doubling(DataLoader[Any]):
    """A loader that changes the batches of a usual iterator."""

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield 2 * x, y


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def loader_that_changes_batches(ci: Any) -> Any:
    """A generator as `__iter__` that reads a new iterator in each epoch."""
    training = Training()
    for _ in range(2):
        for batch in Doubling(parts.points(6), 2):
            training.step(batch)
    return training.losses


class Cycling(DataLoader[Any]):
    """A loader that begins again for ever, with a new iterator each time."""

    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def loader_that_cycles(ci: Any) -> Any:
    """Each iterator that a generator exhausts is an epoch."""
    training = Training()
    for number, batch in enumerate(Cycling(parts.points(6), 2)):
        training.step(batch)
        if number == 4:
            break
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[1]
    step[0-1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  epoch[2]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def loader_of_torchdata_nodes(ci: Any) -> Any:
    """torchdata.nodes: one iterator for all epochs; the second epoch is left by a break."""
    nodes = pytest.importorskip("torchdata.nodes")
    training = Training()

    def loader(count: int) -> Any:
        data = parts.points(count)
        sampler = nodes.IterableWrapper(range(count))
        mapped = nodes.Mapper(sampler, lambda index: data[index])
        batches = nodes.Batcher(mapped, batch_size=2)
        return nodes.Loader(nodes.Mapper(batches, torch.utils.data.default_collate))

    train, held_out = loader(6), loader(4)
    for epoch in range(3):
        training.model.train()
        for number, batch in enumerate(train):
            training.step(batch)
            if epoch == number == 1:
                break
        if epoch == 0:
            training.model.eval()
            with torch.no_grad():
                training.evaluate(held_out)
    return training.losses


# --- backwards without an optimizer ---------------------------------------------------------------


def _update_data(model: nn.Module) -> None:
    for each in model.parameters():
        each.data.sub_(each.grad.data, alpha=0.01)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
""")
def updates_of_data_and_zeros(ci: Any) -> Any:
    """Weights are changed through `.data`, and the gradients are set to zero afterwards."""
    training = Training()
    for _ in range(2):
        for batch in parts.loader():
            training.backward(batch)
            _update_data(training.model)
            for each in training.model.parameters():
                each.grad.detach_()
                each.grad.zero_()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
""")
def updates_of_data_after_zero_grad(ci: Any) -> Any:
    """The gradients are removed after the fetch of the next batch."""
    training = Training()
    for _ in range(2):
        for batch in parts.loader():
            training.model.zero_grad()
            training.backward(batch)
            _update_data(training.model)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
    step[2]
      data_load
      forward
      loss
    step[3-4]
      data_load
      forward
      loss
      backward
""")
def updates_of_data_and_a_batch_without_backward(ci: Any) -> Any:
    """Gradients are set to zero through `.data` after the update; one batch is skipped."""
    training = Training()
    for number, batch in enumerate(parts.loader(10)):
        if number == 2:
            training.losses.append(training.loss(batch).item())
            continue
        training.backward(batch)
        _update_data(training.model)
        for each in training.model.parameters():
            each.grad.data.zero_()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
    step[2]
      data_load
      forward
      loss
    step[3-4]
      data_load
      forward
      loss
      backward
""")
def zeros_before_a_batch_without_backward(ci: Any) -> Any:
    """Gradients are set to zero through `.data` at the start of an iteration."""
    training = Training()
    for number, batch in enumerate(parts.loader(10)):
        for each in training.model.parameters():
            if each.grad is not None:
                each.grad.data.zero_()
        if number == 2:
            training.losses.append(training.loss(batch).item())
            continue
        training.backward(batch)
        _update_data(training.model)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
        clip_grad
    step[1]
      micro_step[0]
        data_load
        zero_grad
        forward
        loss
        backward
        clip_grad
      micro_step[1]
        data_load
        forward
        loss
        backward
        clip_grad
""")
def updates_of_data_after_two_batches(ci: Any) -> Any:
    """Gradients of two batches are added, each clipped, and nothing of torch.optim is used."""
    training = Training()
    for number, batch in enumerate(parts.loader(8)):
        if number == 2:
            training.model.zero_grad()
        training.backward(batch, parts=2)
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        if number % 2:
            _update_data(training.model)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
        clip_grad
      optimizer_step
      zero_grad
""")
def clipping_every_batch(ci: Any) -> Any:
    """Gradients of two batches are added, and clipped after each: clipping removes none."""
    training = Training()
    for number, batch in enumerate(parts.loader(8)):
        training.backward(batch, parts=2)
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        if number % 2:
            training.update()
    return training.losses


class Words(nn.Module):
    """A model whose first parameter is a table of which a batch uses the end only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(1_000, 4), nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.table(999 - x.long().sum(dim=1).abs() % 3))


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
        clip_grad
      optimizer_step
      zero_grad
""")
def clipping_a_table_every_batch(ci: Any) -> Any:
    """The first rows of the gradient are zero, and clipping changes it: it is not removed."""
    training = Training(Words())
    for number, batch in enumerate(parts.loader(8)):
        training.backward(batch, parts=2)
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        if number % 2:
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0]
        data_load
        zero_grad
        forward
        loss
        backward
      micro_step[1]
        data_load
        forward
        loss
        backward
""")
def scaling_gradients_of_a_table(ci: Any) -> Any:
    """The program scales the gradients after each batch, and updates the weights itself."""
    training = Training(Words())
    for number, batch in enumerate(parts.loader(8)):
        if number % 2 == 0:
            training.model.zero_grad()
        training.backward(batch)
        for parameter in training.model.parameters():
            parameter.grad.mul_(0.5)
        if number % 2:
            _update_data(training.model)
    return training.losses


class Restarting(DataLoader[Any]):
    """A loader that replaces its exhausted iterator while the exception is being handled."""

    kept: Any = None

    def __iter__(self) -> Any:
        if self.kept is None:
            self.kept = super().__iter__()
        for _ in range(len(self)):
            try:
                batch = next(self.kept)
            except StopIteration:
                self.kept = super().__iter__()
                batch = next(self.kept)
            yield batch


@loop("""
cirron.session
  epoch[0-2]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def loader_that_restarts_its_iterator(ci: Any) -> Any:
    """The iterator is found exhausted at the start of each later epoch."""
    training, train = Training(), Restarting(parts.points(6), 2)
    for _ in range(3):
        for batch in train:
            training.step(batch)
    return training.losses


class Answering(DataLoader[Any]):
    """A loader whose generator receives values and exceptions from the loop."""

    def __iter__(self) -> Any:
        factor: Any = None
        for x, y in super().__iter__():
            try:
                factor = yield x if factor is None else x * factor, y
            except KeyError:
                factor = 0


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def loader_that_receives_values(ci: Any) -> Any:
    """`send` and `throw` reach the generator."""
    training, batches = Training(), iter(Answering(parts.points(6), 2))
    training.step(next(batches))
    training.step(batches.send(3))
    training.step(batches.throw(KeyError()))
    assert next(batches, None) is None
    return training.losses


def _attack(model: nn.Module, x: Any) -> float:
    x = x.clone().requires_grad_()
    model(x).sum().backward()
    with torch.no_grad():
        return float(model(x + 0.1 * x.grad.sign()).sum())


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    backward
    forward
    data_load
    forward
    backward
    forward
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def attacks_between_epochs(ci: Any) -> Any:
    """A model in evaluation mode is attacked; nothing removes the gradients of its weights."""
    training = Training()
    found = []
    for epoch in range(2):
        training.model.train()
        for batch in parts.loader():
            training.step(batch)
        if epoch == 0:
            training.model.eval()
            found = [_attack(training.model, x) for x, _ in parts.loader(4)]
    return training.losses, found


@loop("""
cirron.session
  eval[0]
    data_load
    zero_grad
    forward
    backward
    data_load
    zero_grad
    forward
    backward
    data_load
    zero_grad
    forward
    backward
""")
def saliency_of_a_loaded_model(ci: Any) -> Any:
    """A model that was never trained here, in evaluation mode; zero_grad before each backward."""
    model = parts.network().eval()
    for x, _ in parts.loader():
        model.zero_grad()
        model(x).sum().backward()
    return [each.grad.sum().item() for each in model.parameters()]


@loop("""
cirron.session
  eval[0]
    data_load
    forward
    backward
    data_load
    forward
    backward
    data_load
    forward
    backward
""")
def gradients_of_a_loaded_model(ci: Any) -> Any:
    """The same with torch.autograd.grad."""
    model = parts.network().eval()
    parameters = list(model.parameters())
    return [
        torch.autograd.grad(model(x).sum(), parameters)[0].sum().item() for x, _ in parts.loader()
    ]


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      backward
""")
def fisher_information(ci: Any) -> Any:
    """Squared gradients of a model in training mode: a step for each batch, without an update."""
    model = parts.network()
    total = 0.0
    for x, _ in parts.loader():
        model.zero_grad()
        model(x).sum().backward()
        total += sum(each.grad.pow(2).sum().item() for each in model.parameters())
    return total


@loop("""
cirron.session
  epoch[0]
    step[0]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
      zero_grad
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
      zero_grad
""")
def accumulation_in_evaluation_mode(ci: Any) -> Any:
    """A model is trained in evaluation mode, with the gradients of two batches in each step."""
    training = Training()
    training.model.eval()
    for number, batch in enumerate(parts.loader(8)):
        training.backward(batch, parts=2)
        if number % 2:
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
""")
def manual_updates_in_evaluation_mode(ci: Any) -> Any:
    """Weights are changed in place, by no optimizer, in evaluation mode."""
    training = Training()
    training.model.eval()
    for _ in range(2):
        for batch in parts.loader():
            training.model.zero_grad()
            training.backward(batch)
            with torch.no_grad():
                for each in training.model.parameters():
                    each.sub_(each.grad, alpha=0.01)
    return training.losses


# --- several loaders in turns ---------------------------------------------------------------------


@loop("""
cirron.session
  epoch[0]
    step[0-8]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def three_tasks_in_turn(ci: Any) -> Any:
    """A batch of each of three loaders, each with an optimizer step."""
    training = Training()
    tasks = [iter(parts.loader()) for _ in range(3)]
    for _ in range(3):
        for batches in tasks:
            training.step(next(batches))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def two_optimizers_with_a_loader_each(ci: Any) -> Any:
    """Two models, each with its loader and its optimizer: one step for each iteration."""
    first, second = Training(), Training()
    for one, other in [(iter(parts.loader()), iter(parts.loader()))]:
        for _ in range(3):
            first.step(next(one))
            second.step(next(other))
    return first.losses, second.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-4]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
""")
def two_iterators_over_one_data_set(ci: Any) -> Any:
    """Both iterators are read in turn: from the second one on, they share an epoch."""
    training = Training()
    data = parts.points(6)
    one, other = iter(DataLoader(data, 2)), iter(DataLoader(data, 2))
    for _ in range(3):
        training.step(next(one))
        training.step(next(other))
    return training.losses


# --- evaluations through a generator that fetches ahead -------------------------------------------

EVALUATED_AHEAD = """
cirron.session
  epoch[0]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load x3
    forward
    loss
    data_load
    forward
    loss
    forward
    loss
    forward
    loss
  checkpoint_save
  epoch[1]
    step[0-2]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
  eval[1]
    data_load x3
    forward
    loss
    data_load
    forward
    loss
    forward
    loss
    forward
    loss
  checkpoint_save
"""


def two_ahead(loader: Any) -> Iterator[Any]:
    """Its batches, two of them fetched ahead."""
    ready: list[Any] = []
    for batch in loader:
        ready.append(batch)
        if len(ready) > 2:
            yield ready.pop(0)
    yield from ready


def _validate_ahead(training: Training, validation: Any) -> None:
    training.model.eval()
    training.evaluate(two_ahead(validation))
    training.model.train()
    torch.save(training.model.state_dict(), io.BytesIO())


@loop(EVALUATED_AHEAD)
def evaluation_ahead_without_gradients(ci: Any) -> Any:
    """The last batches are used after the iterator is exhausted; a checkpoint follows."""
    training = Training()
    for _ in range(2):
        for batch in parts.loader():
            training.step(batch)
        with torch.no_grad():
            _validate_ahead(training, parts.loader(8))
    return training.losses


@loop(EVALUATED_AHEAD)
def evaluation_ahead_with_gradients(ci: Any) -> Any:
    """The same with gradients on, and the model in evaluation mode."""
    training = Training()
    for _ in range(2):
        for batch in parts.loader():
            training.step(batch)
        _validate_ahead(training, parts.loader(8))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
    eval[0]
      data_load x3
      forward
      loss
      forward
      loss
      forward
      loss
    step[1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
    eval[1]
      data_load x3
      forward
      loss
      forward
      loss
      forward
      loss
  eval[2]
    forward
""")
def evaluation_ahead_within_an_epoch(ci: Any) -> Any:
    """An evaluation after each step; a forward after the last one is another evaluation."""
    training = Training()
    for batch in parts.loader(4):
        training.step(batch)
        training.model.eval()
        with torch.no_grad():
            training.evaluate(two_ahead(parts.loader()))
        training.model.train()
    with torch.no_grad():
        return training.losses, training.model.eval()(torch.ones(3, parts.INPUTS)).tolist()


# --- classes that are defined after the hooks are installed ---------------------------------------


class DirectCall(nn.Module):
    """The base class of a library, which calls `forward` itself."""

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)


class Scale(DirectCall):
    """Part of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        return self.scale * x


class Scaled(DirectCall):
    """A model whose class defines `__call__`, too."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Scale()

    def __call__(self, x: Any) -> Any:
        return super().__call__(x)

    def forward(self, x: Any) -> Any:
        return self.part(self.part(x))


@loop("""
cirron.session
  step[0-2]
    zero_grad
    forward{module=Scaled}
    backward
    optimizer_step
  eval[0]
    forward{module=Scaled}
""")
def call_of_a_library(ci: Any) -> Any:
    """Models whose `__call__` never reaches that of nn.Module."""
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        _gradient_step(model, optimizer)
    model.eval()
    with torch.no_grad():
        return model(torch.ones(2)).tolist()


@loop("""
cirron.session
  step[0-1]
    zero_grad
    forward
    backward
    optimizer_step
    scheduler_step{scheduler=Halving}
""")
def scheduler_of_a_later_class(ci: Any) -> Any:
    """A scheduler that calls nothing of torch's schedulers in its `step`."""

    class Halving(torch.optim.lr_scheduler.LRScheduler):
        def step(self, epoch: int | None = None) -> None:  # noqa: ARG002
            self._step_count = getattr(self, "_step_count", 0) + 1
            for group in self.optimizer.param_groups:
                group["lr"] /= 2

    model = parts.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = Halving(optimizer)
    for _ in range(2):
        _gradient_step(model, optimizer)
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("case", LOOPS, ids=lambda case: case.name)
def test_a_loop_gives_its_tree_and_the_same_result(case: Loop, tmp_path: Path) -> None:
    bare = run(case, Untraced(), tmp_path)
    assert bare.error == ""
    traced = run(case, Ours(), tmp_path)
    if wrong := faults(case, traced, read(tmp_path)[0]):
        pytest.fail("\n".join([case.title, *wrong]), pytrace=False)
    assert traced.result == bare.result
