"""Record the runs of Lightning's Trainer: its epochs, batches, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base import Part
from ..checkpoint_origin import LOAD, SAVE, checkpoint_attributes
from ..patches import Patches
from .checkpoints import link_writer, store_writer
from .configuration import announce
from .lightning_loop import NAME, LightningLoop, own_loop, safely

Around = Callable[[Any, Any, Any, Any], Any]


def trainer_parts(patches: Patches, package: Any) -> list[Part]:
    """Return the parts of the hooks into `package`, which is `lightning.pytorch` or its twin."""

    def wrapper(path: str, methods: dict[str, Around]) -> Callable[[], None]:
        def install() -> None:
            owner = package
            for name in path.split("."):
                owner = getattr(owner, name)
            for method in methods:
                getattr(owner, method)  # before any of them is replaced
            for method, around in methods.items():
                patches.wrap(owner, method, around)

        return install

    connectors = "trainer.connectors"
    fit = wrapper(
        "loops.fit_loop._FitLoop",
        {"on_advance_start": _epoch_begins, "on_advance_end": _epoch_ends},
    )
    return [
        ("runs", wrapper("trainer.trainer.Trainer", {"_run": _run})),
        ("configuration", wrapper("trainer.trainer.Trainer", {"_run_stage": _stage})),
        ("epoch", fit),
        ("step", wrapper("loops.training_epoch_loop._TrainingEpochLoop", {"advance": _batch})),
        (
            "eval",
            wrapper(
                "loops.evaluation_loop._EvaluationLoop", {"run": _evaluation, "reset": _resetting}
            ),
        ),
        (
            "the end of eval",
            wrapper("loops.evaluation_loop._EvaluationLoop", {"_on_evaluation_end": _evaluated}),
        ),
        (
            "predictions",
            wrapper(
                "loops.prediction_loop._PredictionLoop", {"run": _evaluation, "reset": _resetting}
            ),
        ),
        (
            "saving of checkpoints",
            wrapper("trainer.trainer.Trainer", {"save_checkpoint": _saving}),
        ),
        (
            "loading of checkpoints",
            wrapper(
                f"{connectors}.checkpoint_connector._CheckpointConnector",
                {"_restore_modules_and_callbacks": _loading},
            ),
        ),
    ]


def _run(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    loop = LightningLoop.start(NAME)
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        if loop is not None:
            loop.end(error)
        raise
    if loop is not None:
        loop.end()
    return result


def _stage(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    if own_loop() is not None:
        safely(announce, trainer)
    return original(trainer, *args, **kwargs)


def _epoch_begins(original: Any, fit_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        safely(lambda: loop.epoch(fit_loop.trainer.current_epoch))
    return original(fit_loop, *args, **kwargs)


def _epoch_ends(original: Any, fit_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(fit_loop, *args, **kwargs)
    safely(loop.epoch_work_ended)
    result = original(fit_loop, *args, **kwargs)
    loop.end_epoch()
    return result


def _batch(original: Any, epoch_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(epoch_loop, *args, **kwargs)
    safely(loop.batch_begins, epoch_loop)
    try:
        result = original(epoch_loop, *args, **kwargs)
    except StopIteration:
        safely(loop.batch_refused)
        raise
    safely(loop.batch_ends, epoch_loop)
    return result


def _evaluation(original: Any, evaluation_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(evaluation_loop, *args, **kwargs)
    safely(lambda: loop.expect_evaluation(**_attributes(evaluation_loop)))
    try:
        result = original(evaluation_loop, *args, **kwargs)
    except BaseException as error:
        safely(loop.evaluation_ends, error)
        raise
    safely(loop.evaluation_ends)
    return result


def _evaluated(original: Any, evaluation_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        safely(loop.evaluation_ends)  # its callbacks save checkpoints
    return original(evaluation_loop, *args, **kwargs)


def _attributes(evaluation_loop: Any) -> dict[str, Any]:
    trainer = evaluation_loop.trainer
    if trainer.predicting:
        return {"function": "predict"}
    if trainer.testing:
        return {"function": "test"}
    is_check = {"sanity_check": True} if trainer.sanity_checking else {}
    return {"function": "validate", **is_check}


def _resetting(original: Any, evaluation_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        safely(loop.evaluation_begins)
    return original(evaluation_loop, *args, **kwargs)


def _saving(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("filepath")

    def save() -> Any:
        result = original(trainer, *args, **kwargs)
        safely(store_writer, path, trainer)
        return result

    return _checkpoint(SAVE, path, trainer, save)


def _loading(original: Any, connector: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("checkpoint_path")
    if not path:
        return original(connector, *args, **kwargs)
    safely(link_writer, path)
    return _checkpoint(LOAD, path, None, lambda: original(connector, *args, **kwargs))


def _checkpoint(operation: str, path: object, trainer: Any, call: Callable[[], Any]) -> Any:
    """Return the result of `call`, recorded as a `checkpoint`, inside a run or alone."""
    outer = own_loop()
    loop = outer or LightningLoop.start(NAME)
    if loop is None or loop.is_open("checkpoint"):
        return call()
    scope = safely(lambda: loop.open_checkpoint(trainer, checkpoint_attributes(operation, path)))
    try:
        result = call()
    except BaseException as error:
        loop.close(scope, error)
        if outer is None:
            loop.end(error)
        raise
    loop.close(scope)
    if outer is None:
        loop.end()
    return result
