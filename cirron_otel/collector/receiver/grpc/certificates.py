"""TLS for the gRPC receiver, with certificates that can be reloaded while it listens."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..tls import server_context

_PROTOCOL = "h2"


class GrpcTls:
    """The PEM files of the server, and of the CA that signs its clients' certificates."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Keep the paths; `context` reads the files."""
        self._files = certificate, key, client_ca
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with.

        Raises UsageError if the files cannot be read or used, or do not belong together.
        """
        self.reload()
        context = server_context(*self._files, protocol=_PROTOCOL)
        context.sni_callback = self._choose
        return context

    def reload(self) -> None:
        """Read the files again, for new connections; open ones are not affected.

        Raises UsageError as `context` does; the certificates in use are then unchanged.
        """
        self._current = server_context(*self._files, protocol=_PROTOCOL)

    def _choose(self, connection: ssl.SSLObject, name: str | None, base: ssl.SSLContext) -> None:
        """Use the latest certificates; OpenSSL calls this for each handshake."""
        del name, base
        if self._current is not None:
            connection.context = self._current
