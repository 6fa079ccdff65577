"""Nouns in messages: their plural, and numbers with a noun."""

from __future__ import annotations


def plural(noun: str) -> str:
    """Return the plural of a regular noun, such as `steps`, `batches` or `queries`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, as in `1 span` or `1,234 spans`."""
    return f"{number:,} {one if number == 1 else many or plural(one)}"
