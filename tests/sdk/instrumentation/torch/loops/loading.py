"""Sources of batches: loaders, datasets, samplers and transforms of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from . import loop, parts
from .parts import Training

TWO_EPOCHS = """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
"""


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Sequential}
      loss{module=MSELoss}
      backward
      optimizer_step{optimizer=SGD}
""")
def plain(ci: Any) -> Any:
    """A loop over a DataLoader, two epochs."""
    training = Training()
    loader = parts.loader(shuffle=True)
    for _ in range(2):
        for x, y in loader:
            training.optimizer.zero_grad()
            loss = training.criterion(training.model(x), y)
            loss.backward()
            training.optimizer.step()
            training.losses.append(loss.item())
    return training.losses


@loop(TWO_EPOCHS)
def workers(ci: Any) -> Any:
    """Two loader workers."""
    training = Training()
    loader = parts.loader(num_workers=2, shuffle=True)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def persistent_workers(ci: Any) -> Any:
    """Persistent workers: both epochs use the same iterator."""
    training = Training()
    loader = parts.loader(num_workers=1, persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def persistent_workers_break(ci: Any) -> Any:
    """A break with persistent workers, then a complete epoch of the same iterator."""
    training = Training()
    loader = parts.loader(num_workers=1, persistent_workers=True)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            training.step(batch)
            if epoch == 0 and number == 1:
                break
    return training.losses


@loop(TWO_EPOCHS)
def looked_at(ci: Any) -> Any:
    """len(), isinstance() and a second iter() on a loader and its iterator."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        unused = iter(loader)
        batches = iter(loader)
        assert isinstance(loader, DataLoader)
        assert len(loader) == len(batches) == len(unused) == 3
        assert iter(batches) is batches
        for batch in iter(batches):
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def iterable_dataset(ci: Any) -> Any:
    """An IterableDataset of unknown length."""
    training = Training()
    loader = DataLoader(parts.Stream(), batch_size=2)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def batches_of_the_dataset(ci: Any) -> Any:
    """A dataset that builds its batches itself: batch_size=None."""
    training = Training()
    ready = [(x.unsqueeze(0), y.unsqueeze(0)) for x, y in parts.points(3)]
    loader = DataLoader(ready, batch_size=None)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def batch_sampler(ci: Any) -> Any:
    """A batch sampler, and a new loader for each epoch."""
    training = Training()
    dataset = parts.points(6)
    for epoch in range(2):
        order = SequentialSampler(dataset) if epoch else RandomSampler(dataset)
        loader = DataLoader(dataset, batch_sampler=BatchSampler(order, 2, drop_last=False))
        for batch in loader:
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0-2]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def one_batch(ci: Any) -> Any:
    """One batch per epoch: the second one would be too short and is dropped."""
    training = Training()
    loader = parts.loader(3, drop_last=True)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def empty_loader(ci: Any) -> Any:
    """A loader without batches is iterated over after each epoch."""
    training = Training()
    loader = parts.loader()
    nothing = parts.loader(1, drop_last=True)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
        for _ in nothing:
            raise AssertionError("it holds nothing")
    return training.losses


@loop(TWO_EPOCHS)
def transforms_are_modules(ci: Any) -> Any:
    """A dataset whose transforms are modules."""
    training = Training()
    transform = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False)

    def change(point: Any) -> Any:
        x, y = point
        return transform(x), y

    loader = DataLoader(parts.Changed(change), batch_size=2)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def transforms_in_workers(ci: Any) -> Any:
    """Transforms that are modules, in workers."""
    training = Training()
    noise = nn.Dropout(0.1)

    def change(point: Any) -> Any:
        x, y = point
        return noise(x), y

    loader = DataLoader(parts.Changed(change), batch_size=2, num_workers=2)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS, needs=("torchdata",))
def stateful_loader(ci: Any) -> Any:
    """torchdata's StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    training = Training()
    loader = StatefulDataLoader(parts.points(6), batch_size=2)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
            assert loader.state_dict()
    return training.losses


@loop(
    """
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
""",
    needs=("torchdata",),
)
def stateful_loader_resumed(ci: Any) -> Any:
    """A StatefulDataLoader with a worker; another one resumes it in the middle of an epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    training = Training()
    loader = StatefulDataLoader(parts.points(6), batch_size=2, num_workers=1)
    for number, batch in enumerate(loader):
        training.step(batch)
        if number == 1:
            state = loader.state_dict()
            break
    resumed = StatefulDataLoader(parts.points(6), batch_size=2, num_workers=1)
    resumed.load_state_dict(state)
    for batch in resumed:
        training.step(batch)
    return training.losses


class Moving(DataLoader[Any]):
    """A loader that moves its batches to a device, as many projects have one."""

    device = "cpu"

    def __iter__(self) -> Iterator[Any]:
        for x, y in super().__iter__():
            yield x.to(self.device), y.to(self.device)


@loop(TWO_EPOCHS)
def loader_subclass(ci: Any) -> Any:
    """A DataLoader subclass whose __iter__ is a generator."""
    training = Training()
    loader = Moving(parts.points(6), batch_size=2)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses
