"""Reload the configuration on SIGHUP, and apply the changes that need no restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...errors import CirronOtelError
from .config_file import ConfigError, Loaded
from .options_tree import diff, secrets_of

if TYPE_CHECKING:
    from .logs import Logging
    from .options import CollectorOptions

logger = logging.getLogger(__name__)


class Reloadable(Protocol):
    """A running collector."""

    @property
    def options(self) -> CollectorOptions:
        """The options in effect."""

    async def apply(self, options: CollectorOptions) -> None:
        """Apply new options."""


class Reloading:
    """Applies changed options to a running collector."""

    def __init__(self, collector: Reloadable, read: Callable[[], Loaded], logs: Logging) -> None:
        """`read` returns the current configuration, validated, or raises ConfigError."""
        self._collector, self._read, self._logs = collector, read, logs
        self._count = 0

    async def run(self, requested: asyncio.Event) -> None:
        """Reload each time `requested` is set, until cancelled."""
        while True:
            await requested.wait()
            requested.clear()
            self._count += 1
            try:
                await self._again()
            except ConfigError as error:
                self._refused(list(error.problems))
            except CirronOtelError as error:
                self._refused([str(error)])

    async def _again(self) -> None:
        loaded = await asyncio.to_thread(self._read)
        changes = diff(self._collector.options, loaded.options)
        self._logs.masking.hide(secrets_of(loaded.options))
        await self._collector.apply(changes.options)
        self._logs.apply(changes.options.logs)
        for warning in loaded.warnings:
            self._log(logging.WARNING, warning)
        if changes.restart:
            paths = ", ".join(changes.restart)
            self._log(logging.WARNING, f"changed, and not taken before a restart: {paths}")
        applied = ", ".join(changes.at_once) or "nothing else is changed"
        self._log(
            logging.INFO, f"the configuration, tokens and certificates were read again: {applied}"
        )

    def _refused(self, problems: list[str]) -> None:
        for problem in problems:
            self._log(logging.ERROR, problem)
        self._log(logging.ERROR, "the configuration is wrong: the one before stays in force")

    def _log(self, level: int, message: str) -> None:
        # Include the reload's number: the same message of two reloads is not a repetition.
        logger.log(level, "%s", message, extra={"cause": f"reload {self._count} {message}"})
