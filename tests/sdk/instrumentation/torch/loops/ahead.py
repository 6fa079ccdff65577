"""Batches that are fetched before the previous one is used, or that are never used."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from . import loop, parts
from .parts import Training

ONE_AHEAD = """
cirron.session
  epoch[0-1]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      forward
      loss
      backward
      optimizer_step
"""
ACCUMULATED = """
cirron.session
  epoch[0-1]
    step[0-1]
      micro_step[0]
        data_load x2
        forward
        loss
        backward
      micro_step[1]
        forward
        loss
        backward
      optimizer_step
"""


class Prefetcher:
    """The DataPrefetcher that many projects have copied."""

    def __init__(self, loader: Any) -> None:
        self.batches = iter(loader)
        self.preload()

    def preload(self) -> None:
        """Fetch the next batch."""
        self.batch = next(self.batches, None)

    def next(self) -> Any:
        """The batch that is there; the one behind it is fetched."""
        batch = self.batch
        if batch is not None:
            self.preload()
        return batch


def lookahead(loader: Any, depth: int = 1) -> Iterator[Any]:
    """Its batches, so many fetched ahead."""
    batches = iter(loader)
    ready = list(itertools.islice(batches, depth))
    while ready:
        ready += itertools.islice(batches, 1)
        yield ready.pop(0)


@loop(ONE_AHEAD)
def prefetcher_object(ci: Any) -> Any:
    """A prefetcher with `preload` and `next`."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        batches = Prefetcher(loader)
        while (batch := batches.next()) is not None:
            training.step(batch)
    return training.losses


@loop(ONE_AHEAD)
def prefetcher_and_workers(ci: Any) -> Any:
    """A prefetcher with `preload` and `next`, with persistent workers."""
    training = Training()
    loader = parts.loader(num_workers=1, persistent_workers=True)
    for _ in range(2):
        batches = Prefetcher(loader)
        while (batch := batches.next()) is not None:
            training.step(batch)
    return training.losses


@loop(ONE_AHEAD, needs=("torchdata",))
def prefetcher_and_stateful_loader(ci: Any) -> Any:
    """A prefetcher with `preload` and `next` over a StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    training = Training()
    loader = StatefulDataLoader(parts.points(6), batch_size=2)
    for _ in range(2):
        batches = Prefetcher(loader)
        while (batch := batches.next()) is not None:
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x3
      forward
      loss
      backward
      optimizer_step
    step[1-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[3-4]
      forward
      loss
      backward
      optimizer_step
""")
def two_batches_ahead(ci: Any) -> Any:
    """A generator that fetches two batches ahead."""
    training = Training()
    for batch in lookahead(parts.loader(10), depth=2):
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      forward
      loss
      backward
      optimizer_step
""")
def prefetcher_and_break(ci: Any) -> Any:
    """A break while a batch that was fetched ahead is still unused."""
    training = Training()
    loader = parts.loader()
    for epoch in range(2):
        for batch in lookahead(loader):
            training.step(batch)
            if epoch == 0:
                break
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load!
  epoch[1]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      forward
      loss
      backward
      optimizer_step
""")
def prefetcher_and_exception(ci: Any) -> Any:
    """The dataset raises while a batch is fetched ahead."""
    training = Training()
    loader = DataLoader(parts.Broken(bad=4), batch_size=2)
    for _ in range(2):
        try:
            for batch in lookahead(loader):
                training.step(batch)
        except ValueError:
            training.losses.append(-1.0)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
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
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
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
def prefetcher_and_validation(ci: Any) -> Any:
    """A prefetcher, with a validation after each epoch."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    for _ in range(2):
        for batch in lookahead(loader):
            training.step(batch)
        with torch.no_grad():
            training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load x2
    forward
    loss
    forward
    loss
  eval[1]
    data_load x2
    forward
    loss
    forward
    loss
  epoch[1]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      forward
      loss
      backward
      optimizer_step
  eval[2]
    data_load x2
    forward
    loss
    forward
    loss
  eval[3]
    data_load x2
    forward
    loss
    forward
    loss
""")
def prefetcher_in_training_and_validation(ci: Any) -> Any:
    """As in timm: a generator fetches one batch ahead, also in the validation."""
    training = Training()
    for _ in range(2):
        training.model.train()
        for batch in lookahead(parts.loader(4)):
            training.step(batch)
        with torch.no_grad():
            training.evaluate(lookahead(parts.loader(4)))
        training.model.eval()
        training.evaluate(lookahead(parts.loader(4)))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
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
    step[1]
      data_load
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
    step[2]
      forward
      loss
      backward
      optimizer_step
  eval[2]
    data_load
    forward
    loss
    data_load
    forward
    loss
""")
def prefetcher_and_validation_within(ci: Any) -> Any:
    """A prefetcher, with a validation after each step."""
    training = Training()
    held_out = parts.loader(4)
    for batch in lookahead(parts.loader()):
        training.step(batch)
        with torch.no_grad():
            training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      micro_step[0]
        data_load x2
        forward
        loss
        backward
      micro_step[1]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[1]
      micro_step[0]
        data_load
        forward
        loss
        backward
      micro_step[1]
        forward
        loss
        backward
      optimizer_step
""")
def prefetcher_and_accumulation(ci: Any) -> Any:
    """Two batches per step, each fetched one batch ahead."""
    training = Training()
    for number, batch in enumerate(lookahead(parts.loader(8)), start=1):
        training.backward(batch, 2)
        if number % 2 == 0:
            training.update()
    return training.losses


