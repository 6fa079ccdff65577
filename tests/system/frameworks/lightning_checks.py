"""Breaks the hooks into Lightning, and its runs, in ways that a program may.

    python -m tests.system.frameworks.lightning_checks DIRECTORY

Each function below runs in a process of its own, forked after Lightning was imported. It returns
the faults that it found; the process prints them all as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import cirron_otel as ci
from tests.kit.sessions.spool_trees import read_spool

from .forked_checks import Check, difference, run_all
from .programs.lightning_parts import (
    VALIDATION_ROWS,
    classifier,
    lightning,
    loader,
    results,
    trainer,
)

pl = lightning()
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def train(callbacks: Any = (), module: Any = None, **options: Any) -> dict[str, Any]:
    """Train with everything that the hooks record."""
    torch.manual_seed(1)
    module = module or classifier()
    saver = pl.callbacks.ModelCheckpoint("saved", monitor="val_loss")
    runs = trainer(
        callbacks=[saver, *callbacks], enable_checkpointing=True, num_sanity_val_steps=1,
        accumulate_grad_batches=2, **options,
    )  # fmt: skip
    runs.fit(module, loader(), loader(VALIDATION_ROWS))
    runs.test(module, loader(VALIDATION_ROWS), verbose=False)
    runs.predict(module, loader(VALIDATION_ROWS))
    return results(module)


def profile(directory: Path) -> Any:
    return ci.profile(output_dir=directory, exporters="none", join="none", handle_signals=False)


def hooked() -> dict[str, Any]:
    """Return the attributes that the hooks replace, by their names."""
    from lightning.fabric.fabric import Fabric
    from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor
    from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
    from lightning.pytorch.loops.fit_loop import _FitLoop
    from lightning.pytorch.loops.prediction_loop import _PredictionLoop
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from lightning.pytorch.trainer import trainer as trainer_module
    from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
    from lightning.pytorch.trainer.connectors.logger_connector import _LoggerConnector

    names: dict[Any, tuple[str, ...]] = {
        pl.Trainer: ("_run", "_run_stage", "save_checkpoint"),
        _FitLoop: ("on_advance_start", "on_advance_end"),
        _TrainingEpochLoop: ("advance",),
        _EvaluationLoop: ("run", "reset", "_on_evaluation_end"),
        _PredictionLoop: ("run", "reset"),
        _LoggerConnector: ("log_metrics",),
        trainer_module: ("_log_hyperparams",),
        LearningRateMonitor: ("_extract_stats", "on_train_batch_start", "on_train_epoch_start"),
        _CheckpointConnector: ("_restore_modules_and_callbacks",),
        Fabric: ("save", "load", "load_raw", "log_dict"),
    }
    return {
        f"{owner.__name__}.{name}": owner.__dict__[name]
        for owner, each in names.items()
        for name in each
    }


@check
def removes_every_hook(directory: Path) -> list[str]:
    """After `shutdown`, every replaced attribute is the original object."""
    before = hooked()
    profile(directory)
    during = hooked()
    ci.shutdown()
    faults = [f"{name} is not hooked" for name, each in before.items() if each is during[name]]
    return faults + [
        f"{name} is left" for name, each in hooked().items() if each is not before[name]
    ]


@check
def lacks_internals(directory: Path) -> list[str]:
    """A version without some internals costs the parts that need them, and one warning each."""
    from lightning.fabric.fabric import Fabric
    from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor

    del LearningRateMonitor._extract_stats, Fabric.load_raw
    profiler = profile(directory)
    train()
    found = profiler.health()["hooks"]["lightning"]["not_recorded"]
    ci.shutdown()
    return difference(["learning rates", "loading of Fabric's checkpoints"], found, "not recorded")


@check
def survives_faulty_hooks(directory: Path) -> list[str]:
    """An exception in any function of the hooks changes nothing in the training."""
    from cirron_otel.sdk.instrumentation.lightning import (
        configuration,
        lightning_loop,
    )
    from cirron_otel.sdk.instrumentation.lightning import (
        trainer as hooks,
    )

    wanted, faults = train(), []
    loop = lightning_loop.LightningLoop
    places = [
        (loop, name) for name, each in vars(loop).items() if callable(each) and name[0] != "_"
    ]
    places += [(configuration, "_sizes"), (hooks, "checkpoint_attributes"), (hooks, "announce")]
    places += [(hooks, "_attributes"), (hooks, "store_writer")]
    for owner, name in places:
        original = vars(owner)[name]

        def raising(*_: Any, **__: Any) -> Any:
            raise ValueError("a fault")

        setattr(owner, name, raising)
        profiler = profile(directory / name)
        found = train()
        counted = sum(profiler.health()["swallowed_errors"].values())
        ci.shutdown()
        setattr(owner, name, original)
        faults += difference(wanted, found, name)
        if not counted and name not in NOT_COUNTED:
            faults.append(f"{name}: no error was counted")
    return faults


NOT_COUNTED = ("_sizes", "batch_refused")
"""The functions whose faults leave no error: a model may have no sizes yet, and every batch of this
training is used."""


class At(pl.Callback):  # type: ignore[misc, name-defined, unused-ignore]
    """Calls a function once, at the second batch of the first epoch."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def on_train_batch_end(self, runs: Any, *_: Any) -> None:
        if runs.current_epoch == 0 and runs.fit_loop.epoch_loop.batch_idx == 1:
            self._act()


