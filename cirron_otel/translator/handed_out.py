"""The batches that a reader has handed out, to compare with what comes of them again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .. import exactjson
from ..errors import InputError
from .events import Record

Recall = Callable[[str], bytes | None]
"""By the name under which a batch was handed out: its JSON, or None if it is not available."""


class _Entry(NamedTuple):
    name: str
    wire: bytes
    """A digest of the message that held just this batch; empty if its parts came in several."""
    content: Record | bytes | None
    """The batch or its JSON; None where `recall` gives it."""


class HandedOut:
    """By key of a batch: what was handed out. With `recall`, a few bytes for each batch."""

    def __init__(self, recall: Recall | None = None) -> None:
        """Without `recall` the batches themselves stay in memory."""
        self._recall = recall
        self._entries: dict[bytes, list[_Entry]] = {}
        self._unwritten: dict[tuple[bytes, str], Record | bytes] = {}
        """By key and name: what was handed out together, which `recall` cannot give yet."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def add(self, key: bytes, name: str, content: Record | bytes, wire: bytes = b"") -> None:
        """Note a batch; `wire` is the message that held nothing else, if one did."""
        kept = content if self._recall is None else None
        if kept is None:
            self._unwritten[key, name] = content
        entry = _Entry(name, _digest(wire) if wire else b"", kept)
        self._entries.setdefault(key, []).append(entry)

    def is_written(self) -> None:
        """Note that whoever took the batches has stored them, so that `recall` gives them."""
        self._unwritten.clear()

    def has_wire(self, key: bytes, wire: bytes) -> bool:
        """Whether this very message was handed out."""
        digest = _digest(wire)
        return any(entry.wire == digest for entry in self._entries.get(key, ()))

    def batches(self, key: bytes) -> Iterator[Record]:
        """The batches of this key."""
        for entry in self._entries.get(key, ()):
            content = entry.content
            if content is None:
                content = self._unwritten.get((key, entry.name))
            if content is None and self._recall is not None:
                content = self._recall(entry.name)
            if isinstance(content, bytes):
                try:
                    content = exactjson.loads(content)
                except InputError:
                    continue
            if isinstance(content, dict):
                yield content


def _digest(wire: bytes) -> bytes:
    return hashlib.sha256(wire).digest()[:16]