@loop(ACCUMULATED)
def batches_of_a_step_first(ci: Any) -> Any:
    """Both batches of a step are fetched first, as in the Trainer of transformers."""
    training = Training()
    loader = parts.loader(8)
    for _ in range(2):
        batches = iter(loader)
        for _ in range(2):
            for batch in [next(batches) for _ in range(2)]:
                training.backward(batch, 2)
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0]
        data_load x2
        forward
        loss
        backward
      micro_step[1]
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
      micro_step[0]
        data_load x2
        forward
        loss
        backward
      micro_step[1]
        forward
        loss
        backward
      optimizer_step
""")
def batches_of_a_step_first_in_eval_mode(ci: Any) -> Any:
    """Both batches fetched first, with a validation between; model.train() follows the fetches."""
    training = Training()
    loader, held_out = parts.loader(8), parts.loader(4)
    for epoch in range(2):
        batches = iter(loader)
        for _ in range(2):
            some = [next(batches) for _ in range(2)]
            training.model.train()
            for batch in some:
                training.backward(batch, 2)
            training.update()
        if epoch == 0:
            del batches
            training.model.eval()
            with torch.no_grad():
                training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      micro_step[0]
        data_load x2
        forward
        loss
        backward
      micro_step[1]
        forward
        loss
        backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def batches_of_a_step_first_and_a_rest(ci: Any) -> Any:
    """All batches of a step are fetched first; the last step of an epoch has one batch less."""
    training = Training()
    loader = parts.loader(6)
    for _ in range(2):
        batches = iter(loader)
        while some := list(itertools.islice(batches, 2)):
            for batch in some:
                training.backward(batch, 2)
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[3]
      forward
      loss
      backward
      optimizer_step
""")
def chunks_of_two(ci: Any) -> Any:
    """Two batches are fetched at a time; each is a step of its own."""
    training = Training()
    batches = iter(parts.loader(8))
    while some := list(itertools.islice(batches, 2)):
        for batch in some:
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load x2
      forward
      loss
      backward
      optimizer_step
""")
def batches_joined(ci: Any) -> Any:
    """Two batches are fetched and concatenated into one."""
    training = Training()
    waiting: list[Any] = []
    for batch in parts.loader(8):
        waiting.append(batch)
        if len(waiting) == 2:
            training.step([torch.cat(parts) for parts in zip(*waiting, strict=True)])
            waiting.clear()
    return training.losses


class Reversed(nn.Module):
    """A model of a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = parts.network()

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.inner(inputs["x"])


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      forward
      loss
      backward
      optimizer_step
""")
def prefetched_dictionaries(ci: Any) -> Any:
    """Batches are dictionaries; the model gets a new dictionary with a view of the data."""
    training = Training(Reversed())
    points = [{"x": x, "y": y} for x, y in parts.points(6)]
    for batch in lookahead(DataLoader(points, batch_size=2)):
        training.step(({"x": batch["x"].view(-1, 4)}, batch["y"]))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
      forward
      loss
      backward
      optimizer_step
    step[2]
      forward
      loss
      backward
      optimizer_step
      forward
      loss
      backward
      optimizer_step
""")
def prefetcher_and_two_models(ci: Any) -> Any:
    """A prefetcher, and two models with an optimizer each, trained on the same batch."""
    first, second = Training(), Training()
    for batch in lookahead(parts.loader()):
        first.step(batch)
        second.step(batch)
    return first.losses, second.losses


@loop("""
cirron.session
  loader_pass
    data_load x3
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def statistics_with_gradients(ci: Any) -> Any:
    """A pass that computes the mean of the data with gradients enabled is not an epoch."""
    training = Training()
    loader = parts.loader()
    mean = sum(x.sum().item() for x, _ in loader) / 24
    for x, y in loader:
        training.step((x - mean, y))
    return training.losses


@loop("""
cirron.session
  loader_pass
    data_load x70
  epoch[0]
    data_load x65
    step[0]
      forward
      loss
      backward
      optimizer_step
    step[1-5]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def many_batches_skipped(ci: Any) -> Any:
    """Seventy batches are read without training; in the next pass the first 64 are skipped."""
    training = Training()
    loader = parts.loader(70, batch_size=1)
    for _ in loader:
        pass
    for number, batch in enumerate(loader):
        if number < 64:
            continue
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  step[0-5]
    forward
    loss
    backward
    optimizer_step
  loader_pass x2
    data_load x3
""")
def loader_in_a_thread(ci: Any) -> Any:
    """A background thread reads the loader and passes the batches through a queue."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        batches: queue.Queue[Any] = queue.Queue()

        def read(target: queue.Queue[Any] = batches) -> None:
            for batch in loader:
                target.put(batch)
            target.put(None)

        thread = threading.Thread(target=read)
        thread.start()
        while (batch := batches.get()) is not None:
            training.step(batch)
        thread.join()
    return training.losses


@loop("""
cirron.session
  loader_pass
    data_load x3
  step[0-5]
    forward
    loss
    backward
    optimizer_step
""")
def batches_in_a_list(ci: Any) -> Any:
    """All batches are fetched into a list, then trained on twice."""
    training = Training()
    batches = list(parts.loader())
    for _ in range(2):
        for batch in batches:
            training.step(batch)
    return training.losses
