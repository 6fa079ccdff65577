"""The hooks into transformers of one session."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ...session.errors import record_error
from ..base import FrameworkHooks, HookContext, install_parts
from ..patches import Patches
from ..training_loop import end_all
from . import checkpoints, trainer
from .generation import GenerationHooks
from .loop import NAME
from .rollouts import ROLLOUTS

_METHODS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "training": {"train": trainer.run},
    "eval": {
        "evaluate": partial(trainer.evaluation, "evaluate"),
        "predict": partial(trainer.evaluation, "predict"),
    },
    "micro_step": {"training_step": trainer.micro_step},
    "the end of an epoch": {"_maybe_log_save_evaluate": trainer.end_of_epoch},
    "checkpoint (save)": {
        "_save_checkpoint": checkpoints.saving_checkpoint,
        "save_model": checkpoints.saving_model,
    },
    "checkpoint (load)": {
        "_load_from_checkpoint": checkpoints.loading,
        "_load_optimizer_and_scheduler": checkpoints.loading,
        "_load_best_model": checkpoints.loading_best_model,
    },
}
"""The methods of Trainer that are replaced, by the part that is not recorded without them."""


class TransformersHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.not_recorded: list[str] = []
        """The parts that this version of transformers does not allow to be hooked."""
        self._trainer: Any = None
        """The class `Trainer`."""
        self._known: weakref.WeakSet[type] = weakref.WeakSet()
        """The classes whose own methods are hooked."""

    def install(self, context: HookContext) -> None:
        """Hook the Trainer and `generate` once their modules are imported."""
        context.on_import("transformers.trainer", self._install)
        context.on_import("transformers.generation.utils", self._install_generation)

    def _install(self, module: Any) -> None:
        patches = self.patches

        def methods(names: Mapping[str, Callable[..., Any]]) -> Callable[[], None]:
            def install() -> None:
                for name, around in names.items():
                    patches.wrap(self._trainer, name, around)

            return install

        def begin() -> None:
            self._trainer = module.Trainer
            patches.wrap(module.Trainer, "__init__", self._constructed)
            self._known.add(module.Trainer)
            for each in _subclasses(module.Trainer):  # the program may have constructed them
                self._hook_overrides(each)

        parts = [("subclasses of Trainer", begin)]
        parts += [(name, methods(each)) for name, each in _METHODS.items()]
        parts += [
            ("epoch, step and logs", lambda: self._events(module)),
            ("skipped_batches", lambda: self._skipped(module)),
        ]
        if hasattr(getattr(module, "Trainer", None), "_run_epoch"):
            parts.append(("the number of an epoch", methods({"_run_epoch": trainer.numbered})))
        self.not_recorded += install_parts(NAME, parts)
        patches.replace_copies()

    def _events(self, module: Any) -> None:
        handler = module.CallbackHandler
        self.patches.replace(handler, "call_event", trainer.events(handler.call_event))

    def _skipped(self, module: Any) -> None:
        original = module.skip_first_batches
        self.patches.replace(module, "skip_first_batches", trainer.skipped(original))

    def _constructed(self, original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """Call `Trainer.__init__`, after hooking the methods that subclasses override."""
        self._hook_overrides(type(instance))
        return original(instance, *args, **kwargs)

    def _hook_overrides(self, kind: type) -> None:
        """Replace the methods of `kind` and its bases that override one of Trainer."""
        try:
            self._replace_overrides(kind)
        except Exception as error:
            record_error(NAME, error)

    def _replace_overrides(self, kind: type) -> None:
        for each in kind.__mro__:
            if each is self._trainer:
                return
            if each in self._known or not issubclass(each, self._trainer):
                continue
            self._known.add(each)
            replaced = {
                name: around for names in _METHODS.values() for name, around in names.items()
            }
            if each.__module__.partition(".")[0] == "trl":
                replaced |= ROLLOUTS
            for name, around in replaced.items():
                if _is_method(vars(each).get(name)):
                    self.patches.wrap_own(each, name, around)

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}

    def _install_generation(self, module: Any) -> None:
        self.not_recorded += install_parts(NAME, GenerationHooks(self.patches).parts(module))

    def remove(self) -> None:
        """Remove every hook, and close the open scopes."""
        end_all(NAME)
        self.patches.undo()
        self.patches.restore_all_copies()


def _subclasses(kind: type) -> Iterator[type]:
    """Yield all subclasses of a class that exist now."""
    each: type
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _is_method(attribute: Any) -> bool:
    """Return whether a class attribute gets the instance as its first argument when called."""
    is_bound = callable(attribute) and hasattr(type(attribute), "__get__")
    return is_bound and not isinstance(attribute, (staticmethod, classmethod))
