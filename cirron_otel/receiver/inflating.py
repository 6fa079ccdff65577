"""Content codings undone piece by piece, so that no piece gives out much more than is wanted.

Concatenated gzip members and zstd frames read as one body, as RFC 1952 and RFC 8878 say.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import zstandard

from ..errors import InputError

if TYPE_CHECKING:
    from zlib import _Decompress

STEP = 256 * 1024
"""The most that one step gives out for gzip and deflate, bytes."""

_ZSTD_STEP = 256
"""Compressed bytes given to zstd at once. A block of 4 bytes may expand to 128 KiB, and the
library has no limit on its output: this one keeps a step to 8 MiB."""

_ZSTD_MAX_WINDOW = 32 * 1024 * 1024
"""What Go's encoder, which the Collector uses, asks for at its best; `zstd` asks for 8 MiB."""

_MOST_MEMBERS = 10_000
"""Of one body: each costs as much as a small one, and may hold nothing."""


class Inflater(Protocol):
    """Undoes one coding of one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What the next bytes give, in pieces; InputError where they are damaged."""

    def finish(self) -> None:
        """Raise InputError where the body ends before its coding does."""


class _Zlib:
    """gzip (RFC 1952), of several members perhaps, or zlib (RFC 1950), which HTTP calls deflate."""

    def __init__(self, name: str, window_bits: int, *, has_members: bool) -> None:
        self._name, self._window_bits, self._has_members = name, window_bits, has_members
        self._stream: _Decompress | None = None
        self._members = 0
        self._is_done = False
        """A member has ended, so the body may."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream is None:
                if self._is_done and not self._has_members:
                    raise InputError(f"there is something behind the {self._name} data")
                self._members = _counted(self._members, self._name)
                self._stream, self._is_done = zlib.decompressobj(self._window_bits), False
            try:
                out = self._stream.decompress(data, STEP)
            except zlib.error:
                raise InputError(f"the {self._name} data is damaged, or something else") from None
            if out:
                yield out
            if self._stream.eof:
                data, self._stream, self._is_done = self._stream.unused_data, None, True
            else:
                data = self._stream.unconsumed_tail

    def finish(self) -> None:
        if not self._is_done:
            raise InputError(f"the {self._name} data is cut off")


class _Zstd:
    """Frames of RFC 8878."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._frames = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_STEP):
            rest = data[start : start + _ZSTD_STEP]
            while rest:
                if self._frame is None:
                    self._frames = _counted(self._frames, "zstd")
                    self._frame = self._decompressor.decompressobj()
                try:
                    out = self._frame.decompress(rest)
                except zstandard.ZstdError:
                    raise InputError("the zstd data is damaged, or something else") from None
                if out:
                    yield out
                rest = self._frame.unused_data if self._frame.eof else b""
                if self._frame.eof:
                    self._frame = None

    def finish(self) -> None:
        if self._frame is not None or not self._frames:
            raise InputError("the zstd data is cut off")


def _counted(members: int, name: str) -> int:
    if members == _MOST_MEMBERS:
        raise InputError(f"the {name} data is in more than {_MOST_MEMBERS} members")
    return members + 1


CODINGS = ("gzip", "zstd", "deflate")


def inflater(coding: str) -> Inflater | None:
    """What undoes a content coding of CODINGS; None for any other."""
    match coding:
        case "gzip" | "x-gzip":
            return _Zlib("gzip", 31, has_members=True)
        case "deflate" | "zlib":
            return _Zlib("deflate", 15, has_members=False)
        case "zstd":
            return _Zstd()
        case _:
            return None
