"""The Unix socket on which gRPC's own server listens, in a private directory."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from pathlib import Path

from ..errors import TargetError

_PREFIX = "cirron-otel-grpc-"
_NAME = "grpc"
_STALE_S = 60.0
_LONGEST_PATH = 103
"""Bytes; macOS has the least room for one, with its end."""


class PrivateSocket:
    """A path that only this user can connect to; `remove` ends it."""

    def __init__(self, fallback: Path | None = None) -> None:
        """It is in the temporary folder, or in `fallback` if that cannot be written.

        Directories of processes that were killed are removed. Raises TargetError if there is no
        place for it.
        """
        self._folder = _folder(fallback)
        self.path = Path(self._folder.name) / _NAME
        for path in self.path.parent.parent.glob(f"{_PREFIX}*/{_NAME}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S and not _is_alive(path):
                    path.unlink()
                    path.parent.rmdir()

    def remove(self) -> None:
        """Remove the socket and its directory."""
        self._folder.cleanup()


def _folder(fallback: Path | None) -> tempfile.TemporaryDirectory[str]:
    reason = "no folder was given in its place"
    for place in (None, fallback) if fallback is not None else (None,):
        try:
            folder = tempfile.TemporaryDirectory(
                prefix=_PREFIX, dir=place, ignore_cleanup_errors=True
            )
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        if len(bytes(Path(folder.name) / _NAME)) <= _LONGEST_PATH:
            return folder
        folder.cleanup()
        reason = f"{folder.name} is longer than the path of a socket may be"
    raise TargetError(f"there is no place for the socket of gRPC: {reason}; set TMPDIR")


def _is_alive(path: Path) -> bool:
    """Whether a process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(bytes(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