@check
def ends_within_a_run(directory: Path) -> list[str]:
    """`shutdown` in the middle of `fit`."""
    wanted, before = train(), hooked()
    profile(directory)
    found = train([At(ci.shutdown)])
    left = [name for name, each in hooked().items() if each is not before[name]]
    return difference(wanted, found, "results") + difference([], left, "left")


@check
def begins_within_a_run(directory: Path) -> list[str]:
    """`profile` in the middle of `fit`."""
    wanted = train()
    found = train([At(lambda: profile(directory))])
    errors = ci.health()["swallowed_errors"]
    ci.shutdown()
    return difference(wanted, found, "results") + difference(0, sum(errors.values()), "errors")


@check
def forks_within_a_run(directory: Path) -> list[str]:
    """A child that is forked in the middle of `fit` trains a run of its own."""
    statuses: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                module = classifier()
                trainer(max_epochs=1, logger=False).fit(module, loader())
                ci.shutdown()
                status = 0
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    wanted = train()
    profiler = profile(directory)
    found = train([At(fork)])
    errors = sum(profiler.health()["swallowed_errors"].values())
    ci.shutdown()
    from tests.kit.sessions.spool_trees import read_spool

    spans = read_spool(directory).spans
    sessions = [span for span in spans if span["name"] == "cirron.session"]
    faults = difference(wanted, found, "results") + difference([0], statuses, "the child")
    return faults + difference(2, len(sessions), "sessions") + difference(0, errors, "errors")


@check
def leaves_objects_alone(directory: Path) -> list[str]:
    """Nothing of the hooks is in a module, a Trainer, or a checkpoint."""
    profile(directory)
    module = classifier()
    runs = trainer(max_epochs=1)
    callbacks, loggers = list(runs.callbacks), list(runs.loggers)
    runs.fit(module, loader())
    runs.save_checkpoint("state.ckpt")
    faults = difference(callbacks, list(runs.callbacks), "callbacks")
    faults += difference(loggers, list(runs.loggers), "loggers")
    for text in (Path("state.ckpt").read_bytes(), repr(vars(module)).encode()):
        if b"cirron" in text:
            faults.append("there is something of this package")
    ci.shutdown()
    return faults


@check
def records_the_configuration(directory: Path) -> list[str]:
    """Hyperparameters, settings and the model are attributes of the run."""
    profile(directory)
    train(gradient_clip_val=0.5)
    ci.shutdown()
    text = "".join(path.read_text() for path in (directory / "spool").glob("*.json"))
    wanted = (
        "cirron.config.rate", "cirron.config.model", "cirron.config.parameters",
        "cirron.config.trainer.gradient_clip_val", "cirron.config.trainer.accumulate_grad_batches",
    )  # fmt: skip
    return [f"{name} is missing" for name in wanted if name not in text]


@check
def a_step_contains_what_follows_its_optimizer_step(directory: Path) -> list[str]:
    """The values of a step that accumulates gradients are on the step, not on a micro step.

    So is a scope that a callback opens after the optimizer has stepped.
    """

    class Saves(pl.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_train_batch_end(self, *_: Any) -> None:
            with ci.scope("saves"):
                pass

    profile(directory)
    for callbacks in ([], [Saves()]):
        trainer(callbacks=callbacks, accumulate_grad_batches=2).fit(classifier(), loader(8))
    ci.shutdown()
    session = read_spool(directory).session
    steps, micros = session.find("step"), session.find("micro_step")
    found = [[name for name, _ in step.values] for step in steps]
    faults = [] if found == [["loss_step", "rows"]] * 8 else [f"the steps have {found}"]
    faults += [f"a micro step has {micro.values}" for micro in micros if micro.values]
    last = [step.children[-1].name for step in steps]
    if last != ["optimizer_step"] * 4 + ["saves"] * 4:
        faults.append(f"the steps end with {last}")
    return faults


@check
def links_to_the_writer(directory: Path) -> list[str]:
    """A session that resumes links to the one that wrote the checkpoint."""
    writer = profile(directory / "first")
    module = classifier()
    runs = trainer(max_epochs=1)
    runs.fit(module, loader())
    runs.save_checkpoint("kept/state.ckpt")
    identity = json.loads(Path("kept/cirron_run.json").read_text())
    ci.shutdown()
    del writer
    profile(directory / "second")
    import inspect

    known = inspect.signature(pl.Trainer.fit).parameters
    trusting = {"weights_only": False} if "weights_only" in known else {}
    trainer(max_epochs=2, logger=False).fit(
        module, loader(), ckpt_path="kept/state.ckpt", **trusting
    )
    ci.shutdown()
    text = "".join(path.read_text() for path in (directory / "second/spool").glob("*.json"))
    return [] if identity["trace_id"] in text else ["there is no link"]


if __name__ == "__main__":
    run_all(CHECKS, Path(sys.argv[1]))
