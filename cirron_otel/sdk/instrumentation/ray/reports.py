"""The values that a training function reports, and the checkpoints that it reports with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...session.errors import record_error
from ...tracing.mark import mark
from ..patches import Patches
from ..training_loop import current_loop
from .runs import NAME, scope

_DUPLICATE = "__duplicate__"
_MOST_DEPTH = 8


class ReportHooks:
    """Replaces the methods behind `ray.train.report` and `ray.tune.report`."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def train(self, module: Any) -> None:
        """Hook Train V2: its workers, and its local mode without workers."""
        self._patches.wrap(module.DistributedTrainFnUtils, "report", _report)
        self._patches.wrap(module.LocalTrainFnUtils, "report", _report)

    def session(self, session: Any) -> None:
        """Hook function trainables of Tune, and the workers of Train V1."""
        self._patches.wrap(session, "report", _report)


def _report(original: Any, reporter: Any, args: Any, kwargs: Any) -> Any:
    metrics = args[0] if args else kwargs.get("metrics")
    checkpoint = args[1] if len(args) > 1 else kwargs.get("checkpoint")
    mark_values(metrics)
    if checkpoint is None:
        return original(reporter, *args, **kwargs)
    return _saved(original, reporter, args, kwargs)


def _saved(original: Any, reporter: Any, args: Any, kwargs: Any) -> Any:
    """Report a checkpoint, which Ray copies to its storage, in a scope."""
    loop = current_loop()
    if loop is None:
        with scope("checkpoint", operation="save"):
            return original(reporter, *args, **kwargs)
    checkpoint = loop.open("checkpoint", operation="save")
    try:
        result = original(reporter, *args, **kwargs)
    except BaseException as error:
        loop.close(checkpoint, error)
        raise
    loop.close(checkpoint)
    return result


def mark_values(metrics: Any, without: Collection[str] = ()) -> None:
    """Mark the values of a report; nested ones are named as in Ray's results, `outer/inner`.

    Values that are neither numbers nor texts have no mark. Raises nothing.
    """
    try:
        if not isinstance(metrics, Mapping) or _DUPLICATE in metrics:
            return
        values = list(_values(metrics, "", 0))
        if any(type(value).__module__ == "torch" for _, value in values):
            return  # Ray refuses tensors: it raises an exception
        for name, value in values:
            if name not in without and _is_scalar(value):
                mark(name, value)
    except Exception as error:
        record_error(NAME, error)


def _values(metrics: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < _MOST_DEPTH:
            if not depth and key == "config":
                continue
            yield from _values(value, f"{name}/", depth + 1)
        else:
            yield name, value


def _is_scalar(value: Any) -> bool:
    if isinstance(value, (bool, int, float, str)):
        return True
    return type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
