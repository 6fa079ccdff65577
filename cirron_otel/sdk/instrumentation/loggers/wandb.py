"""Marks from `wandb.log`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..base import HookContext, Part, install_parts
from .instrument import LoggerHooks, argument
from .scalars import Scalar, logging_call

TAG = "cirron-trace-"
"""The beginning of the tag that a run gets; the trace id follows."""
_DISABLED = "wandb.sdk.lib.noop_run"
"""The module with the run of the mode `disabled`; older versions have none."""
_MOST_DEPTH = 8
_INTERNAL = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})


class WandbHooks(LoggerHooks):
    """Replaces `Run._log`, which `Run.log` and `wandb.log` call, and `log` of a disabled run."""

    name = "wandb"

    def install(self, context: HookContext) -> None:
        """Install every part; a disabled run has a class of its own in newer versions."""
        super().install(context)
        context.on_import(_DISABLED, self._install_disabled)

    def _install_disabled(self, module: Any) -> None:
        wrap = partial(self.patches.wrap, module.NoopRun, "log", self._log)
        self.not_recorded += install_parts(self.name, [("log of a disabled run", wrap)])

    def parts(self) -> list[Part]:
        """Return the method of every other run."""
        return [("log", partial(self.patches.wrap, self.class_named("Run"), "_log", self._log))]

    def _log(self, original: Any, run: Any, args: Any, kwargs: Any) -> Any:
        number = argument(args, kwargs, 1, "step")
        if number is None:
            # `run.step` would ask wandb's own process.
            number = getattr(run, "_local_step", None)

        def scalars() -> Iterator[Scalar]:
            return _flat(argument(args, kwargs, 0, "data"), "", number, _MOST_DEPTH)

        call = partial(original, run, *args, **kwargs)
        return logging_call(self.name, call, scalars, partial(self._link, run))

    def _link(self, run: Any) -> None:
        if not getattr(run, "disabled", False):
            self.links.add(run.id, partial(_attributes, run), partial(_tag, run))


def _flat(data: Any, prefix: str, step: Any, depth: int) -> Iterator[Scalar]:
    """Yield the items of nested dicts; dots join the keys, as in wandb's own summary."""
    for key, value in dict(data).items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth:
                yield from _flat(value, f"{name}.", step, depth - 1)
        elif name not in _INTERNAL:
            yield name, value, step


def _attributes(run: Any) -> dict[str, Any]:
    return {"wandb.run.id": run.id, "wandb.run.project": run.project, "wandb.run.url": run.url}


def _tag(run: Any, trace: str) -> None:
    run.tags = (*(run.tags or ()), f"{TAG}{trace}")
