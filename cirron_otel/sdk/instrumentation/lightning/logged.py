"""Mark the values that Lightning logs, as it logs them."""

from __future__ import annotations

import functools
from typing import Any

from ...tracing.hidden_frames import strip
from ..base import Part
from ..logged_values import passed_on
from ..loop_scopes import EVALUATION
from ..patches import Patches
from .lightning_loop import LightningLoop, own_loop, safely


def value_parts(patches: Patches, package: Any) -> list[Part]:
    """Return the parts of the hooks into `package`, which is `lightning.pytorch` or its twin."""

    def logged() -> None:
        connector = package.trainer.connectors.logger_connector.logger_connector._LoggerConnector
        patches.wrap(connector, "log_metrics", _values)

    def learning_rates() -> None:
        monitor = package.callbacks.lr_monitor.LearningRateMonitor
        patches.wrap(monitor, "_extract_stats", _learning_rates)
        patches.wrap(monitor, "on_train_batch_start", _passing_on)
        patches.wrap(monitor, "on_train_epoch_start", _passing_on)

    def hyperparameters() -> None:
        module = package.trainer.trainer
        original = module._log_hyperparams

        @functools.wraps(original)
        def log_hyperparams(*args: Any, **kwargs: Any) -> Any:
            try:
                with passed_on:  # TensorBoardLogger writes a placeholder, `hp_metric`
                    return original(*args, **kwargs)
            except BaseException as error:
                strip(error)
                raise

        patches.replace(module, "_log_hyperparams", log_hyperparams)

    return [
        ("logged values", logged),
        ("learning rates", learning_rates),
        ("hyperparameters in loggers", hyperparameters),
    ]


def _values(original: Any, connector: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(connector, *args, **kwargs)
    safely(_mark, loop, connector, args, kwargs)
    with passed_on:
        return original(connector, *args, **kwargs)


def _mark(loop: LightningLoop, connector: Any, args: Any, kwargs: Any) -> None:
    values = args[0] if args else kwargs["metrics"]
    is_final = connector._first_loop_iter is None
    if not is_final and not loop.is_open(EVALUATION):
        loop.end_micro_step()  # a step that accumulates logs once, after its last batch
    loop.log(values, is_final=is_final)


def _learning_rates(original: Any, monitor: Any, args: Any, kwargs: Any) -> Any:
    values = original(monitor, *args, **kwargs)
    loop = own_loop()
    if loop is not None and values:
        safely(lambda: loop.log(values, is_final=False))
    return values


def _passing_on(original: Any, monitor: Any, args: Any, kwargs: Any) -> Any:
    if own_loop() is None:
        return original(monitor, *args, **kwargs)
    with passed_on:
        return original(monitor, *args, **kwargs)
