"""Uploads of snapshot files over HTTP, complete or in parts.

The protocol is described in docs/cirron-http.md, "Snapshot files".
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from aiohttp import web

from ....core.spool.blobs import tenant_of_directory
from ..consumer import Reason, RefusalError
from ..upload_room import Hold, UploadRoom
from .answers import HttpError, Reply
from .bodies import HttpLimits, accept_body, content_coding, pieces
from .parts import Staging

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,127}")
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_RETRY_AFTER_S = 5.0
_EXPIRE_S = 600.0

_logger = logging.getLogger(__name__)


class UploadStore(Protocol):
    """The store of uploaded files; called in the server's event loop.

    The response to a RefusalError depends on its reason; an OSError is treated as UNAVAILABLE.
    """

    async def put(
        self, span_id: str, file: str, stream: AsyncIterator[bytes], size: int | None
    ) -> None:
        """Store a file: when this returns, the complete file survives a power cut.

        `size` is in bytes; None if the client did not send it. If `stream` raises, an existing file
        is unchanged, no part of the new one is stored, and the error is passed to the caller.
        """

    async def head(self, span_id: str, file: str) -> int | None:
        """Return the size of the stored file, bytes; None if it is not stored."""


class _Part(NamedTuple):
    first: int
    size: int
    total: int


class Uploads:
    """Answers PUT and HEAD for one store."""

    def __init__(self, store: UploadStore, limits: HttpLimits, staging: Path | None = None) -> None:
        """Uploads in parts need `staging`, a directory for the parts of incomplete files."""
        self._store, self._limits = store, limits
        self._room = UploadRoom(limits.unfinished_bytes)
        self._staging = None if staging is None else Staging(staging, self._room)
        self._free = limits.uploads
        self._expiring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to remove expired parts; call it in the event loop."""
        if self._staging is not None:
            self._expiring = asyncio.create_task(self._expire(self._staging))

    def stop(self) -> None:
        """Stop removing expired parts."""
        if self._expiring is not None:
            self._expiring.cancel()

    async def _expire(self, staging: Staging) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_S)
            try:
                staging.expire()
            except OSError as error:
                _logger.warning("unfinished uploads cannot be removed: %s", error.strerror)

    async def head(self, span_id: str, file: str) -> Reply:
        """Report whether the file exists, or how many of its bytes have been uploaded in parts."""
        try:
            return await self._head(span_id, file)
        except OSError as error:
            raise _unavailable(error) from None

    async def put(self, request: web.BaseRequest, span_id: str, file: str) -> Reply:
        """Receive a file, or a part of it."""
        if content_coding(request.headers.getall("Content-Encoding", [])) != "identity":
            message = "snapshot files must be sent without a Content-Encoding"
            raise HttpError(415, message, reason=Reason.ENCODING.value)
        part = _part(request)
        total = part.total if part else request.content_length or 0
        if total > self._limits.upload_bytes:
            raise self._too_large()
        self._room.check(total)
        if not self._free:
            raise RefusalError(Reason.BUSY, "too many uploads at once", _RETRY_AFTER_S)
        self._free -= 1
        try:
            await accept_body(request)
            if part is not None:
                return await self._put_part(request, span_id, file, part)
            with self._room.holding(tenant_of_directory(span_id)) as hold:
                stream = _held(self._stream(request), hold)
                await self._store.put(span_id, file, stream, request.content_length)
            return Reply(201, b"{}")
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise _unavailable(error) from None
        finally:
            self._free += 1

    async def _head(self, span_id: str, file: str) -> Reply:
        size = await self._store.head(span_id, file)
        if size is None and self._staging is not None:
            async with self._staging.only(span_id, file) as staged:
                total = await asyncio.to_thread(staged.total)
                offset = 0 if total is None else await asyncio.to_thread(staged.offset, total)
                if offset != total:
                    return Reply(404, headers={"Upload-Offset": str(offset)})
                # All parts had been received when the process ended.
                await self._store.put(span_id, file, staged.read(), total)
                await asyncio.to_thread(staged.remove)
                size = total
        if size is None:
            return Reply(404)
        return Reply(200, headers={"Content-Length": str(size)})

    async def _put_part(
        self, request: web.BaseRequest, span_id: str, file: str, part: _Part
    ) -> Reply:
        if self._staging is None:
            raise HttpError(400, "expected a complete file, without Content-Range")
        async with self._staging.only(span_id, file) as staged:
            offset = await asyncio.to_thread(staged.offset, part.total)
            if part.first != offset:
                return Reply(409, headers={"Upload-Offset": str(offset)})
            self._staging.make_room(span_id, part.size)
            stream = self._staging.bounded(span_id, file, self._stream(request, part.size))
            offset = await staged.append(stream, part.total)
            headers = {"Upload-Offset": str(offset)}
            if offset < part.total:
                return Reply(308, headers=headers)
            await self._store.put(span_id, file, staged.read(), part.total)
            await asyncio.to_thread(staged.remove)
            return Reply(201, b"{}", headers=headers)

    async def _stream(
        self, request: web.BaseRequest, expected: int | None = None
    ) -> AsyncIterator[bytes]:
        largest = self._limits.upload_bytes if expected is None else expected
        came = 0
        async for piece in pieces(request, self._limits):
            came += len(piece)
            if came > largest:
                raise self._too_large() if expected is None else _not_the_part()
            yield piece
        if expected is not None and came != expected:
            raise _not_the_part()

    def _too_large(self) -> RefusalError:
        return RefusalError(
            Reason.TOO_LARGE, f"files of up to {self._limits.upload_bytes} bytes are accepted"
        )


async def _held(stream: AsyncIterator[bytes], hold: Hold) -> AsyncIterator[bytes]:
    async for piece in stream:
        hold.add(len(piece))
        yield piece


def blob_names(path: str) -> tuple[str, str]:
    """Return the span id and file name in the part of a path after `blobs/`.

    Raises HttpError 400 or 404.
    """
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != "snapshots":
        raise HttpError(404, "expected …/blobs/snapshots/<span_id>/<file>")
    span_id, file = (unquote(part) for part in parts[1:])
    if not _NAME.fullmatch(span_id) or not _NAME.fullmatch(file):
        raise HttpError(
            400, "the span id or the file name is not a name of up to 128 ASCII letters and digits"
        )
    return span_id, file


def _part(request: web.BaseRequest) -> _Part | None:
    header = request.headers.get("Content-Range")
    if header is None:
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        raise HttpError(400, "expected a Content-Range such as bytes 0-4194303/9000000")
    first, last, total = map(int, match.groups())
    size = last - first + 1
    if not first <= last < total or request.content_length not in (None, size):
        raise _not_the_part()
    return _Part(first, size, total)


def _not_the_part() -> HttpError:
    return HttpError(400, "the length of the part does not match its Content-Range")


def _unavailable(error: OSError) -> RefusalError:
    return RefusalError(
        Reason.UNAVAILABLE,
        f"the file cannot be stored now: {error.strerror or type(error).__name__}",
        _RETRY_AFTER_S,
    )
