"""Record how a training is configured: its loader, model, optimizer and threads.

Each object is read once, on the thread that trains: a loader when its iterator is created, a model
at its first call in training mode, an optimizer at its first step. The attributes of the run are
those of the first of each kind that trains (docs/configuration.md lists them).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any, Final

from .... import semconv as sc
from ...session.errors import record_error
from ...session.run_details import add_attributes
from ...snapshots.unseen import unseen
from ...tracing.buffers import local
from ...tracing.clock import now
from ...tracing.mark import POINT

_LOADER: Final = {
    "num_workers": sc.LOADER_WORKERS,
    "prefetch_factor": sc.LOADER_PREFETCH,
    "persistent_workers": sc.LOADER_PERSISTENT,
    "pin_memory": sc.LOADER_PINNED,
    "batch_size": sc.LOADER_BATCH_SIZE,
    "drop_last": sc.LOADER_DROP_LAST,
}
"""The attributes of a DataLoader, and those of the run."""
_DDP: Final = {
    "bucket_bytes_cap": sc.DDP_BUCKET_BYTES,
    "static_graph": sc.DDP_STATIC_GRAPH,
    "find_unused_parameters": sc.DDP_FIND_UNUSED,
    "gradient_as_bucket_view": sc.DDP_BUCKET_VIEW,
}
"""The attributes of DistributedDataParallel, and those of the run."""
_OPTIMIZER: Final = {"foreach": sc.OPTIMIZER_FOREACH, "fused": sc.OPTIMIZER_FUSED}
"""The options of an optimizer, and the attributes of the run."""
_PLAIN: Final = (bool, int, float, str)
_MOST_WRAPPERS: Final = 8
_WRAPPERS: Final = {
    "DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}  # fmt: skip
"""The classes that wrap a model, and the names of the model in them."""
Settings = Mapping[str, Any]
"""Attributes of the run by name."""


class Configuration:
    """The configuration of the training in this process. No method raises."""

    def __init__(self, *, is_recorded: bool) -> None:
        """Without `is_recorded`, nothing is read."""
        self._is_recorded = is_recorded
        self._loaders: dict[int, tuple[Any, Settings]] = {}
        """A weak reference to each live iterator, and the settings of its loader, by its id."""
        self._last = 0
        """The id of the iterator that was created last."""
        self._loader: Settings | None = None
        """The settings of the loader that trains."""
        self._has_model = self._has_optimizer = False

    def iterator_created(self, iterator: Any, loader: Any) -> None:
        """Read the loader of a new iterator."""
        if not self._is_recorded:
            return
        try:
            key, loaders = id(iterator), self._loaders
            reference = weakref.ref(iterator, lambda _: loaders.pop(key, None))
            loaders[key] = reference, _loader_settings(loader)
            self._last = key
        except Exception as error:
            record_error("torch", error)

    def settings_of(self, iterator: Any) -> Settings | None:
        """Return the settings of an iterator's loader; None for an iterator of another kind."""
        entry = self._loaders.get(id(iterator))
        return None if entry is None else entry[1]

    def model_trains(self, model: Any) -> None:
        """Read a model at its first call in training mode, inside its autocast."""
        if self._has_model or not self._is_recorded:
            return
        self._has_model = True
        try:
            autocast = _autocast()
            with unseen():
                add_attributes(_model_settings(model, autocast) | _thread_settings())
        except Exception as error:
            record_error("torch", error)

    def optimizer_steps(self, optimizer: Any, settings: Settings | None) -> None:
        """Read an optimizer at its first step.

        `settings` are those of the loader of the open pass. Without one, the loader is that of the
        iterator that was created last, if it is alive: other frameworks read their loaders.
        """
        if not self._is_recorded:
            return
        try:
            if not self._has_optimizer:
                self._has_optimizer = True
                add_attributes(_optimizer_settings(optimizer))
            if self._loader is None:
                self._loader = settings or self._loaders.get(self._last, (None, None))[1]
                add_attributes(self._loader or {})
        except Exception as error:
            record_error("torch", error)

    def epoch_ended(self, settings: Settings | None, scope: Any) -> None:
        """Mark the settings of an epoch's loader that differ from those before, on the epoch."""
        before = self._loader
        if settings is None or before is None or settings == before or scope is None:
            return
        try:
            self._loader = settings
            at, marks = now(), local.b.marks
            for name, value in settings.items():
                if before.get(name) != value:
                    marks.append((scope, name, value, at, POINT, {}))
        except Exception as error:
            record_error("torch", error)


