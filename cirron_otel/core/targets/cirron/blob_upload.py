"""Upload snapshot files to the Cirron platform, in parts if the server accepts parts.

The contract is docs/cirron-http.md, "Snapshot files".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol
from urllib.parse import quote

from ...delivery.blobs import named_blobs, open_blob
from ...delivery.errors import UnreachableError
from ...http.client import HttpAnswer
from ...spool.blobs import BlobKey, key_of_span

PART_BYTES = 4 * 1024 * 1024

_PART_SECONDS = 120.0
"""The timeout of a part and its response, in seconds: enough for 4 MiB at 300 kbit/s."""
_RANGE = re.compile(r"bytes=0-(\d{1,18})")
_NOTHING_THERE = frozenset((404, 405, 410, 501))
_ELSEWHERE = frozenset((409, 416))
"""The status codes for a part that does not start where the server's copy ends."""
_NUMBER = re.compile(r"\d{1,18}")


class SendRequest(Protocol):
    """Sends one request to the platform; `path` is relative to the endpoint.

    Raises the errors of `BatchTarget.send`.
    """

    def __call__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        seconds: float | None = None,
    ) -> HttpAnswer:
        """Return the response, whatever its status."""


RaiseForAnswer = Callable[[HttpAnswer], NoReturn]
"""Raises the error that matches an unsuccessful response."""


class CirronBlobs:
    """Uploads snapshot files to the platform. Implements BlobSink."""

    awaits_files = False

    def __init__(self, request: SendRequest, raise_for: RaiseForAnswer, ingest_path: str) -> None:
        """Prepare to upload, without sending a request."""
        self._request, self._raise_for = request, raise_for
        self._base = f"{ingest_path}/blobs"
        self._offset: tuple[BlobKey, int] | None = None
        """The file that is being uploaded, and the number of its bytes that the server has."""

    keys_of = staticmethod(named_blobs)

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """PUT one part, or the complete file if it is small or the server does not accept parts.

        Returns whether the server now has the complete file.
        """
        known, self._offset = self._offset, None
        with open_blob(snapshots, key) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= PART_BYTES:
                return self._put(key, file.read(size), {}, 0, size)
            offset = known[1] if known and known[0] == key else self._uploaded_bytes(key, size)
            if offset is None:
                return self._put(key, file, {"Content-Length": str(size)}, 0, size)
            if offset == size:
                return True
            file.seek(offset)
            part = file.read(PART_BYTES)
            span = f"bytes {offset}-{offset + len(part) - 1}/{size}"
            return self._put(key, part, {"Content-Range": span}, offset, size)

    def _uploaded_bytes(self, key: BlobKey, size: int) -> int | None:
        """Return how many bytes the server has.

        Returns None if the server does not have the file and does not accept parts.
        """
        answer = self._request("HEAD", self._path(key), {})
        if not (answer.status in _NOTHING_THERE or 200 <= answer.status < 300):
            self._raise_for(answer)
        offset = _offset(answer)
        if offset is None:
            is_there = answer.status == 200 and answer.headers.get("content-length") == str(size)
            return size if is_there else None
        return offset if offset <= size else 0

    def _put(
        self, key: BlobKey, body: bytes | BinaryIO, headers: dict[str, str], start: int, size: int
    ) -> bool:
        headers |= {"Content-Type": "application/octet-stream", "X-Cirron-Blob-Key": _remote(key)}
        answer = self._request("PUT", self._path(key), headers, body, _PART_SECONDS)
        offset = _offset(answer)
        if 200 <= answer.status < 300 and (offset is None or offset >= size):
            return True
        if answer.status == 308 or 200 <= answer.status < 300:
            if offset is None or not start < offset < size:
                raise UnreachableError(f"snapshot file {key.file}: {answer.status} took no part")
            self._offset = key, offset
            return False
        if answer.status in _ELSEWHERE:
            raise UnreachableError(f"snapshot file {key.file}: {answer.status}, to be asked again")
        self._raise_for(answer)

    def _path(self, key: BlobKey) -> str:
        return f"{self._base}/{_remote(key)}"


def _remote(key: BlobKey) -> str:
    """Return the URL-encoded name of a file on the platform, without the tenant.

    The request's headers contain the tenant.
    """
    key = key_of_span(key)
    return f"snapshots/{quote(key.directory, safe='')}/{quote(key.file, safe='')}"


def _offset(answer: HttpAnswer) -> int | None:
    """Return how many bytes the server has, from `Upload-Offset` or `Range: bytes=0-<last>`."""
    offset = answer.headers.get("upload-offset", "")
    if _NUMBER.fullmatch(offset):
        return int(offset)
    match = _RANGE.fullmatch(answer.headers.get("range", ""))
    return int(match[1]) + 1 if match else None
