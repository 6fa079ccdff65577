"""The batches that a reader has handed out, for comparison with batches that arrive later."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .... import exactjson
from ....errors import InputError
from ..events import Record

Recall = Callable[[str], bytes | None]
"""Takes the name under which a batch was handed out; returns its JSON, or None if unavailable."""


class _Entry(NamedTuple):
    name: str
    content: Record | bytes | None
    """The batch or its JSON; None if `recall` supplies it."""


class HandedOut:
    """The batches that were handed out, by key. With `recall`, it stores a few bytes per batch."""

    def __init__(self, recall: Recall | None = None) -> None:
        """Create an empty set. Without `recall`, the batches themselves stay in memory."""
        self._recall = recall
        self._entries: dict[bytes, list[_Entry]] = {}
        self._wires: set[bytes] = set()
        """A digest of key and message for each message that contained only one complete batch."""
        self._contents: set[bytes] = set()
        """A digest of key and content for each batch that has been compared."""
        self._compared: dict[bytes, int] = {}
        """The number of batches of each key whose digest is in `_contents`."""
        self._unwritten: dict[tuple[bytes, str], Record | bytes] = {}
        """The batches that `recall` cannot return yet, by key and name."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def add(self, key: bytes, name: str, content: Record | bytes, wire: bytes = b"") -> None:
        """Add a batch; `wire` is the message that contained only this batch, if there is one."""
        retained = content if self._recall is None else None
        if retained is None:
            self._unwritten[key, name] = content
        self._entries.setdefault(key, []).append(_Entry(name, retained))
        if wire:
            self._wires.add(_digest(key, wire))

    def is_written(self) -> None:
        """Record that the caller has stored all batches so far, so that `recall` returns them."""
        self._unwritten.clear()

    def has_wire(self, key: bytes, wire: bytes) -> bool:
        """Return whether a batch came from this exact message."""
        return _digest(key, wire) in self._wires

    def has_content(self, key: bytes, batch: Record) -> bool:
        """Return whether an equal batch with this key was handed out.

        Each batch that was handed out is read again at most once.
        """
        entries = self._entries.get(key)
        if entries is None:
            return False
        for entry in entries[self._compared.get(key, 0) :]:
            content = self._content(key, entry)
            if content is not None:
                self._contents.add(_content_digest(key, content))
        self._compared[key] = len(entries)
        return _content_digest(key, batch) in self._contents

    def batches(self, key: bytes) -> Iterator[Record]:
        """Yield the batches that were handed out with this key."""
        for entry in self._entries.get(key, ()):
            content = self._content(key, entry)
            if content is not None:
                yield content

    def _content(self, key: bytes, entry: _Entry) -> Record | None:
        """Return the batch of an entry; None if it cannot be read again."""
        content = entry.content
        if content is None:
            content = self._unwritten.get((key, entry.name))
        if content is None and self._recall is not None:
            content = self._recall(entry.name)
        if isinstance(content, bytes):
            try:
                content = exactjson.loads(content)
            except InputError:
                return None
        return content if isinstance(content, dict) else None


def _digest(key: bytes, content: bytes) -> bytes:
    return hashlib.sha256(key + content).digest()[:16]


def _content_digest(key: bytes, batch: Record) -> bytes:
    """Return a digest that only equal batches of one key share."""
    return _digest(key, exactjson.dumps_sorted(batch).encode())
