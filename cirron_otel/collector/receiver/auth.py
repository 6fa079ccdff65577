"""Authentication by bearer token (RFC 6750, "Authorization Request Header Field")."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from ...errors import UsageError

_LARGEST_FILE = 1024 * 1024
_CHECK_EVERY_S = 1.0
"""The minimum interval between checks of the token file, seconds: a removed token may stay valid
for this long."""

_TOKEN = re.compile(r"[\x21-\x7e]+")
_HEADER = re.compile(r"bearer +([\x21-\x7e]+) *", re.IGNORECASE)

_logger = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


class Auth(Protocol):
    """Decides which clients may send."""

    def allows(self, header: str | None) -> bool:
        """Return whether to accept a request; `header` is its `Authorization` header, or None."""


class Tokens:
    """The accepted bearer tokens, from the configuration and from a file.

    The file has one token per line; empty lines and lines that begin with `#` are ignored. It is
    reread whenever it changes. If the changed file cannot be read, or contains no token, a warning
    is logged and the previous tokens stay valid. Only digests of tokens are held in memory, so that
    no log can contain a token, and comparisons take constant time.
    """

    def __init__(
        self,
        tokens: Iterable[str] = (),
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise UsageError if there is no token, or if a token cannot be sent in a header.

        The file is checked at most once per second of `clock`, which returns seconds.
        """
        self._given = tuple(_digest(_checked(token, "the tokens")) for token in tokens)
        self._file, self._clock = file, clock
        self._of_file: tuple[bytes, ...] = ()
        self._stamp: _Stamp | None = None
        self._looked = clock()
        if file is not None:
            self._stamp = _stamp(file)
            self._of_file = _read(file)
        elif not self._given:
            raise UsageError("no bearer token is configured: set a token or a token file")

    def allows(self, header: str | None) -> bool:
        """Return whether an `Authorization` header contains an accepted token."""
        match = _HEADER.fullmatch(header or "")
        if match is None:
            return False
        self._refresh()
        offered, is_known = _digest(match[1]), False
        for digest in (*self._given, *self._of_file):
            is_known |= hmac.compare_digest(offered, digest)
        return is_known

    def _refresh(self) -> None:
        now = self._clock()
        if self._file is None or now - self._looked < _CHECK_EVERY_S:
            return
        self._looked = now
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._of_file = _read(self._file)
        except UsageError as error:
            _logger.warning("%s; the previous tokens stay valid", error)
        else:
            _logger.info("the bearer tokens were reloaded: %d are accepted", len(self._of_file))

    def __repr__(self) -> str:
        return f"Tokens({len(self._given) + len(self._of_file)} of them)"


class TokenGate:
    """Accepts clients that send one of `tokens`, or every client if `tokens` is None.

    `tokens` can be replaced at run time.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens

    def allows(self, header: str | None) -> bool:
        """Return whether to accept a request; `header` is its `Authorization` header, or None."""
        return self.tokens is None or self.tokens.allows(header)


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(file: Path) -> tuple[bytes, ...]:
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(
            f"the file of bearer tokens {file} cannot be read: {error.strerror or error}"
        ) from None
    if len(content) > _LARGEST_FILE:
        raise UsageError(
            f"the file of bearer tokens {file} is larger than 1 MiB: expected one token per line"
        )
    lines = (line.strip() for line in content.decode("utf-8", "replace").splitlines())
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise UsageError(
            f"the file of bearer tokens {file} contains no token: expected one per line"
        )
    return tuple(_digest(_checked(token, str(file))) for token in tokens)


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise UsageError(
            f"a bearer token in {where} is empty, or contains spaces or non-ASCII characters:"
            " it cannot be sent in a header"
        )
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
