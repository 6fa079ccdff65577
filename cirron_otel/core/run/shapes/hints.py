"""The attributes of scopes that a shape needs, collected while batches are read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...records.rows import IndexedSpan
from .producers import Producer

_LOAD_NS = "data_load_ns"
_LOAD_TEXT, _MODE_TEXT = b'"data_load_ns"', b'"eval"'
_MOST_NS = 1 << 62


class Hints:
    """The producers of the rows of a recording, and the attributes of these rows."""

    def __init__(self) -> None:
        self.producer: Producer | None = None
        """The producer of the batch that is being read; None for the canonical form."""
        self.rows: list[tuple[int, int, Producer]] = []
        """The first row, the row after the last one, and the producer of batches with a shape."""
        self.load_ns: dict[int, int] = {}
        """The time of loading that a scope has as an attribute, ns."""
        self.in_eval_mode: set[int] = set()
        """The scopes of models in the mode for evaluation."""
        self._has_canonical = False
        self._of_batch: list[tuple[int, int | None, bool]] = []
        self._place = 0

    def add(self, span: IndexedSpan) -> None:
        """Add the next scope of the batch."""
        place, self._place = self._place, self._place + 1
        if not span.has_attributes:
            return
        if isinstance(span.attrs, msgspec.Raw):
            text = bytes(span.attrs)
            if _LOAD_TEXT not in text and _MODE_TEXT not in text:
                return
        attributes = span.attributes
        if isinstance(attributes, dict):
            ns = attributes.get(_LOAD_NS)
            is_time = type(ns) is int and 0 <= ns < _MOST_NS
            self._of_batch.append(
                (place, ns if is_time else None, attributes.get("mode") == "eval")
            )

    def end_batch(self, first: int, end: int) -> None:
        """End a batch, whose rows are those from `first` to `end`, that one excluded."""
        if self.producer is None:
            self._has_canonical |= first < end
            return
        self.rows.append((first, end, self.producer))
        for place, ns, is_eval in self._of_batch:
            if ns is not None:
                self.load_ns[first + place] = ns
            if is_eval:
                self.in_eval_mode.add(first + place)
        self._of_batch.clear()
        self._place = 0

    @property
    def is_needed(self) -> bool:
        """Whether some scopes need a shape."""
        return bool(self.rows)

    @property
    def is_foreign(self) -> bool:
        """Whether all scopes are of another service."""
        return not self._has_canonical and not any(self.ranges(Producer.CIRRON_SDK))

    def ranges(self, producer: Producer) -> Iterator[tuple[int, int]]:
        """Yield the first row and the row after the last one of each batch of a producer."""
        return ((first, end) for first, end, each in self.rows if each is producer)
