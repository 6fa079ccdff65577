"""Determine the one framework that creates the scopes `epoch` and `step`.

The order is that of Cirron's concepts page, "Framework hook priority". Scopes that the program
opens itself take precedence over every framework.
"""

from __future__ import annotations

from collections.abc import Callable

PRIORITY = ("transformers", "tensorflow", "torch")
"""The frameworks in descending priority; the first one that claims a name owns it."""


class ScopeOwners:
    """The claims of the frameworks in one process."""

    def __init__(self, priority: tuple[str, ...] = PRIORITY) -> None:
        self._priority = priority
        self._claims: dict[str, set[str]] = {}
        self._callbacks: list[Callable[[], None]] = []

    def claim(self, name: str, framework: str) -> None:
        """Let `framework` own the scopes `name`, unless one with a higher priority claims them.

        Raises ValueError if `framework` has no priority.
        """
        if framework not in self._priority:
            expected = ", ".join(self._priority)
            raise ValueError(f"{framework!r} claims {name!r}: expected one of {expected}")
        self._claims.setdefault(name, set()).add(framework)
        self._notify()

    def release(self, name: str, framework: str) -> None:
        """Withdraw a claim, if there is one."""
        self._claims.get(name, set()).discard(framework)
        self._notify()

    def owns(self, name: str, framework: str) -> bool:
        """Return whether `framework` creates the scopes `name`."""
        claims = self._claims.get(name, set())
        return next((each for each in self._priority if each in claims), None) == framework

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change."""
        self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()


owners = ScopeOwners()
"""The claims of this process."""
