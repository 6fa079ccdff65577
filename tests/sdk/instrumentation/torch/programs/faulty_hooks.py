"""Trains while one function of the hooks after the other raises, early and late.

    python -m tests.sdk.instrumentation.torch.programs.faulty_hooks DIRECTORY

Prints what is wrong: errors that reached the loop, losses that differ, epochs after the fault that
are not as they should be, faults that were not counted; and how often which function was called.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import cirron_otel as ci
import cirron_otel.sdk.instrumentation.torch as hooks
from cirron_otel.sdk.instrumentation import iteration
from cirron_otel.sdk.tracing import phase
from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.instrumentation.torch import trees

AT = (1, 7)
"""The calls that raise, by their number."""
NOT_IN_A_LOOP = {"install", "install_other", "remove", "_later", "after_fork",
                 "__del__"}  # fmt: skip
GUARDS = {
    "autograd._enter", "loaders.fetch", "loaders.fail",
    "loaders._is_none", "Modules.enter",
    "optimizers.begin", "optimizers.begin_step", "optimizers.begin_plain", "optimizers.end_step",
    "recovery.start_over", "OpenPhases.enter", "OpenPhases.enter_plain", "OpenPhases.exit",
    "OpenPhases.exit_plain", "OpenPhases.drop", "Tracker.training_begins", "OpenStep.failed",
    "loaders.exhausted",
    "upkeep._is_free", "upkeep._attributes_of", "upkeep._add",
    "Tracker.fetched", "Tracker.watch_gradients", "LoaderlessSteps.returned",
    "Losses.mark", "Norms._mark", "Scaling._scaled",
}  # fmt: skip
"""Those that keep errors from the loop: what they call is made to raise."""
EPOCH = trees.parse("""
epoch[0]
  step[0-3]
    data_load
    forward
    loss
    backward
    optimizer_step
""")


class FaultError(Exception):
    """What is raised."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Loop:
    """Epochs, accumulation with a tail, evaluations, a loop that is left, one without a loader."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model, self.criterion = Net(), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[float] = []
        self.data = torch.rand(8, 2)

    def epoch(self, accumulate: int = 1, leave: int = 9) -> None:
        for number, x in enumerate(DataLoader(self.data, 2), 1):
            loss = self.criterion(self.model(x), x[:, :1])
            loss.backward()
            if number % accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.losses.append(loss.item())
            if number == leave:
                break

    def evaluate(self) -> None:
        with torch.no_grad():
            for x in DataLoader(self.data, 4):
                self.losses.append(self.criterion(self.model(x), x[:, :1]).item())

    def without_loader(self) -> None:
        for x in (self.data, self.data):
            self.criterion(self.model(x), x[:, :1]).backward()
            self.optimizer.step()

    def run(self) -> list[float]:
        self.without_loader()
        self.epoch()
        self.evaluate()
        self.epoch(accumulate=3)
        self.epoch(leave=2)
        next(iter(DataLoader(self.data, 2)))
        with contextlib.suppress(ZeroDivisionError):
            self.model.inner.register_forward_hook(_fail)
            self.epoch()
        self.model.inner._forward_hooks.clear()
        self.evaluate()
        return self.losses


def _fail(*_: Any) -> None:
    raise ZeroDivisionError


class Failing:
    """Replaces a function, and raises at call number `at`."""

    def __init__(self, original: Any, at: int = 0) -> None:
        self.original, self.at, self.calls = original, at, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise FaultError(self.original.__name__)
        return self.original(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else lambda *a, **k: self(instance, *a, **k)


Places = list[tuple[Any, str]]
"""What has a function, and its name there: it is replaced in each."""


@contextlib.contextmanager
def failing(places: Places, at: int) -> Iterator[Failing]:
    made = Failing(getattr(*places[0]), at)
    for owner, name in places:
        setattr(owner, name, made)
    try:
        yield made
    finally:
        for owner, name in places:
            setattr(owner, name, made.original)


def counted(every: Sequence[tuple[str, Places]], directory: Path) -> list[int]:
    """How often the loop calls each of the functions, in a session in which none raises.

    Up to the call that raises, a session with a fault is like this one.
    """
    ci.profile(output_dir=directory, frameworks=["torch"], join="none")
    try:
        with contextlib.ExitStack() as stack:
            made = {
                place: stack.enter_context(failing([place], at=0))
                for place in {place: None for _, places in every for place in places}
            }
            Loop().run()
    finally:
        ci.shutdown()
    return [sum(made[place].calls for place in places) for _, places in every]


def faults(directory: Path, places: Places, at: int, expected: list[float]) -> Any:
    """What is wrong when a function raises; None if it was not called so often."""
    profiler = ci.profile(output_dir=directory, frameworks=["torch"], join="none")
    wrong, loop = [], Loop()
    try:
        with failing(places, at) as fault:
            try:
                losses = loop.run()
            except BaseException as error:
                ci.shutdown()
                return [f"raised {error!r}"]
        loop.epoch()
        loop.epoch()
    finally:
        ci.shutdown()
    if fault.calls < at:
        return None
    if losses[: len(expected)] != expected:
        wrong.append("other losses")
    if not sum(profiler.health()["swallowed_errors"].values()):
        wrong.append("not counted")
    return wrong + spoiled(directory)


def functions() -> Iterator[tuple[str, Places]]:
    """Every function of the hooks: what it is called, and where it is."""
    names = [f"{hooks.__name__}.{found.name}" for found in pkgutil.iter_modules(hooks.__path__)]
    modules = {
        name: importlib.import_module(name) for name in [*names, iteration.__name__, phase.__name__]
    }
    for name, module in modules.items():
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == name:
                for method, each in list(vars(value).items()):
                    if isinstance(each, FunctionType) and method not in NOT_IN_A_LOOP:
                        yield f"{key}.{method}", [(value, method)]
            elif isinstance(value, FunctionType) and value.__module__ == name:
                places = [
                    (m, k) for m in modules.values() for k, v in vars(m).items() if v is value
                ]
                yield f"{name.rpartition('.')[2]}.{key}", places
            elif isinstance(value, FunctionType) and value.__module__ == phase.__name__:
                yield f"{name.rpartition('.')[2]}.{key}", [(module, key)]


def spoiled(directory: Path) -> list[str]:
    """What is wrong with the last epochs."""
    spool = read_spool(directory)
    if spool.roots != spool.sessions or spool.lost:
        return ["something hangs nowhere"]
    session = spool.session
    found = [each for each in session.children if each.name == "epoch"][-2:]
    wrong = [] if found[-1:] == session.children[-1:] else ["the last epoch is not the last scope"]
    for each in found:
        node = trees._node(each, trees._threads(session))
        EPOCH.index = node.index
        difference = trees.difference(EPOCH, node)
        wrong += [difference] if difference else trees.time_faults(node)
    return wrong


def main() -> None:
    torch.set_num_threads(1)
    logging.disable()
    expected = Loop().run()
    wrong, called = {}, []
    every = list(functions())
    counts = counted(every, Path(sys.argv[1], "calls"))
    for (what, places), count in zip(every, counts, strict=True):
        for at in AT:
            if count < at or what in GUARDS:
                break
            directory = Path(sys.argv[1], f"{what}-{at}")
            found = faults(directory, places, at, expected)
            if found is None:
                break
            called.append(what)
            if found:
                wrong[f"{what} {at}"] = found
    print(json.dumps({"called": called, "wrong": wrong}))


if __name__ == "__main__":
    main()
