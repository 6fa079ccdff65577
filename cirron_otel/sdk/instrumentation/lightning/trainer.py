"""Record the runs of Lightning's Trainer: its epochs, batches, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ..base import Part
from ..patches import Patches
from .checkpoints import attributes_of
from .configuration import announce
from .lightning_loop import NAME, LightningLoop, own_loop

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
    try:
        if own_loop() is not None:
            announce(trainer)
    except Exception as error:
        record_error(NAME, error)
    return original(trainer, *args, **kwargs)


def _epoch_begins(original: Any, fit_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        try:
            loop.epoch(fit_loop.trainer.current_epoch)
        except Exception as error:
            record_error(NAME, error)
    return original(fit_loop, *args, **kwargs)


def _epoch_ends(original: Any, fit_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(fit_loop, *args, **kwargs)
    loop.epoch_work_ended()
    result = original(fit_loop, *args, **kwargs)
    loop.end_epoch()
    return result


def _batch(original: Any, epoch_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(epoch_loop, *args, **kwargs)
    loop.batch_begins(epoch_loop)
    try:
        result = original(epoch_loop, *args, **kwargs)
    except StopIteration:
        loop.batch_refused()
        raise
    loop.batch_ends(epoch_loop)
    return result


def _evaluation(original: Any, evaluation_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(evaluation_loop, *args, **kwargs)
    try:
        loop.expect_evaluation(**_attributes(evaluation_loop))
    except Exception as error:
        record_error(NAME, error)
    try:
        result = original(evaluation_loop, *args, **kwargs)
    except BaseException as error:
        loop.evaluation_ends(error)
        raise
    loop.evaluation_ends()
    return result


def _evaluated(original: Any, evaluation_loop: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        loop.evaluation_ends()  # its callbacks save checkpoints
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
        loop.evaluation_begins()
    return original(evaluation_loop, *args, **kwargs)


def _saving(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("filepath")
    return _checkpoint("save", path, trainer, lambda: original(trainer, *args, **kwargs))


def _loading(original: Any, connector: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("checkpoint_path")
    if not path:
        return original(connector, *args, **kwargs)
    return _checkpoint("load", path, None, lambda: original(connector, *args, **kwargs))


def _checkpoint(operation: str, path: object, trainer: Any, call: Callable[[], Any]) -> Any:
    """Return the result of `call`, recorded as a `checkpoint`, inside a run or alone."""
    outer = own_loop()
    loop = outer or LightningLoop.start(NAME)
    if loop is None or loop.is_open("checkpoint"):
        return call()
    scope = None
    try:
        scope = loop.open_checkpoint(trainer, attributes_of(operation, path))
    except Exception as error:
        record_error(NAME, error)
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