def _loader_settings(loader: Any) -> dict[str, Any]:
    found = {name: getattr(loader, each, None) for each, name in _LOADER.items()}
    sampler = getattr(loader, "sampler", None)
    if sampler is not None and not type(sampler).__name__.startswith("_"):
        found[sc.LOADER_SAMPLER] = type(sampler).__name__
    if found[sc.LOADER_BATCH_SIZE] is None:
        found[sc.LOADER_BATCH_SIZE] = getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
    return _plain(found)


def _optimizer_settings(optimizer: Any) -> dict[str, Any]:
    defaults = getattr(optimizer, "defaults", {})
    found = {name: defaults.get(each) for each, name in _OPTIMIZER.items()}
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    return _plain({
        sc.OPTIMIZER_NAME: type(optimizer).__name__, sc.OPTIMIZER_LEARNING_RATE: rate, **found
    })  # fmt: skip


def _model_settings(model: Any, autocast: str | None) -> dict[str, Any]:
    """Return the settings of a model; without its sizes if a lazy module has none yet."""
    found: dict[str, Any] = {sc.AUTOCAST: autocast}
    for _ in range(_MOST_WRAPPERS):
        names = {each.__name__ for each in type(model).__mro__}
        is_compiled = "OptimizedModule" in names
        is_compiled |= getattr(model, "_compiled_call_impl", None) is not None
        found[sc.MODEL_COMPILED] = found.get(sc.MODEL_COMPILED, False) or is_compiled
        if "DistributedDataParallel" in names:
            found |= {name: getattr(model, each, None) for each, name in _DDP.items()}
        if "FullyShardedDataParallel" in names:
            found[sc.FSDP_VERSION] = 1
        if "FSDPModule" in names:
            found[sc.FSDP_VERSION] = 2
        wrapped = next((_WRAPPERS[each] for each in names if each in _WRAPPERS), None)
        inner = None if wrapped is None else vars(model).get("_modules", {}).get(wrapped)
        if inner is None:
            break
        model = inner
    # FSDP2 makes a class of the model's class and its own.
    classes = [each.__name__ for each in type(model).__mro__]
    is_sharded = "FSDPModule" in classes
    found[sc.MODEL_CLASS] = classes[classes.index("FSDPModule") + 1 if is_sharded else 0]
    return _plain(found | _sizes(model))


def _sizes(model: Any) -> dict[str, Any]:
    try:
        parameters = list(model.parameters())
        if any(map(sys.modules["torch"].nn.parameter.is_lazy, parameters)):
            return {}
        return {
            sc.MODEL_PARAMETERS: sum(each.numel() for each in parameters),
            sc.MODEL_TRAINABLE: sum(each.numel() for each in parameters if each.requires_grad),
            sc.MODEL_DTYPE: str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
            sc.MODEL_DEVICE: parameters[0].device.type if parameters else None,
        }
    except Exception:  # a class of parameters that has none of these
        return {}


def _autocast() -> str | None:
    """Return the data type of the autocast that is active in this thread; None without one."""
    torch: Any = sys.modules["torch"]
    try:
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    except (AttributeError, TypeError):  # before PyTorch 2.4
        if torch.is_autocast_enabled():
            return str(torch.get_autocast_gpu_dtype()).removeprefix("torch.")
        if torch.is_autocast_cpu_enabled():
            return str(torch.get_autocast_cpu_dtype()).removeprefix("torch.")
    return None


def _thread_settings() -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    return {
        sc.TORCH_THREADS: torch.get_num_threads(),
        sc.TORCH_INTEROP_THREADS: torch.get_num_interop_threads(),
    }


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that an attribute can have, without those that are unknown."""
    return {name: value for name, value in found.items() if type(value) in _PLAIN}
