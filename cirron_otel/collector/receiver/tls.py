"""The TLS contexts of servers, created and checked before any socket listens."""

from __future__ import annotations

import ssl
from pathlib import Path

from ...errors import UsageError


def server_context(
    certificate: Path, key: Path, client_ca: Path | None = None, *, protocol: str = "http/1.1"
) -> ssl.SSLContext:
    """Return a TLS context (1.2 or later) for servers of one protocol; all files are in PEM format.

    `certificate` contains the server's certificate, followed by its chain to the CA. With
    `client_ca`, clients must present a certificate signed by one of the CAs in that file. Raises
    UsageError, which names the file, if a file cannot be read or used, or if the key does not match
    the certificate.
    """
    for path, what in ((certificate, "certificate"), (key, "key"), (client_ca, "client CA")):
        if path is not None:
            _check_readable(path, what)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    _load_pair(context, certificate, key)
    if client_ca is not None:
        add_client_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def add_client_ca(context: ssl.SSLContext, client_ca: Path) -> None:
    """Also accept client certificates signed by the CAs in a file.

    Raises UsageError if the file contains no certificate.
    """
    _check_readable(client_ca, "client CA")
    try:
        context.load_verify_locations(client_ca)
    except ssl.SSLError:
        raise UsageError(f"the TLS client CA {client_ca} contains no certificate in PEM") from None


def reload_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Replace the certificate of a context in use; open connections keep the previous one.

    Raises UsageError as `server_context` does; the context is then unchanged.
    """
    server_context(certificate, key)
    _load_pair(context, certificate, key)


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"the TLS key {key} does not belong to the certificate {certificate}"
        else:
            why = (
                f"the TLS certificate {certificate} and the key {key} cannot be used: both must be"
                f" PEM, and the key without a password ({error.reason or 'unknown reason'})"
            )
        raise UsageError(why) from None


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        raise UsageError(
            f"the TLS {what} {path} cannot be read: {error.strerror or error}"
        ) from None
