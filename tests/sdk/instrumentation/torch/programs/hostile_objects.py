"""Trains with models, loaders and optimizers that do what nobody expects of them.

    python -m tests.sdk.instrumentation.torch.programs.hostile_objects DIRECTORY

Prints, by the case, whether it computed (or raised) the same with and without tracing, how many
scopes of each name there are, and what was counted.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import cirron_otel as ci
from tests.kit.sessions.spool_trees import read_spool


class NoError(Exception):
    """What a hostile object raises where nobody asks it to."""


class Net(nn.Module):
    """A model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class NoParameters(Net):
    def parameters(self, recurse: bool = True) -> Any:
        if self.__dict__.get("is_done"):
            raise NoError
        return super().parameters(recurse)


class OwnCall(Net):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


class NoTruth(Net):
    def __bool__(self) -> bool:
        raise NoError

    def __len__(self) -> int:
        raise NoError


class NoHash(Net):
    def __hash__(self) -> int:
        if self.__dict__.get("is_done"):
            raise NoError
        return 1

    def __eq__(self, other: object) -> bool:
        raise NoError


class NoMode(Net):
    @property
    def training(self) -> bool:  # type: ignore[override]
        if self.__dict__.get("is_done"):
            raise NoError
        return True

    @training.setter
    def training(self, value: bool) -> None: ...


class NoAttributes(Net):
    def __getattr__(self, name: str) -> Any:
        if name not in ("inner", "weight", "bias"):
            raise NoError
        return super().__getattr__(name)


class Sealed(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        raise NoError


class NoPatching(Net, metaclass=Sealed):
    """Nothing can be set on its class."""


class Strange(DataLoader[Any]):
    """Has no attribute that it was not given."""

    def __getattr__(self, name: str) -> Any:
        raise NoError


class OwnIterator(DataLoader[Any]):
    """Gives an iterator of its own, without a weak reference."""

    class Slotted:
        __slots__ = ("inner",)

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return next(self.inner)

    def __iter__(self) -> Any:
        return OwnIterator.Slotted(super().__iter__())


class NoWeakReference:
    """An iterable for `ci.batches`."""

    __slots__ = ("rows",)

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        raise NoError

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows.split(2))


class Duck:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters: Any) -> None:
        self.given = list(parameters)

    def __getattr__(self, name: str) -> Any:
        if name == "step":
            return self._step
        raise NoError

    def _step(self) -> None:
        with torch.no_grad():
            for each in self.given:
                each.sub_(each.grad, alpha=0.1)

    def zero_grad(self) -> None:
        for each in self.given:
            each.grad = None


class NoClosure(torch.optim.SGD):
    """Its step takes what others do not."""

    def step(self, *, twice: bool = True) -> None:  # type: ignore[override]
        super().step()
        if twice:
            super().step()


def _own_step(parameters: Any) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.step = optimizer.step  # type: ignore[method-assign]
    return optimizer


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


Case = tuple[type[nn.Module], Callable[[Tensor], Any], Callable[[Any], Any]]


def _loader(rows: Tensor) -> Any:
    return DataLoader(rows, 2)


def _batches(rows: Tensor) -> Any:
    given = NoWeakReference(rows)
    return ci.batches(given) if ci.health()["enabled"] else given


CASES: dict[str, Case] = {
    **{
        each.__name__: (each, _loader, _sgd)
        for each in (Net, NoParameters, OwnCall, NoTruth, NoHash, NoMode, NoAttributes, NoPatching)
    },
    "Strange": (Net, lambda rows: Strange(rows, 2), _sgd),
    "OwnIterator": (Net, lambda rows: OwnIterator(rows, 2), _sgd),
    "NoWeakReference": (Net, _batches, _sgd),
    "Duck": (Net, _loader, Duck),
    "NoClosure": (Net, _loader, lambda parameters: NoClosure(parameters, lr=0.1)),
    "own_step": (Net, _loader, _own_step),
}  # fmt: skip


def train(case: Case) -> list[Any]:
    """The losses, or what was raised instead."""
    torch.manual_seed(5)
    model, rows, criterion = case[0](), torch.rand(8, 2), nn.MSELoss()
    optimizer = case[2](model.parameters())
    model.__dict__["is_done"] = True
    found: list[Any] = []
    for _ in range(2):
        try:
            for x in case[1](rows):
                loss = criterion(model(x), x[:, :1])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
        except NoError:
            found.append("raised")
    return found


def main() -> None:
    torch.set_num_threads(1)
    logging.disable()
    told: dict[str, Any] = {}
    for name, case in CASES.items():
        untraced = train(case)
        directory = Path(sys.argv[1], name)
        profiler = ci.profile(output_dir=directory, frameworks=["torch"], join="none")
        try:
            traced = train(case)
        except BaseException as error:
            traced = [repr(error)]
        finally:
            ci.shutdown()
        told[name] = {
            "same": traced == untraced,
            "losses": untraced,
            "traced": traced,
            "names": Counter(span["name"] for span in read_spool(directory).spans),
            "errors": profiler.health()["swallowed_errors"],
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
