"""Who makes `epoch` and `step`: one framework at a time (Cirron's concepts page, "Framework hook
priority"). Scopes by hand come before all of them, wherever they are open.
"""

from __future__ import annotations

from collections.abc import Callable

PRIORITY = ("transformers", "tensorflow", "torch")
"""The first of those that claim a name has it."""


class Owners:
    """The claims of one process."""

    def __init__(self) -> None:
        self._claims: dict[str, set[str]] = {}
        self._told: list[Callable[[], None]] = []

    def claim(self, name: str, framework: str) -> None:
        """`framework` makes the scopes `name`, unless one before it claims them, too.

        Raises ValueError for a framework that is not in `PRIORITY`.
        """
        if framework not in PRIORITY:
            expected = ", ".join(PRIORITY)
            raise ValueError(f"{framework!r} claims {name!r}: expected one of {expected}")
        self._claims.setdefault(name, set()).add(framework)
        self._tell()

    def release(self, name: str, framework: str) -> None:
        """It makes them no more."""
        self._claims.get(name, set()).discard(framework)
        self._tell()

    def owns(self, name: str, framework: str) -> bool:
        """Whether `framework` is the one that makes the scopes `name`."""
        claims = self._claims.get(name, set())
        return next((each for each in PRIORITY if each in claims), None) == framework

    def on_change(self, told: Callable[[], None]) -> None:
        """Call `told` after every change."""
        self._told.append(told)

    def forget(self, told: Callable[[], None]) -> None:
        """Tell `told` no more."""
        if told in self._told:
            self._told.remove(told)

    def _tell(self) -> None:
        for told in self._told:
            told()


owners = Owners()
