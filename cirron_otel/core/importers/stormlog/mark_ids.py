"""The ids of the marks of scopes that are not written yet, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

from ...temporary import writing_temporary_files

MAX_LIST_BYTES: Final = 16 * 2**20
"""The longest `mark_ids` of a span, about 479,000 ids; a span with more marks lists none."""
IDS_IN_MEMORY_BYTES: Final = 8 * 2**20
_SEPARATOR: Final = '","'


class _List:
    """The list of one scope: its parts in the file, then those in memory."""

    __slots__ = ("in_memory", "size", "stored")

    def __init__(self) -> None:
        self.size = 0
        """The length of the complete text, bytes."""
        self.stored: list[tuple[int, int]] = []
        """The place and the length of each part in the file."""
        self.in_memory: list[str] = []


class MarkIds:
    """Collects the ids of marks by scope, in order; large amounts go to a temporary file."""

    def __init__(
        self,
        path: Path,
        *,
        in_memory_bytes: int = IDS_IN_MEMORY_BYTES,
        max_list_bytes: int = MAX_LIST_BYTES,
    ) -> None:
        """Keep up to `in_memory_bytes` in memory, and more in a file."""
        self._path, self._in_memory_bytes, self._most = path, in_memory_bytes, max_list_bytes
        self._latest: dict[str, list[str]] = {}
        """The ids that were added last, which are often taken at once."""
        self._lists: dict[str, _List] = {}
        self._held = 0
        self._file: BinaryIO | None = None

    def add(self, ids: dict[str, list[str]]) -> None:
        """Append the ids of marks to the lists of their scopes."""
        for span_id, each in self._latest.items():
            self._append(span_id, each)
        self._latest = ids

    def _append(self, span_id: str, ids: list[str]) -> None:
        part = _SEPARATOR.join(ids)
        found = self._lists.get(span_id)
        if found is None:
            found = self._lists[span_id] = _List()
        found.size += len(part) + len(_SEPARATOR)
        if found.size > self._most:
            self._held -= sum(map(len, found.in_memory))
            found.in_memory, found.stored = [], []
            return
        found.in_memory.append(part)
        self._held += len(part)
        if self._held > self._in_memory_bytes:
            self._spill()

    def _spill(self) -> None:
        with writing_temporary_files():
            if self._file is None:
                self._file = self._path.open("w+b")
            place = self._file.seek(0, 2)
            for each in self._lists.values():
                if each.in_memory:
                    data = _SEPARATOR.join(each.in_memory).encode()
                    self._file.write(data)
                    each.stored.append((place, len(data)))
                    each.in_memory = []
                    place += len(data)
        self._held = 0

    def take(self, span_id: str) -> str:
        """Return the list of a scope as JSON, and forget it; no ids if it is too long."""
        latest = self._latest.pop(span_id, None)
        if latest is not None and span_id not in self._lists:
            part = _SEPARATOR.join(latest)
            return f'["{part}"]' if len(part) + len(_SEPARATOR) <= self._most else "[]"
        if latest is not None:
            self._append(span_id, latest)
        found = self._lists.pop(span_id, None)
        if found is None or found.size > self._most:
            return "[]"
        self._held -= sum(map(len, found.in_memory))
        parts = []
        if found.stored and self._file is not None:
            for place, size in found.stored:
                self._file.seek(place)
                parts.append(self._file.read(size).decode())
        return f'["{_SEPARATOR.join((*parts, *found.in_memory))}"]'

    @property
    def in_memory_bytes(self) -> int:
        """The length of the texts in memory."""
        return self._held

    def close(self) -> None:
        """Close the temporary file, which the owner of its folder removes."""
        if self._file is not None:
            self._file.close()
