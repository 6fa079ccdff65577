"""Breaks the hooks into Keras and TensorFlow, and their runs, in ways that a program may.

    python -m tests.system.frameworks.keras_checks DIRECTORY BACKEND

Each function below runs in a process of its own, forked after Keras was imported. It returns the
faults that it found; the process prints them all as one line of JSON.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

import cirron_otel as ci
from tests.kit.sessions.spool_trees import read_spool

from .forked_checks import Check, difference, run_all
from .programs.keras_parts import (
    OPTIONS,
    compiled,
    data,
    results,
)

CHECKS: list[Check] = []
IS_TORCH = sys.argv[-1] == "torch"
HOOKS = "cirron_otel.sdk.instrumentation"


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def check_on_torch(function: Check) -> Check:
    """Add a check of code that both backends share; with torch, a training takes less time."""
    if IS_TORCH:
        CHECKS.append(function)
    return function


def train(callbacks: Any = (), **options: Any) -> dict[str, Any]:
    """Train, evaluate, save and load: everything that Keras' hooks record."""
    model = compiled()
    saver = _keras().callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
    options = {"epochs": 2, "validation_data": data(2), **OPTIONS, **options}
    history = model.fit(*data(4), callbacks=[*callbacks, saver], **options)
    model.load_weights("1.weights.h5")
    evaluated = model.evaluate(*data(2), **OPTIONS)
    batch = [float(each) for each in model.train_on_batch(*data(2))]
    return results(model, history, others=[evaluated, batch])


def eager(act: Callable[[], object] = lambda: None) -> list[Any]:
    """Train in an eager loop over a dataset, and evaluate with a compiled function.

    `act` is called in the block of the second tape.
    """
    import tensorflow as tf

    model, rows = compiled(), tf.data.Dataset.from_tensor_slices(data(4)).batch(2)
    weights, optimizer = model.trainable_variables, _keras().optimizers.SGD(0.1)
    compiled_loss = tf.function(lambda each: tf.reduce_mean(each**2))
    for number, (inputs, targets) in enumerate(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - targets) ** 2)
            if number == 1:
                act()
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    losses = [float(compiled_loss(model(inputs) - targets)) for inputs, targets in rows]
    return [losses, [each.tolist() for each in model.get_weights()]]


def profile(directory: Path) -> Any:
    return ci.profile(output_dir=directory, exporters="none", join="none", handle_signals=False)


def errors(profiler: Any) -> int:
    return sum(profiler.health()["swallowed_errors"].values())


def names(directory: Path) -> list[str]:
    return [span["name"] for span in read_spool(directory).spans]


def _keras() -> Any:
    return importlib.import_module("keras")


def _classes() -> dict[str, Any]:
    """Return the modules and classes whose attributes the hooks replace."""
    backend = "torch" if IS_TORCH else "tensorflow"
    trainer = importlib.import_module(f"keras.src.backend.{backend}.trainer")
    found = {
        "trainer": trainer.TorchTrainer if IS_TORCH else trainer.TensorFlowTrainer,
        "CallbackList": trainer.callbacks_module.CallbackList,
    }
    places = ["keras.src.saving.saving_api", "keras.src.models.model", "keras.saving"]
    if not IS_TORCH:
        function = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
        found |= {
            f"{module}.{name}": getattr(importlib.import_module(module), name)
            for module, name in (
                (function, "Function"),
                ("tensorflow.python.data.ops.iterator_ops", "OwnedIterator"),
                ("tensorflow.python.distribute.input_lib", "DistributedIteratorBase"),
                ("tensorflow.python.eager.backprop", "GradientTape"),
                ("keras.src.layers.layer", "Layer"),
            )
        }
    found["BaseOptimizer"] = importlib.import_module(
        "keras.src.optimizers.base_optimizer"
    ).BaseOptimizer
    return found | {name: importlib.import_module(name) for name in places}


def attributes() -> dict[str, Any]:
    """Return the functions of these modules and classes, by their names."""
    return {
        f"{place}.{name}": value
        for place, owner in _classes().items()
        for name, value in list(vars(owner).items())
        if callable(value)
    }


WRAPPED = (
    "trainer.fit", "trainer.evaluate", "trainer.predict", "trainer.train_on_batch",
    "trainer._flatten_metrics_in_order", "CallbackList.on_train_begin",
    "CallbackList.on_epoch_begin", "CallbackList.on_epoch_end", "CallbackList.on_train_batch_begin",
    "CallbackList.on_train_batch_end", "CallbackList.on_test_end", "BaseOptimizer.apply",
    "keras.src.saving.saving_api.save_model", "keras.src.saving.saving_api.load_weights",
    "keras.saving.load_model",
)  # fmt: skip


@check
def removes_every_hook(directory: Path) -> list[str]:
    """After `shutdown`, every replaced attribute is the original object, and none is added."""
    before = attributes()
    profile(directory)
    during = attributes()
    ci.shutdown()
    faults = [f"{name} is not hooked" for name in WRAPPED if before.get(name) is during[name]]
    after = attributes()
    faults += [f"{name} is left" for name, each in after.items() if each is not before.get(name)]
    return faults + [f"{name} is gone" for name in before if name not in after]


@check
def lacks_internals(directory: Path) -> list[str]:
    """A version without some internals costs the parts that need them, and one warning each."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("cirron_otel").addHandler(handler)
    classes = _classes()
    del importlib.import_module("keras.src.trainers.trainer").Trainer._flatten_metrics_in_order
    del classes["keras.src.saving.saving_api"].save_weights
    wanted = {"keras": ["train_on_batch", "checkpoint"]}
    if not IS_TORCH:
        del sys.modules["tensorflow.python.distribute.input_lib"].DistributedIteratorBase
        wanted["tensorflow"] = ["distributed data_load"]
    profiler = profile(directory)
    compiled().fit(*data(4), validation_data=data(2), **OPTIONS)
    state = profiler.health()["hooks"]
    ci.shutdown()
    faults = difference({"step", "eval"}, {"step", "eval"} & set(names(directory)), "scopes")
    faults += difference(sum(map(len, wanted.values())), len(messages), f"warnings {messages}")
    found = {name: sorted(state[name]["not_recorded"]) for name in wanted}
    return faults + difference({name: sorted(wanted[name]) for name in wanted}, found, "lost")


KERAS_PLACES = (
    "loop_scopes.LoopScopes._open", "loop_scopes.LoopScopes._open_step",
    "loop_scopes.LoopScopes._close_step", "loop_scopes.LoopScopes._close_scope",
    "training_loop.mark", "keras.configuration._optimizer", "keras.fits._trained",
    "keras.fits._number", "keras.fits.mark_value", "keras.fits.current_scope",
    "keras.evaluations.mark_value",
)  # fmt: skip
TENSORFLOW_PLACES = (
    "tensorflow.passes.DatasetPasses._begin", "tensorflow.passes.DatasetPasses._end_iteration",
    "tensorflow.passes.DatasetPasses._decide", "tensorflow.passes.DatasetPasses._end_after",
    "tensorflow.functions.Functions._classify", "tensorflow.phases.open_phase",
    "loop_scopes.LoopScopes._open", "loop_scopes.LoopScopes._open_step",
    "loop_scopes.LoopScopes._close_step", "loop_scopes.LoopScopes._close_scope",
)  # fmt: skip


@check
def survives_faulty_hooks(directory: Path) -> list[str]:
    """An exception in any function of the hooks costs records only."""
    run: Callable[[], Any] = train if IS_TORCH else eager
    wanted, faults = run(), []
    for place in KERAS_PLACES if IS_TORCH else TENSORFLOW_PLACES:
        owner, name = _owner(place)
        original = vars(owner)[name]

        def raising(*_: Any, **__: Any) -> Any:
            raise ValueError("a fault")

        profiler = profile(directory / place)
        setattr(owner, name, raising)
        # In a context of its own: a scope whose end fails remains current.
        found = copy_context().run(run)
        counted = errors(profiler)
        setattr(owner, name, original)
        ci.shutdown()
        faults += difference(wanted, found, place)
        if not counted:
            faults.append(f"{place}: no error was counted")
    return faults


def _owner(place: str) -> tuple[Any, str]:
    """Return the module or class of a dotted place in the hooks, and the attribute's name."""
    path, name = place.rsplit(".", 1)
    if path[path.rfind(".") + 1].isupper():
        path, owner = path.rsplit(".", 1)
        return getattr(importlib.import_module(f"{HOOKS}.{path}"), owner), name
    return importlib.import_module(f"{HOOKS}.{path}"), name


EVENTS = (
    "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end",
    "on_test_begin", "on_test_end", "on_epoch_end", "on_train_end",
)  # fmt: skip


def at(event: str, act: Callable[[], object]) -> Any:
    """Return a callback that calls a function the first time that an event happens."""
    calls: list[int] = []

    def first(*_: Any, **__: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            act()

    return type("At", (_keras().callbacks.Callback,), {event: first})()


@check_on_torch
def raises_the_exceptions_of_callbacks(directory: Path) -> list[str]:
    """An exception of a callback is raised unchanged, and a later `fit` has its own scopes."""
    profiler, faults = profile(directory), []
    for event in EVENTS:
        error = KeyboardInterrupt(event) if event == "on_epoch_end" else KeyError(event)

        def fail(error: BaseException = error) -> None:
            raise error

        try:
            train([at(event, fail)])
            faults.append(f"{event}: nothing was raised")
        except (KeyError, KeyboardInterrupt) as raised:
            faults += [] if raised is error else [f"{event}: {raised!r}"]
    train()
    faults += difference(0, errors(profiler), "errors")
    ci.shutdown()
    epochs = read_spool(directory).session.find("epoch")[-2:]
    found = [(each.record["index"], len(each.find("step"))) for each in epochs]
    return faults + difference([(0, 2), (1, 2)], found, "the last epochs")


@check_on_torch
def meets_hostile_callbacks(directory: Path) -> list[str]:
    """Callbacks that change logs and the history, train inside a training, or have odd values."""
    keras = _keras()

    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("not a number")

        __str__ = __repr__ = __float__  # type: ignore[assignment]

    class Hostile(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, *_: Any, **__: Any) -> None:
            if epoch == 1:
                compiled().fit(*data(2), callbacks=[Clears()], **OPTIONS)

        def on_epoch_end(self, _: int, logs: Any = None) -> None:
            logs["odd"], logs[5] = Odd(), None
            del logs["loss"]

        def on_test_end(self, logs: Any = None) -> None:
            if logs:
                logs.clear()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.model.history.history["mae"] = []

    class Clears(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.model.history.history = None
            self.model.history = None

    def run() -> Any:
        model, hostile = compiled(), Hostile()
        history = model.fit(*data(4), epochs=2, callbacks=[hostile], **OPTIONS)
        model.evaluate(*data(2), callbacks=[hostile], **OPTIONS)
        values = {str(k): v for k, v in history.history.items() if k != "odd"}
        return [values, [each.tolist() for each in model.get_weights()]]

    wanted = _outcome(run)
    profile(directory)
    found = _outcome(run)
    ci.shutdown()
    return difference(wanted, found, "results") + difference(True, "step" in names(directory), "")


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@check
def ends_within_a_run(directory: Path) -> list[str]:
    """`shutdown` in the middle of a training, at any event, or in an eager loop."""
    before, faults = attributes(), []
    for event, wanted, run in _runs(EVENTS):
        profile(directory / event)
        found = run(ci.shutdown)
        left = [name for name, each in attributes().items() if each is not before.get(name)]
        faults += difference(wanted, found, event) + difference([], left, f"{event}: left")
        open_spans = [s["name"] for s in read_spool(directory / event).spans if not s["end_ns"]]
        faults += difference([], open_spans, f"{event}: open")
    return faults


def _runs(events: Sequence[str]) -> list[tuple[str, Any, Callable[[Any], Any]]]:
    """Return trainings that call a function at an event or in an eager loop, and their results."""

    def run_at(event: str) -> Callable[[Any], Any]:
        return lambda act: train([at(event, act)])

    wanted = train()
    found = [(each, wanted, run_at(each)) for each in (events if IS_TORCH else events[-1:])]
    return found if IS_TORCH else [*found, ("eager", eager(), eager)]


@check
def begins_within_a_run(directory: Path) -> list[str]:
    """`profile` in the middle of a training."""
    faults = []
    for event, wanted, run in _runs(EVENTS[2:4]):
        found = run(lambda event=event: profile(directory / event))  # type: ignore[misc]
        counted = sum(ci.health()["swallowed_errors"].values())
        ci.shutdown()
        faults += difference(wanted, found, event) + difference(0, counted, f"{event}: errors")
    return faults


@check
def forks_within_a_run(directory: Path) -> list[str]:
    """A child that is forked in the middle of `fit` has a session and a training of its own."""
    statuses: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if IS_TORCH:  # TensorFlow's own threads do not survive a fork
                    compiled().fit(*data(4), **OPTIONS)
                with ci.scope("child"):
                    pass
                ci.shutdown()
                status = 0
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    wanted = train()
    profiler = profile(directory)
    found = train([at("on_train_batch_end", fork)])
    faults = difference(0, errors(profiler), "errors")
    ci.shutdown()
    sessions = {each.record["id"]: each for each in read_spool(directory).sessions}
    steps = sorted(len(each.find("step")) for each in sessions.values())
    faults += difference(wanted, found, "results") + difference([0], statuses, "the child")
    return faults + difference([2 if IS_TORCH else 0, 5], steps, "steps of the sessions")


@check
def leaves_objects_alone(directory: Path) -> list[str]:
    """Nothing of the hooks is in a model, a callback list, or a saved model."""
    import cloudpickle

    keras = _keras()
    seen: list[Any] = []

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *args: Any) -> Any:
            return super().train_step(*args)

        def fit(self, *args: Any, **named: Any) -> Any:
            return super().fit(*args, **named)

    class Looks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            seen.append(sorted(vars(self.model)))

    def run() -> Any:
        model = compiled(kind=Own)
        list_ = keras.callbacks.CallbackList([Looks()], add_history=True, model=model, epochs=1)
        model.fit(*data(4), callbacks=list_, **OPTIONS)
        model.save("model.keras")
        return [[type(each).__name__ for each in list_.callbacks], sorted(vars(model)), seen.pop()]

    wanted = run()
    profile(directory)
    faults = difference(wanted, run(), "objects")
    if b"cirron" in Path("model.keras").read_bytes():
        faults.append("there is something of this package in the saved model")
    copy = cloudpickle.dumps(Own)
    ci.shutdown()
    compiled(kind=cloudpickle.loads(copy)).fit(*data(4), **OPTIONS)
    return faults


if __name__ == "__main__":
    if IS_TORCH:
        importlib.import_module("tests.system.frameworks.programs.on_torch")
        importlib.import_module("torch")
    else:
        importlib.import_module("tests.system.frameworks.programs.on_tensorflow")
        importlib.import_module("tensorflow")
    importlib.import_module("keras")
    run_all(CHECKS, Path(sys.argv[1]))
