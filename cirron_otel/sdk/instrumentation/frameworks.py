"""The table of frameworks that can be hooked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import FrameworkHooks


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework; its key in the table is its name in the option `frameworks`."""

    module: str
    """The module whose import installs the hooks."""
    create: Callable[[], FrameworkHooks]
    """Creates the hooks. Called once the framework is imported; it imports the hooks' modules."""
    is_requested: bool = False
    """Whether the program requests the hooks by a call, which imports `module`. The option
    `frameworks` does not apply to them."""


def _torch() -> FrameworkHooks:
    from .torch.instrument import TorchHooks  # noqa: PLC0415 - torch is imported by now

    return TorchHooks()


def _transformers() -> FrameworkHooks:
    from .transformers.instrument import TransformersHooks  # noqa: PLC0415

    return TransformersHooks()


def _accelerate() -> FrameworkHooks:
    from .accelerate.instrument import AccelerateHooks  # noqa: PLC0415

    return AccelerateHooks()


def _lightning() -> FrameworkHooks:
    from .lightning.instrument import LightningHooks  # noqa: PLC0415

    return LightningHooks("lightning.pytorch", "lightning.fabric")


def _pytorch_lightning() -> FrameworkHooks:
    from .lightning.instrument import LightningHooks  # noqa: PLC0415

    return LightningHooks("pytorch_lightning", None)


def _lightning_fabric() -> FrameworkHooks:
    from .lightning.instrument import LightningHooks  # noqa: PLC0415

    return LightningHooks(None, "lightning_fabric")


def _ray() -> FrameworkHooks:
    from .ray.instrument import RayHooks  # noqa: PLC0415

    return RayHooks()


def _sklearn() -> FrameworkHooks:
    from .sklearn.instrument import SklearnHooks  # noqa: PLC0415

    return SklearnHooks()


def _keras() -> FrameworkHooks:
    from .keras.instrument import KerasHooks  # noqa: PLC0415

    return KerasHooks()


def _tensorflow() -> FrameworkHooks:
    from .tensorflow.instrument import TensorFlowHooks  # noqa: PLC0415

    return TensorFlowHooks()


FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework("torch", _torch),
    "ray": Framework("ray", _ray),
    "transformers": Framework("transformers", _transformers),
    "accelerate": Framework("accelerate", _accelerate),
    "lightning": Framework("lightning", _lightning),
    "pytorch_lightning": Framework("pytorch_lightning", _pytorch_lightning),
    "lightning_fabric": Framework("lightning_fabric", _lightning_fabric),
    "sklearn": Framework(f"{__package__}.sklearn.wrapping", _sklearn, is_requested=True),
    "keras": Framework("keras", _keras),
    "tensorflow": Framework("tensorflow", _tensorflow),
}


_TENSORBOARD, _TENSORBOARDX = "torch.utils.tensorboard.writer", "tensorboardX.writer"
_WANDB, _MLFLOW = "wandb.sdk.wandb_run", "mlflow.tracking.client"


@dataclass(frozen=True, slots=True)
class Logger(Framework):
    """A library that a program logs scalars to, which become marks."""

    option: str = ""
    """Its name in the option `capture`."""


def _torch_tensorboard() -> FrameworkHooks:
    from .loggers.tensorboard import TensorBoardHooks  # noqa: PLC0415

    return TensorBoardHooks("torch", _TENSORBOARD)


def _tensorboardx() -> FrameworkHooks:
    from .loggers.tensorboard import TensorBoardHooks  # noqa: PLC0415

    return TensorBoardHooks("tensorboardX", _TENSORBOARDX)


def _wandb() -> FrameworkHooks:
    from .loggers.wandb import WandbHooks  # noqa: PLC0415

    return WandbHooks(_WANDB)


def _mlflow() -> FrameworkHooks:
    from .loggers.mlflow import MlflowHooks  # noqa: PLC0415

    return MlflowHooks(_MLFLOW)


LOGGERS: dict[str, Logger] = {
    "tensorboard": Logger(_TENSORBOARD, _torch_tensorboard, option="tensorboard"),
    "tensorboardX": Logger(_TENSORBOARDX, _tensorboardx, option="tensorboard"),
    "wandb": Logger(_WANDB, _wandb, option="wandb"),
    "mlflow": Logger(_MLFLOW, _mlflow, option="mlflow"),
}
"""Hooks into loggers. No option imports a logger."""
