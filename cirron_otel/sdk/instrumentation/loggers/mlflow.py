"""Marks from `mlflow.log_metric`, `mlflow.log_metrics` and `MlflowClient`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ....semconv import TRACE_ID
from ...session.errors import record_error
from ...tracing.buffers import hooks
from ...tracing.scope import NO_SESSION
from ...tracing.state import state
from ..base import Part
from .instrument import LoggerHooks, argument
from .links import trace_id
from .scalars import Scalar, logging_call


class MlflowHooks(LoggerHooks):
    """Replaces the methods of `MlflowClient` through which every metric and every run passes."""

    name = "mlflow"

    def parts(self) -> list[Part]:
        """Return the three methods."""
        client, wrap = self.class_named("MlflowClient"), self.patches.wrap
        return [
            ("log_metric", partial(wrap, client, "log_metric", self._metric)),
            ("log_batch", partial(wrap, client, "log_batch", self._batch)),
            ("create_run", partial(wrap, client, "create_run", self._create)),
        ]

    def _metric(self, original: Any, client: Any, args: Any, kwargs: Any) -> Any:
        def scalars() -> Iterator[Scalar]:
            step = argument(args, kwargs, 4, "step")
            yield argument(args, kwargs, 1, "key"), argument(args, kwargs, 2, "value"), step

        run = argument(args, kwargs, 0, "run_id")
        call = partial(original, client, *args, **kwargs)
        return logging_call(self.name, call, scalars, partial(self._link, run))

    def _batch(self, original: Any, client: Any, args: Any, kwargs: Any) -> Any:
        metrics = argument(args, kwargs, 1, "metrics", ())
        if isinstance(metrics, (list, tuple)) and not metrics:
            return original(client, *args, **kwargs)
        run = argument(args, kwargs, 0, "run_id")
        call = partial(original, client, *args, **kwargs)
        return logging_call(self.name, call, partial(_each, metrics), partial(self._link, run))

    def _create(self, original: Any, client: Any, args: Any, kwargs: Any) -> Any:
        try:
            args, kwargs = _tagged(args, kwargs)
        except Exception as error:
            record_error(self.name, error)
        run = original(client, *args, **kwargs)
        try:
            self._link(run.info.run_id, run.info.experiment_id)
        except Exception as error:
            record_error(self.name, error)
        return run

    def _link(self, run: str, experiment: Any = None) -> None:
        # Only `create_run` sets the tag: later it would be a request of its own.
        self.links.add(
            run, lambda: {"mlflow.run_id": run, "mlflow.experiment_id": experiment}, _no_tag
        )


def _each(metrics: Any) -> Iterator[Scalar]:
    """Yield the metrics, once each: a metric of several models is repeated for each of them."""
    yielded = set()
    for each in metrics:
        key = (each.key, id(each.value), each.step, each.timestamp)
        if key not in yielded:
            yielded.add(key)
            yield each.key, each.value, each.step


def _tagged(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Add the trace id to the tags of a new run, and open the session if it is waiting."""
    if state.session is NO_SESSION:
        hooks.first()
    trace = trace_id()
    if trace is None:
        return args, kwargs
    tags = {TRACE_ID: trace, **(argument(args, kwargs, 2, "tags") or {})}
    if len(args) > 2:
        return (*args[:2], tags, *args[3:]), kwargs
    return args, {**kwargs, "tags": tags}


def _no_tag(_: str) -> None:
    pass
