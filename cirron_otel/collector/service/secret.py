"""Secret values, whose `str` and `repr` are masked."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

MASK = "****"


class Secret:
    """Text that neither `str` nor `repr` shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    @property
    def shown(self) -> str:
        """The masked text."""
        return MASK

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts to mask in logs."""
        return (self._text,)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._text))

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"


class SecretHeader(Secret):
    """The value of a header; the part after `Bearer` or another scheme is also a secret."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The value, and its credentials."""
        scheme, _, credentials = self._text.partition(" ")
        return (self._text, credentials) if scheme and credentials else (self._text,)


class SecretUrl(Secret):
    """A URL that contains secrets."""

    __slots__ = ("_parts", "_shown")

    def __init__(self, text: str, shown: str, parts: Iterable[str]) -> None:
        """`shown` is the masked URL, `parts` are the secrets in it."""
        super().__init__(text)
        self._shown, self._parts = shown, tuple(parts)

    @property
    def shown(self) -> str:
        """The URL without user, password and parameters."""
        return self._shown

    @property
    def parts(self) -> tuple[str, ...]:
        """The URL and its secrets; empty if it has none."""
        return (self._text, *self._parts) if self._parts else ()
