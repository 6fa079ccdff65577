"""Ways of iterating over loaders: wrapped, zipped, nested, fetched explicitly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

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
    """A progress bar around enumerate(loader)."""
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
    """itertools.islice takes the first two of three batches."""
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
    """A generator of the program restarts the loader until a number of steps is reached."""
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
    """Explicit `next`, with `except StopIteration: batches = iter(loader)`."""
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
    """itertools.cycle: from the second round on, no loader is read."""
    training = Training()
    for _, batch in zip(range(5), itertools.cycle(parts.loader()), strict=False):
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
def prefetcher(ci: Any) -> Any:
    """A handwritten prefetcher, which fetches the next batch before it returns the current one."""
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
    """zip of two loaders, the second one shorter: the first one's last batch is never used."""
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
    """zip of a loader and itertools.cycle over a shorter one."""
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
    """A loader of tasks, each with a loader of its own."""
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
    """Each epoch reads two loaders, one after the other."""
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
    """The dataset raises, which ends the loop; then the epoch starts again."""
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
    """A fetch raises and is caught within the loop, which continues with the next fetch."""
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
