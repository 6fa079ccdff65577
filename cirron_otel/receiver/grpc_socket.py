"""The Unix socket on which gRPC's own server listens, in a private directory."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from pathlib import Path

_PREFIX = "cirron-otel-grpc-"
_NAME = "grpc"
_STALE_S = 60.0


class PrivateSocket:
    """A path that only this user can connect to; `remove` ends it."""

    def __init__(self) -> None:
        """Directories of processes that were killed are removed first."""
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        self.path = Path(self._folder.name) / _NAME
        for path in self.path.parent.parent.glob(f"{_PREFIX}*/{_NAME}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S and not _is_alive(path):
                    path.unlink()
                    path.parent.rmdir()

    def remove(self) -> None:
        """Remove the socket and its directory."""
        self._folder.cleanup()


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
