"""The models, the data and the expected trees that the programs of both backends share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.system.frameworks import Program, Run


@dataclass(frozen=True)
class Backend:
    """The phases that a backend of Keras records."""

    name: str
    layers: tuple[str, ...]
    """The scopes of building a model of two layers."""
    again: tuple[str, ...]
    """The scopes of building another one after it."""
    functional: tuple[str, ...]
    """The scopes of building the model of two inputs and two outputs."""
    first: tuple[str, ...]
    """The scopes of the first `fit` of a compiled model, before its epochs."""
    load: tuple[str, ...]
    """The scopes of building a model again when it is loaded."""
    step: tuple[str, ...]
    test: tuple[str, ...]
    predict: tuple[str, ...]

    def epoch(self, index: int, steps: int, *inside: str, done: int = 0) -> str:
        """Return an epoch with its steps, and the scopes after these.

        `done` is the number of batches that the optimizer has seen before.
        """
        lines = [f"epoch[{index}]"]
        for number in range(steps):
            lines.append(f"  step[{number}]{{global_step={done + number + 1}}}")
            lines += [f"    {each}" for each in self.step]
        return "\n".join([*lines, *(_indented(each) for each in inside)])

    def evaluation(self, index: int, batches: int, function: str = "evaluate") -> str:
        """Return an evaluation of this many batches."""
        phases = self.predict if function == "predict" else self.test
        lines = [f"eval[{index}]{{function={function}}}", *(f"  {each}" for each in phases)]
        return "\n".join([lines[0], *(lines[1:] * batches)])

    def loaded(self) -> str:
        """Return the checkpoint from which a model is loaded."""
        return "\n".join(["checkpoint{operation=load}", *(f"  {each}" for each in self.load)])

    def session(self, *parts: str, layers: tuple[str, ...] | None = None) -> str:
        """Return the tree of a program that builds a model first, with the scopes `layers`."""
        before = (*(self.layers if layers is None else layers), *self.first)
        return "\n".join(["cirron.session", *(_indented(each) for each in (*before, *parts))])


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


TORCH = Backend(
    "keras_torch", ("forward", "loss"), ("loss x2",), ("forward", "loss x4"),
    ("data_load", "forward"), ("forward x3",),
    ("data_load", "forward", "backward", "optimizer_step"), ("data_load", "forward"),
    ("data_load", "forward"),
)  # fmt: skip
TENSORFLOW = Backend(
    "keras_tensorflow", (), (), (), (), (), ("train_step",), ("forward",), ("data_load", "forward")
)
Tree = Callable[[Backend], str]
SHARED: list[tuple[Run, Tree, str]] = []


def shared(tree: Tree, *, error: str = "") -> Callable[[Run], Run]:
    """Make a function a program of both backends."""

    def register(run: Run) -> Run:
        SHARED.append((run, tree, error))
        return run

    return register


def programs_on(backend: Backend) -> dict[str, Program]:
    """Return the shared programs with the trees of a backend."""
    return {
        run.__name__: Program(run.__name__, run, tree(backend), error=error, framework=backend.name)
        for run, tree, error in SHARED
    }


def data(rows: int = 6, seed: int = 2) -> Any:
    """Return inputs and targets."""
    import numpy as np

    drawn = np.random.default_rng(seed)
    return drawn.normal(size=(rows, 4)).astype("float32"), drawn.normal(size=(rows, 2)).astype(
        "float32"
    )


def compiled(optimizer: Any = "sgd", kind: Any = None, **options: Any) -> Any:
    """Return a compiled model of two layers; `kind` is a subclass of `Sequential`."""
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    kind = kind or keras.Sequential
    model = kind([keras.Input((4,)), layers.Dense(4, "relu"), layers.Dense(2)])
    model.compile(optimizer, "mse", **{"metrics": ["mae"], **options})
    return model


def results(model: Any, *histories: Any, **others: Any) -> dict[str, Any]:
    """Return the weights, and the values of the histories as logs."""
    logs = [
        [name, value]
        for history in histories
        for name, values in history.history.items()
        for value in values
    ]
    weights = [weight.tolist() for weight in model.get_weights()]
    return {"weights": weights, "logs": logs, **others}


OPTIONS: dict[str, Any] = {"batch_size": 2, "verbose": 0}
