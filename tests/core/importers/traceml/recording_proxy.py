"""A TCP proxy that records the bytes of each connection and passes them on."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class RecordingProxy:
    """Passes connections on to `target`, and writes what each peer sent to a file of its own.

    A peer waits until the target listens. Without a target, the bytes are only recorded, and the
    end of the proxy ends the connections.
    """

    def __init__(self, folder: Path, target: tuple[str, int] | None, port: int = 0) -> None:
        """Listen on `port` of 127.0.0.1; `folder` receives `connection-<number>.frames`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._target = folder, target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._peers: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._is_over.set()
        self._accepting.join(60)
        for peer in self._peers if self._target is None else ():
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)

    @property
    def recordings(self) -> list[Path]:
        """The files of the connections that sent anything, in the order of connecting."""
        return sorted(path for path in self.folder.glob("*.frames") if path.stat().st_size)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                path = self.folder / f"connection-{len(self._threads):03}.frames"
                thread = threading.Thread(target=self._pass_on, args=(peer, path), daemon=True)
                self._threads.append(thread)
                self._peers.append(peer)
                thread.start()

    def _pass_on(self, peer: socket.socket, path: Path) -> None:
        with peer, path.open("wb") as file, contextlib.ExitStack() as stack:
            target = None if self._target is None else stack.enter_context(self._connected())
            with contextlib.suppress(OSError):
                while data := peer.recv(65536):
                    file.write(data)
                    file.flush()
                    if target is not None:
                        target.sendall(data)

    def _connected(self) -> socket.socket:
        """Return a connection to the target, once it listens."""
        assert self._target is not None
        while True:
            try:
                return socket.create_connection(self._target, 60)
            except OSError:
                if self._is_over.wait(0.05):
                    raise
