"""TLS of the gRPC receiver with certificates that may be read again while it listens."""

from __future__ import annotations

from typing import Any

import grpc

from .grpc_server import GrpcTls
from .tls import server_context


class ReloadedTls(GrpcTls):
    """PEM files as of GrpcTls; connections that are open keep what they began with."""

    _current: Any = None
    """What gRPC asks for with each connection."""

    def credentials(self) -> grpc.ServerCredentials:
        """Raises UsageError where they cannot be read or used, or do not belong together."""
        self.reload()
        return grpc.dynamic_ssl_server_credentials(
            self._current, lambda: self._current, require_client_authentication=self._is_mutual
        )

    def reload(self) -> None:
        """Read the files again, for connections to come. Raises UsageError as `credentials` does.

        Then the certificates are as before.
        """
        server_context(self.certificate, self.key, self.client_ca)
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        ca = None if self.client_ca is None else self.client_ca.read_bytes()
        configuration = grpc.ssl_server_certificate_configuration([pair], ca)
        object.__setattr__(self, "_current", configuration)

    @property
    def _is_mutual(self) -> bool:
        return self.client_ca is not None
