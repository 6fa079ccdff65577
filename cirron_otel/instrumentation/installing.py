"""Which frameworks are hooked in a session, when they are imported, and until when."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..config import Config
from ..sdk.errors import reported, swallowed
from ..sdk.state import state
from .imports import Imports
from .owners import owners

TORCH = "torch"
KNOWN = (TORCH,)
AUTO, NONE = "auto", "none"


class Instrumentation:
    """The hooks of one session."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._imports = Imports()
        self._torch: Any = None
        self.opens_worker: Any = None
        """Opens the session of a DataLoader's worker (`torch.workers.Open`)."""
        self._rank_found: Callable[[int, int], None] | None = None
        self.before_loading: Callable[[], object] | None = None
        """Called before an iterator of a DataLoader is made, and its workers with it."""

    @property
    def installed(self) -> list[str]:
        """The frameworks that are hooked."""
        return [TORCH] if self._torch is not None else []

    def install(self) -> None:
        """Hook what is imported, and what will be. Raises nothing."""
        try:
            wanted = self._config.frameworks
            names = (AUTO,) if wanted is None else tuple(wanted)
            for name in names:
                if name not in (*KNOWN, AUTO, NONE):
                    expected = ", ".join((*KNOWN, AUTO, NONE))
                    reported("frameworks", f"{name!r} is not hooked: expected {expected}")
            if TORCH in names:
                _import(TORCH)
            if TORCH in names or AUTO in names:
                self._imports.on(TORCH, lambda _: self._hook_torch())
        except Exception as error:
            swallowed("hooks", error)

    def _hook_torch(self) -> None:
        from .torch.cuda import clock_of, devices, memory_of  # noqa: PLC0415 - torch is there now
        from .torch.instrument import TorchInstrumentation  # noqa: PLC0415
        from .torch.loaders import announce_loaders  # noqa: PLC0415
        from .torch.workers import Workers  # noqa: PLC0415

        made = self._torch = TorchInstrumentation()
        if self._config.workers and self.opens_worker is not None:
            made.workers = Workers(lambda: self.opens_worker, self.remove)
        made.shared.epoch_ended = lambda scope: state.epoch_ended(scope)  # noqa: PLW0108 - read at each call
        made.shared.detail_every = self._config.detail_every or 0
        made.shared.memory = memory_of(self._config)
        for name in ("epoch", "step"):
            owners.claim(name, TORCH)
        made.own()
        owners.on_change(made.own)
        made.install(clock=clock_of(self._config), devices=devices())
        if self._rank_found is not None:
            made.ask_rank(self._rank_found)
        for module, meet in made.later().items():
            self._imports.on(module, meet)
        if self.before_loading is not None:
            announce_loaders(made.patches, self.before_loading)
        state.fetched = True

    def ask_rank(self, found: Callable[[int, int], None]) -> None:
        """Call `found` once with the rank and the world size that a framework knows, if any does.

        That may be now, where a loop begins, or at a flush.
        """
        self._rank_found = found
        if self._torch is not None:
            self._torch.ask_rank(found)

    def remove(self) -> None:
        """Take every hook off, and finish what they have open. Raises nothing."""
        try:
            self._imports.remove()
            made, self._torch = self._torch, None
            if made is not None:
                state.fetched = False
                owners.forget(made.own)
                for name in ("epoch", "step"):
                    owners.release(name, TORCH)
                made.remove()
        except Exception as error:
            swallowed("hooks", error)

    def look_after(self) -> None:
        """On the flush thread, once a flush: what waits too long waits no more."""
        self._imports.look_again()
        if self._torch is not None:
            self._torch.look_after()

    def renew(self) -> None:
        """In a forked child: the hooks stay, what the parent had open is not the child's."""
        if self._torch is not None:
            self._torch.renew()


def _import(name: str) -> None:
    """Import a framework that was asked for by name."""
    if name not in sys.modules:
        try:
            __import__(name)
        except ImportError as error:
            reported("frameworks", f"{name} is to be hooked and cannot be imported: {error}")
