"""A second framework and its hooks, which plug into the package through `FrameworkHooks` alone.

    python -m tests.sdk.instrumentation.second_framework DIRECTORY FRAMEWORKS

Trains with the package `tiny`, which is to be in `sys.path`, in a session recorded in DIRECTORY.
FRAMEWORKS is the option `frameworks`, as JSON. Prints what the program observed, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import cirron_otel as ci
from cirron_otel.core.config.resolve import resolve
from cirron_otel.sdk.instrumentation.base import FrameworkHooks, HookContext
from cirron_otel.sdk.instrumentation.frameworks import FRAMEWORKS, Framework
from cirron_otel.sdk.instrumentation.installing import Instrumentation
from cirron_otel.sdk.instrumentation.patches import Patches
from cirron_otel.sdk.instrumentation.training_loop import TrainingLoop, current_loop
from cirron_otel.sdk.session.handle import active
from cirron_otel.sdk.session.opening import open_profiler
from cirron_otel.sdk.session.starting import Joining

TINY = """
class Trainer:
    def fit(self, items):
        return sum(self.step(item) for item in items)

    def step(self, item):
        return item * 2
"""
LATER = "def save(value):\n    return str(value)\n"


class TinyHooks(FrameworkHooks):
    """`Trainer.fit` is an epoch, `Trainer.step` a step, `tiny.later.save` a scope."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._context: HookContext
        self.flushes = self.forks = 0

    def install(self, context: HookContext) -> None:
        """Wrap the methods, and a function of a module that may be imported later."""
        from tiny import Trainer

        self._context = context
        self._wrap(Trainer, "fit", "epoch")
        self._wrap(Trainer, "step", "step")
        context.on_import("tiny.later", lambda module: self._wrap(module, "save", "save"))

    def _wrap(self, owner: Any, name: str, scope: str) -> None:
        original = getattr(owner, name)

        def fit(*args: Any) -> Any:
            loop = TrainingLoop.start("tiny")
            if loop is None:
                return original(*args)
            loop.begin_epoch()
            result = original(*args)
            loop.end_epoch()
            loop.end()
            return result

        def step(*args: Any) -> Any:
            loop = current_loop()
            if loop is None or loop.framework != "tiny":
                return original(*args)
            loop.begin_step()
            result = original(*args)
            loop.end_step()
            return result

        def call(*args: Any) -> Any:
            with ci.scope(scope):
                return original(*args)

        self._patches.replace(owner, name, {"fit": fit, "step": step}.get(name, call))

    def remove(self) -> None:
        """Put the originals back."""
        self._patches.undo()

    def after_fork(self) -> None:
        """Count the forks."""
        self.forks += 1

    def on_flush(self) -> None:
        """Count the flushes."""
        self.flushes += 1

    def health(self) -> dict[str, Any]:
        """Return the counts."""
        return {"flushes": self.flushes > 0, "forks": self.forks}


class FaultyHooks(TinyHooks):
    """Hooks whose methods raise."""

    def install(self, _: HookContext) -> None:
        """Raise."""
        raise ValueError("no such method")

    def remove(self) -> None:
        """Raise."""
        raise ValueError("nothing to remove")


def main() -> None:
    resolved = resolve(
        {"output_dir": sys.argv[1], "join": "none", "frameworks": json.loads(sys.argv[2])}
    )
    table = {
        **FRAMEWORKS,
        "tiny": Framework("tiny", TinyHooks),
        "faulty": Framework("tiny", FaultyHooks),
    }
    hooks = Instrumentation(resolved.config, table)
    profiler = active.profiler = open_profiler(resolved, Joining(), hooks)
    hooks.install()
    found: dict[str, Any] = {"before": [*profiler.installed_hooks, "tiny" in sys.modules]}
    trainer, tiny = imported(), sys.modules["tiny"]
    found["result"] = trainer.fit([1, 2, 3])
    found["saved"] = importlib.import_module("tiny.later").save(4)
    higher = TrainingLoop.start("transformers")
    assert higher is not None
    trainer.fit([1])
    higher.end()
    if (child := os.fork()) == 0:
        trainer.fit([1])
        os._exit(0 if hooks.health().get("tiny", {}).get("forks", 1) == 1 else 1)
    found["child"] = os.waitpid(child, 0)[1]
    profiler.flush()
    health = profiler.health()
    found["health"], found["errors"] = health["hooks"], health["last_errors"]
    found["installed"] = profiler.installed_hooks
    ci.shutdown()
    found["after"] = [*profiler.installed_hooks, tiny.Trainer.fit.__name__]
    print(json.dumps(found))


def imported() -> Any:
    from tiny import Trainer

    return Trainer()


def write(directory: Path) -> None:
    """Write the package `tiny` into a directory."""
    (directory / "tiny").mkdir()
    (directory / "tiny" / "__init__.py").write_text(TINY)
    (directory / "tiny" / "later.py").write_text(LATER)


if __name__ == "__main__":
    main()
