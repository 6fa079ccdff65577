"""The interface between a session and the hooks into one framework."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from ...core.config.options import Config
from ..session.errors import report_problem

RankCallback = Callable[[int, int], None]
"""Called with the rank of this process and the world size."""


class SessionAccess(Protocol):
    """The session of this process, for frameworks that start processes of their own.

    `session.process_session` implements it.
    """

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called, and `end` was not."""

    def variables(self, user: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which a process joins the trace, in the current scope."""

    def begin(
        self, attributes: Mapping[str, Any], hyperparameters: object = None, link: str = ""
    ) -> None:
        """Open the session of this process if it is not open, and set its attributes."""

    def end(self, error: BaseException | None = None) -> None:
        """Close the session, or flush it if the program opened it itself."""

    def renew(self, variables: Mapping[str, str]) -> None:
        """Close the session if it has begun; the next one joins the trace of `variables`."""


@dataclass(frozen=True, slots=True)
class HookContext:
    """The part of a session that the hooks of one framework may use."""

    config: Config
    on_import: Callable[[str, Callable[[ModuleType], None]], None]
    """Calls a function with a module once that is imported, or immediately if it already is."""
    worker_opener: Callable[[], Any]
    """Returns the function that opens the session of a data loading process, or None. The result
    changes when the rank of this process becomes known."""
    remove_all: Callable[[], None]
    """Removes the hooks of every framework from this process."""
    before_loading: Callable[[], object] | None
    """Must be called before a data loading iterator is created, so before its processes start."""
    epoch_ended: Callable[[Any], None]
    """Must be called with the scope of each epoch that has ended."""
    process: SessionAccess | None = None
    """The session of this process; None if hooks are installed without one."""


Part = tuple[str, Callable[[], object]]
"""A part of a framework's hooks: its name for users, and the function that installs it."""


def install_parts(framework: str, parts: Iterable[Part]) -> list[str]:
    """Install the parts of a framework's hooks; return the names of those that failed.

    Parts that fail for the same reason share one warning. Raises nothing. `framework` is the name
    of the module whose `__version__` the warning contains.
    """
    failed: dict[str, list[str]] = {}
    for name, install in parts:
        try:
            install()
        except Exception as error:
            failed.setdefault(f"{type(error).__name__}: {error}", []).append(name)
    version = getattr(sys.modules.get(framework), "__version__", "?")
    for problem, names in failed.items():
        lost = ", ".join(names)
        message = f"{framework} {version} is not fully supported ({problem}): not recorded: {lost}"
        report_problem(f"{framework}: {lost}", message)
    return [name for names in failed.values() for name in names]


requests: dict[str, Callable[[ModuleType], None]] = {}
"""The functions that install hooks which a call of the program requests, by the module that the
call imports. `Instrumentation` adds and removes them; no import is watched for these hooks."""


def request(name: str) -> None:
    """Install the hooks that belong to the module `name`, if a session waits for it."""
    install = requests.pop(name, None)
    if install is not None:
        install(sys.modules[name])


class FrameworkHooks(ABC):
    """The hooks into one framework during one session.

    An object is created once the framework is imported. Errors that `install` or `remove` raises
    are recorded as errors of the hooks and never reach the program.
    """

    @abstractmethod
    def install(self, context: HookContext) -> None:
        """Install every hook."""

    @abstractmethod
    def remove(self) -> None:
        """Remove every hook, restore replaced attributes, and close the open scopes."""

    def ask_rank(self, callback: RankCallback) -> None:  # noqa: B027
        """Call `callback` once the framework has assigned a rank to this process.

        The callback may be called immediately.
        """

    def after_fork(self) -> None:  # noqa: B027 - optional
        """In a forked child, forget the parent's open scopes. The hooks stay installed."""

    def on_flush(self) -> None:  # noqa: B027 - optional
        """Finish phases that have waited too long. Called on the flush thread, once per flush."""

    def health(self) -> dict[str, Any]:
        """Return the state of the hooks, as JSON values."""
        return {}
