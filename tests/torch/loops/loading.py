"""Where batches come from: loaders of every kind, and what is done with their iterators."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
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
    """Persistent workers: both epochs have the same iterator."""
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
    """A break with persistent workers, then a full epoch of the same iterator."""
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
    """An IterableDataset, whose length nobody knows."""
    training = Training()
    loader = DataLoader(parts.Stream(), batch_size=2)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def batches_of_the_dataset(ci: Any) -> Any:
    """A dataset that makes its batches itself: batch_size=None."""
    training = Training()
    ready = [(x.unsqueeze(0), y.unsqueeze(0)) for x, y in parts.points(3)]
    loader = DataLoader(ready, batch_size=None)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def batch_sampler(ci: Any) -> Any:
    """A batch sampler, and a loader that is made again for each epoch."""
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
    """One batch an epoch: the second is too short and left out."""
    training = Training()
    loader = parts.loader(3, drop_last=True)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop(TWO_EPOCHS)
def empty_loader(ci: Any) -> Any:
    """A loader without a batch, asked after each epoch."""
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
    """A StatefulDataLoader with a worker that another takes over in the middle of an epoch."""
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


class Bar:
    """A progress bar like tqdm: an iterable around another."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable
        self.count = 0

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for item in self.iterable:
            yield item
            self.count += 1


@loop(TWO_EPOCHS)
def progress_bar(ci: Any) -> Any:
    """A progress bar around enumerate around the loader."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        bar = Bar(loader)
        for number, batch in enumerate(bar):
            assert bar.count == number
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def islice(ci: Any) -> Any:
    """The first two of three batches: itertools.islice."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for batch in itertools.islice(loader, 2):
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def endless_generator(ci: Any) -> Any:
    """A generator of the user's that begins the loader again, for a number of steps."""
    training = Training()

    def forever(loader: Any) -> Iterator[Any]:
        while True:
            yield from loader

    for _, batch in zip(range(5), forever(parts.loader()), strict=False):
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def endless_by_hand(ci: Any) -> Any:
    """`next` by hand, and `except StopIteration: batches = iter(loader)`."""
    training = Training()
    loader = parts.loader()
    batches = iter(loader)
    for _ in range(5):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  step[0-1]
    forward
    loss
    backward
    optimizer_step
""")
def itertools_cycle(ci: Any) -> Any:
    """itertools.cycle: from the second round on there is no loader."""
    training = Training()
    for _, batch in zip(range(5), itertools.cycle(parts.loader()), strict=False):
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
    step[1-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  step[0]
    forward
    loss
    backward
    optimizer_step
""")
def prefetcher(ci: Any) -> Any:
    """A prefetcher by hand, which fetches the next batch before it hands out one."""
    training = Training()

    def ahead(loader: Any) -> Iterator[Any]:
        ready = None
        for following in loader:
            if ready is not None:
                yield ready
            ready = following
        yield ready

    for batch in ahead(parts.loader()):
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def zip_of_two(ci: Any) -> Any:
    """zip of two loaders of the same length."""
    training = Training()
    first, second = parts.loader(), parts.loader()
    for _ in range(2):
        for (x, _), (_, y) in zip(first, second, strict=False):
            training.step((x, y))
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-1]
      data_load
      data_load
      forward
      loss
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load
""")
def zip_with_shorter(ci: Any) -> Any:
    """zip of two loaders, the second the shorter: the last batch of the first is never used."""
    training = Training()
    labelled, unlabelled = parts.loader(6), parts.loader(4)
    for _ in range(2):
        for one, other in zip(labelled, unlabelled, strict=False):
            training.optimizer.zero_grad()
            (training.loss(one) + training.loss(other)).backward()
            training.optimizer.step()


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2-3]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def zip_with_cycle(ci: Any) -> Any:
    """zip of a loader with itertools.cycle of a shorter one."""
    training = Training()
    for (x, y), (noise, _) in zip(parts.loader(8), itertools.cycle(parts.loader(4)), strict=False):
        training.step((x + 0.01 * noise, y))
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      data_load
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
      data_load
      data_load
      forward
      loss
      backward
      optimizer_step
    step[3]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def loader_of_tasks(ci: Any) -> Any:
    """A loader within a loader: tasks, each with a loader of its own."""
    training = Training()
    tasks = DataLoader([0.0, 1.0], batch_size=None)
    for _ in range(2):
        for task in tasks:
            for x, y in parts.loader(4):
                training.step((x + task, y))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[2]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[3]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def one_loader_after_the_other(ci: Any) -> Any:
    """Two loaders in each epoch, one after the other."""
    training = Training()
    clean, noisy = parts.loader(6), parts.loader(4)
    for _ in range(2):
        for batch in clean:
            training.step(batch)
        for batch in noisy:
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
    step[2]
      data_load!
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def dataset_raises(ci: Any) -> Any:
    """The dataset raises, which ends the loop, and the epoch begins again."""
    training = Training()
    loader = DataLoader(parts.Broken(bad=4), batch_size=2)
    for _ in range(2):
        try:
            for batch in loader:
                training.step(batch)
        except ValueError:
            training.losses.append(-1.0)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load!
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def dataset_raises_and_goes_on(ci: Any) -> Any:
    """A fetch that raises, caught within the loop, which goes on with the next."""
    training = Training()
    batches = iter(DataLoader(parts.Broken(bad=2), batch_size=2))
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except ValueError:
            continue
        training.step(batch)
    return training.losses
