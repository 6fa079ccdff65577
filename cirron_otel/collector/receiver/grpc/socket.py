"""The Unix socket on which gRPC's own server listens, in a private directory."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from ....errors import TargetError

_PREFIX = "cirron-otel-grpc-"
_NAME = "grpc"
_STALE_S = 60.0
_LONGEST_PATH = 103
"""The longest socket path, bytes. macOS has the lowest limit: 104 with the terminating zero."""
_SHORT_PATHS = ("/tmp", "/var/tmp")  # noqa: S108 - a private directory is made in it
"""Directories with short paths, which exist on most systems."""


class PrivateSocket:
    """The path of a socket to which only this user can connect."""

    def __init__(self, fallback: Path | None = None) -> None:
        """Create a private directory for the socket.

        It is created in the temporary directory, else in `fallback`, else in a system directory
        with a short path. Directories left by killed processes are removed. Raises TargetError if
        none of these directories can be used.
        """
        self._folder = _folder(fallback)
        self.path = Path(self._folder.name) / _NAME
        for path in self.path.parent.parent.glob(f"{_PREFIX}*/{_NAME}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S and not _is_alive(path):
                    path.unlink()
                    path.parent.rmdir()

    @property
    def address(self) -> str:
        """The address of the socket in gRPC's notation, percent-encoded."""
        return f"unix:{quote(bytes(self.path))}"

    def remove(self) -> None:
        """Remove the socket and its directory."""
        self._folder.cleanup()


def _folder(fallback: Path | None) -> tempfile.TemporaryDirectory[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(each) for each in (fallback, runtime, *_SHORT_PATHS) if each]
    reasons = []
    for place in (None, *places):
        try:
            folder = tempfile.TemporaryDirectory(
                prefix=_PREFIX, dir=place, ignore_cleanup_errors=True
            )
        except OSError as error:
            reasons.append(f"{place or 'the temporary folder'}: {error.strerror or error}")
            continue
        length = len(bytes(Path(folder.name) / _NAME))
        if length <= _LONGEST_PATH:
            return folder
        folder.cleanup()
        reasons.append(
            f"{Path(folder.name).parent}: the path of the socket would have {length} bytes, the"
            f" limit is {_LONGEST_PATH}"
        )
    raise TargetError(
        "found no directory for the socket of the gRPC receiver: "
        + "; ".join(reasons)
        + "; set TMPDIR to a writable directory with a short path"
    )


def _is_alive(path: Path) -> bool:
    """Return whether a process listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(bytes(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
