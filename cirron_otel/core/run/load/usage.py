"""The numbers of tokens that scopes of models have as attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ...records.rows import IndexedSpan

MARKS: Final = ("total_tokens", "input_tokens", "output_tokens")
"""The marks of requests with their tokens: all, those of the prompt, and the new ones."""
_TOTAL: Final = (
    "gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total",
)  # fmt: skip
_PARTS: Final = (
    ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens",
     "llm.token_count.prompt"),
    ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens",
     "llm.token_count.completion"),
)  # fmt: skip
"""The attributes of OpenTelemetry's conventions, of their earlier versions, of OpenLLMetry and of
OpenInference. Of each row, the first one that is present counts."""
_TEXTS: Final = (b"gen_ai.usage.", b"llm.usage.", b"llm.token_count.")
_MOST: Final = 1 << 53


def tokens_of(span: IndexedSpan) -> int | None:
    """Return the number of tokens that a span has as attributes; None if it has none."""
    if not span.has_attributes:
        return None
    if isinstance(span.attrs, msgspec.Raw):
        data = bytes(span.attrs)
        if not any(text in data for text in _TEXTS):
            return None
    attributes = span.attributes
    if not isinstance(attributes, dict):
        return None
    total = _first(attributes, _TOTAL)
    return summed(_first(attributes, names) for names in _PARTS) if total is None else total


def summed(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers that are known; None if none is."""
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = (attributes.get(name) for name in names)
    return next((each for each in values if type(each) is int and 0 <= each < _MOST), None)
