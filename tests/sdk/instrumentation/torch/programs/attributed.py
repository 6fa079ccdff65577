"""A training loop that prints what Python attributes to its frames.

These are the places of warnings and log records with every `stacklevel`, the registries of
warnings that were shown once, and the tracebacks of exceptions. `traced` as an argument opens a
session.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

LEVELS = range(1, 9)
log = logging.getLogger("attributed")


class _Failure:
    place = ""


def attribute(where: str) -> None:
    """Warn and log with every `stacklevel`; raise an exception if this is the place for it."""
    for level in LEVELS:
        warnings.warn(f"{where} {level}", stacklevel=level)
        log.warning("%s %s", where, level, stacklevel=level)
    if where == _Failure.place:
        raise ArithmeticError(where)


class Layer(nn.Linear):
    """A layer inside a model."""

    def forward(self, x: Tensor) -> Tensor:
        attribute("layer")
        return super().forward(x)


class Net(nn.Module):
    """A model with a layer, and one whose activations are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer(4, 4)
        self.head = nn.Linear(4, 1)

    def _last(self, x: Tensor) -> Tensor:
        attribute("checkpoint")
        return self.head(x)

    def forward(self, x: Tensor, *, reentrant: bool = False) -> Tensor:
        attribute("forward")
        return checkpoint(self._last, self.layer(x), use_reentrant=reentrant)


class Own(Net):
    """A model that defines `__call__`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attribute("call")
        return super().__call__(*args, **kwargs)


class Criterion(nn.Module):
    """A loss."""

    def forward(self, y: Tensor) -> Tensor:
        attribute("loss")
        return y.square().mean()


class Points(Dataset[Tensor]):
    """A data set."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        attribute("dataset")
        return torch.full((4,), float(index))


class Schedule(lr_scheduler.LRScheduler):
    """A schedule."""

    def get_lr(self) -> list[float | Tensor]:
        attribute("schedule")
        return [0.1 for _ in self.optimizer.param_groups]


class Stepping(torch.optim.SGD):
    """An optimizer that overrides methods with hooks."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        attribute("zero_grad")
        super().zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        attribute("step")
        return super().step(closure)


class Stored:
    """An object that is saved."""

    def __reduce__(self) -> Any:
        attribute("save")
        return list, ()


def train(model: nn.Module) -> None:
    """Train one epoch, and evaluate."""
    optimizer = Stepping(model.parameters(), 0.1)
    schedule = Schedule(optimizer)
    criterion = Criterion()
    for number, x in enumerate(DataLoader(Points(), 2, pin_memory=True)):
        optimizer.zero_grad()
        y = model(x, reentrant=bool(number))
        y.register_hook(lambda _: attribute("hook"))
        criterion(y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(lambda: attribute("closure"))
        schedule.step(number)  # deprecated: torch warns about this line
    torch.autograd.grad(model(torch.ones(1, 4)), list(model.parameters()))
    with torch.no_grad():
        model(torch.ones(1, 4))
    torch.save(Stored(), io.BytesIO())


PLACES = (
    "", "layer", "checkpoint", "forward", "call", "loss", "dataset", "schedule", "zero_grad",
    "step", "hook", "closure", "save",
)  # fmt: skip


def show(error: BaseException) -> None:
    print(f"-- {_Failure.place}: {error!r}")
    print("".join(traceback.format_exception(error)))


def _train_new(kind: type[nn.Module]) -> None:
    train(kind())


def again(action: Callable[[], None]) -> None:
    """Run with the default filters, which show a warning once for each of its places."""
    warnings.resetwarnings()
    warnings.simplefilter("default")
    action()


def main() -> None:
    """Train with a failure in each place, and print everything."""
    layout = "%(pathname)s:%(lineno)d %(funcName)s %(message)s"
    logging.basicConfig(stream=sys.stdout, format=layout)

    def shown(message: Any, category: Any, file: str, line: int, *_: object) -> None:
        print(f"{file}:{line}: {category.__name__}: {message}")

    warnings.showwarning = shown
    for kind in (Net, Own):
        for _Failure.place in PLACES:
            torch.manual_seed(0)
            try:
                again(functools.partial(_train_new, kind))
            except ArithmeticError as error:
                show(error)
    model = Net()
    for wrong in (
        lambda: model(1), lambda: torch.save(1), lambda: torch.ones(1).backward(),
        lambda: torch.load(str(Path("absent"))), lambda: next(iter(DataLoader(None))),
    ):  # fmt: skip
        try:
            wrong()
        except Exception as error:
            show(error)
    for name, module in sorted(sys.modules.items()):
        registry = getattr(module, "__warningregistry__", None)
        if isinstance(registry, dict) and not name.startswith("cirron_otel"):
            print(name, sorted(str(key) for key in registry if key != "version"))


if __name__ == "__main__":
    if "traced" in sys.argv:
        import cirron_otel as ci

        ci.profile(
            output_dir=sys.argv[2], exporters="none", join="none", handle_signals=False,
            capture="none", **({"digest": "tensors"} if "digest" in sys.argv else {}),
        )  # fmt: skip
    main()
