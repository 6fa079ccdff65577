"""The batches that a reader has handed out, to compare with batches that arrive later."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import exactjson
from ..errors import InputError
from .events import Record

Recall = Callable[[str], bytes | None]
"""By the name under which a batch was handed out: its JSON, or None if it is not available."""


class _Entry(NamedTuple):
    name: str
    content: Record | bytes | None
    """The batch or its JSON; None if `recall` returns it."""


@dataclass(slots=True)
class _Group:
    """The batches of one key."""

    entries: list[_Entry] = field(default_factory=list)
    wires: set[bytes] = field(default_factory=set)
    """Digests of the messages that held one complete batch and nothing else."""
    contents: set[bytes] = field(default_factory=set)
    """Digests of the batches, but for those in `unread`."""
    unread: list[_Entry] = field(default_factory=list)


class HandedOut:
    """The batches that were handed out, by key. With `recall`, it keeps a few bytes for each."""

    def __init__(self, recall: Recall | None = None) -> None:
        """Without `recall` the batches themselves stay in memory."""
        self._recall = recall
        self._groups: dict[bytes, _Group] = {}
        self._unwritten: dict[tuple[bytes, str], Record | bytes] = {}
        """By key and name: the batches that `recall` cannot return yet."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._groups

    def add(self, key: bytes, name: str, content: Record | bytes, wire: bytes = b"") -> None:
        """Add a batch; `wire` is the message that held it and nothing else, if there is one."""
        kept = content if self._recall is None else None
        if kept is None:
            self._unwritten[key, name] = content
        group = self._groups.setdefault(key, _Group())
        entry = _Entry(name, kept)
        group.entries.append(entry)
        group.unread.append(entry)
        if wire:
            group.wires.add(_digest(wire))

    def is_written(self) -> None:
        """Record that the caller has stored all batches so far: `recall` returns them."""
        self._unwritten.clear()

    def has_wire(self, key: bytes, wire: bytes) -> bool:
        """Whether a batch came from this very message."""
        group = self._groups.get(key)
        return group is not None and _digest(wire) in group.wires

    def has_content(self, key: bytes, batch: Record) -> bool:
        """Whether an equal batch of this key was handed out. Each batch is read again once."""
        group = self._groups.get(key)
        if group is None:
            return False
        for entry in group.unread:
            content = self._content(key, entry)
            if content is not None:
                group.contents.add(_content_digest(content))
        group.unread.clear()
        return _content_digest(batch) in group.contents

    def batches(self, key: bytes) -> Iterator[Record]:
        """The batches of this key."""
        group = self._groups.get(key)
        for entry in group.entries if group is not None else ():
            content = self._content(key, entry)
            if content is not None:
                yield content

    def _content(self, key: bytes, entry: _Entry) -> Record | None:
        """The batch of an entry; None if it cannot be read again."""
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


def _digest(wire: bytes) -> bytes:
    return hashlib.sha256(wire).digest()[:16]


def _content_digest(batch: Record) -> bytes:
    """A digest that only equal batches share."""
    return _digest(exactjson.dumps_sorted(batch).encode())
