"""Uploading snapshot files to the Cirron platform, in parts where it takes parts.

docs/cirron-http.md, "Snapshot files", is the contract.
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
from ...spool.blobs import BlobKey, key_of_span
from .http_client import HttpAnswer

PART_BYTES = 4 * 1024 * 1024

_PART_SECONDS = 120.0
"""For a part and its answer: 4 MiB come through a line of 300 kbit/s in that time."""
_RANGE = re.compile(r"bytes=0-(\d{1,18})")
_NOTHING_THERE = frozenset((404, 405, 410, 501))
_ELSEWHERE = frozenset((409, 416))
"""What the server has ends elsewhere than the part began."""
_NUMBER = re.compile(r"\d{1,18}")


class SendRequest(Protocol):
    """One request to the platform; `path` follows its endpoint. Raises as BatchTarget.send."""

    def __call__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        seconds: float | None = None,
    ) -> HttpAnswer:
        """Give the answer, whatever its status."""


RaiseForAnswer = Callable[[HttpAnswer], NoReturn]
"""Raises what an answer that is no success means."""


class CirronBlobs:
    """Where the platform stores the files; a BlobSink."""

    awaits_files = False

    def __init__(self, request: SendRequest, judge: RaiseForAnswer, ingest_path: str) -> None:
        """Nothing is asked yet."""
        self._request, self._judge = request, judge
        self._base = f"{ingest_path}/blobs"
        self._offset: tuple[BlobKey, int] | None = None
        """The file that is on its way, and what the server has of it, bytes."""

    keys_of = staticmethod(named_blobs)

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """PUT one part, or all where it is small or the server takes no parts; see BlobSink."""
        known, self._offset = self._offset, None
        with open_blob(snapshots, key) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= PART_BYTES:
                return self._put(key, file.read(size), {}, 0, size)
            offset = known[1] if known and known[0] == key else self._asked(key, size)
            if offset is None:
                return self._put(key, file, {"Content-Length": str(size)}, 0, size)
            if offset == size:
                return True
            file.seek(offset)
            part = file.read(PART_BYTES)
            span = f"bytes {offset}-{offset + len(part) - 1}/{size}"
            return self._put(key, part, {"Content-Range": span}, offset, size)

    def _asked(self, key: BlobKey, size: int) -> int | None:
        """How much of the file the server has; None where it has nothing and takes no parts."""
        answer = self._request("HEAD", self._path(key), {})
        if not (answer.status in _NOTHING_THERE or 200 <= answer.status < 300):
            self._judge(answer)
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
        self._judge(answer)

    def _path(self, key: BlobKey) -> str:
        return f"{self._base}/{_remote(key)}"


def _remote(key: BlobKey) -> str:
    """Return the quoted name of a file on the platform; the request's headers name the tenant."""
    key = key_of_span(key)
    return f"snapshots/{quote(key.directory, safe='')}/{quote(key.file, safe='')}"


def _offset(answer: HttpAnswer) -> int | None:
    """How much the server has: `Upload-Offset`, or as `Range: bytes=0-<last>`."""
    told = answer.headers.get("upload-offset", "")
    if _NUMBER.fullmatch(told):
        return int(told)
    found = _RANGE.fullmatch(answer.headers.get("range", ""))
    return int(found[1]) + 1 if found else None
