"""The target that sends batches to the Cirron platform, or to any server of docs/cirron-http.md."""

from __future__ import annotations

import gzip
import json
import logging
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, NoReturn

from ....errors import InputError, UsageError
from ....ids import digest
from ...delivery.batch_target import BlobSink, Receipt, SealedBatch
from ...delivery.errors import (
    MisconfiguredError,
    PushError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from ...http.client import BrokenAnswerError, HttpAnswer, HttpClient, checked_url
from ...spool.paths import parse_name
from ..exported_part import exported_part
from ..otlp.config import DEFAULT_TIMEOUT_S
from ..otlp.transport import USER_AGENT, retry_after_seconds, without_secrets
from .blob_upload import CirronBlobs

_GZIP_LEVEL = 3
"""The compression level: twice as fast as level 6, with 10 % larger output.

Speed matters, since the sending thread shares the machine with the training.
"""

_REFUSES_THIS = frozenset((400, 413, 422))
_NOT_NOW = frozenset((408, 425, 429))
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))

_KEY = re.compile(r"[\x21-\x7e]+")
_PATH = re.compile(r"/[\x21\x24-\x3b\x3d\x40-\x5a\x5f\x61-\x7a\x7e]*")
_HEADER = re.compile(r"[\x20-\x7e]*")

_HINTS = {
    401: "check {0.key}",
    403: "check {0.key} and the permissions of the key",
    404: "check {0.endpoint} and {0.path}",
    405: "check {0.endpoint} and {0.path}",
}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CirronSettingNames:
    """The names of the settings where the user set them, for use in error messages."""

    key: str = "CIRRON_API_KEY"
    endpoint: str = "CIRRON_API_ENDPOINT"
    path: str = "CIRRON_INGEST_PATH"
    certificate: str = "SSL_CERT_FILE"


class CirronTarget:
    """POSTs each batch unchanged, compressed with gzip, and PUTs its snapshot files afterwards.

    Redirects are not followed, because their target would receive the key. Error messages do not
    contain the key.
    """

    request_bytes = 0

    def __init__(
        self,
        endpoint: str,
        ingest_path: str,
        api_key: str,
        sdk_version: str,
        *,
        certificate: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        settings: CirronSettingNames = CirronSettingNames(),
        within_budget: bool = False,
    ) -> None:
        """`certificate` is a file of CA certificates, used instead of the system's certificates.

        `timeout`, in seconds, applies separately to connecting, to sending, and to the response.
        `within_budget` sends the steps as summaries that a batch lists because of an export budget.
        Raises UsageError if the endpoint, the path, the key or the certificates are unusable.
        """
        url = checked_url(endpoint)
        if not _KEY.fullmatch(api_key):
            raise UsageError(
                "the API key is empty, or contains spaces or non-ASCII characters: copy it again"
            )
        if not _PATH.fullmatch(ingest_path):
            raise UsageError(
                f"the ingest path {ingest_path!a} is not a path: use one like /v1/traces"
            )
        if url.scheme == "http" and url.hostname not in _LOCAL:
            _logger.warning(
                "cirron-otel: %s is not encrypted: the API key can be read on its way", endpoint
            )
        self._path = ingest_path.rstrip("/")
        self.shown = f"{endpoint.rstrip('/')}{self._path}"
        self.key = digest("cirron target", self.shown)[:8].hex()
        self._secret = api_key
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "User-Agent": USER_AGENT,
            "X-Cirron-SDK-Version": sdk_version,
        }
        self._timeout, self._settings = timeout, settings
        self._within_budget = within_budget
        self._connect = partial(HttpClient, endpoint, certificate=certificate)
        self._client = self._connect()
        self._is_interrupted = False
        self.blobs: BlobSink = CirronBlobs(self._request, self._raise_for, self._path)

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """POST a batch. Raises an error if the response is not a success."""
        (batch,) = batches
        if self._within_budget:
            batch = _part_of(batch)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        parsed = parse_name(batch.name)
        if parsed is not None and _HEADER.fullmatch(parsed[1]):
            headers["X-Cirron-Batch-Id"] = parsed[1]  # as cirron-sdk 0.3.0 does
        body = gzip.compress(batch.data, _GZIP_LEVEL, mtime=0)
        answer = self._request("POST", self._path, headers, body)
        if not 200 <= answer.status < 300:
            self._raise_for(answer)
        return Receipt()

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        seconds: float | None = None,
    ) -> HttpAnswer:
        """Send one request and return the response, whatever its status.

        Raises UnreachableError if there is no response, MisconfiguredError if the configuration
        seems wrong, and StoppedError after `interrupt`.
        """
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.shown} took everything")
        try:
            answer = self._client.request(
                method, path, self._headers | dict(headers), body, timeout=seconds or self._timeout
            )
        except UsageError as error:
            raise MisconfiguredError(str(error)) from None
        except ssl.SSLCertVerificationError as error:
            why = f"no TLS connection ({error.verify_message}); check"
            why += f" {self._settings.certificate}"
            raise self._error(MisconfiguredError, why) from None
        except BrokenAnswerError as error:
            raise self._error(UnreachableError, f"its answer is not HTTP ({error})") from None
        except OSError as error:
            if self._is_interrupted:
                raise StoppedError(f"stopped while {self.shown} was asked") from None
            raise self._error(UnreachableError, f"no answer ({_reason(error)})") from None
        except ValueError as error:  # an invalid host or header
            why = f"no request can be made ({type(error).__name__}); check"
            raise self._error(MisconfiguredError, f"{why} {self._settings.endpoint}") from None
        if answer.headers.get("content-type", "").lower().startswith("text/html"):
            why = f"{answer.status}, and a web page: this is not a Cirron endpoint"
            kind = UnreachableError if answer.status >= 500 else MisconfiguredError
            raise self._error(
                kind, f"{why}; {_HINTS[404].format(self._settings)}", str(answer.status)
            )
        return answer

    def _raise_for(self, answer: HttpAnswer) -> NoReturn:
        status = answer.status
        hint = f"; {_HINTS[status].format(self._settings)}" if status in _HINTS else ""
        message = f" ({words})" if (words := _words(answer.content)) else ""
        why = f"{status} {answer.reason}{message}{hint}"
        if status in _REFUSES_THIS:
            raise self._error(RefusedError, why, str(status))
        if status not in _NOT_NOW and status < 500:
            if 300 <= status < 400:
                why = (
                    f"{status}, a redirect, which is not followed; check {self._settings.endpoint}"
                )
            raise self._error(MisconfiguredError, why, str(status))
        after = retry_after_seconds(answer.headers.get("retry-after", ""))
        raise self._error(UnreachableError, why, str(status), after)

    def _error(
        self, kind: type[PushError], why: str, status: str = "", retry_after: float | None = None
    ) -> PushError:
        text = without_secrets(f"{self.shown} did not accept: {why}", [self._secret])
        return kind(text, status=status, retry_after=retry_after)

    def interrupt(self) -> None:
        """Cancel the request in progress, if any, and refuse all later ones."""
        self._is_interrupted = True
        self._client.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def abandon(self) -> None:
        """In a forked child: close the child's copy of the connection."""
        self._client.abandon()

    def __repr__(self) -> str:
        return f"CirronTarget({self.shown!r})"


def _part_of(batch: SealedBatch) -> SealedBatch:
    try:
        return exported_part(batch)
    except InputError as error:
        raise RefusedError(f"{batch.name} cannot be summarised: {error}") from None


def _words(content: bytes) -> str:
    """Return the `message`, `detail` or `error` of a JSON error response, or else its text."""
    with suppress(ValueError, RecursionError):
        body = json.loads(content)
        if isinstance(body, dict):
            for name in ("message", "detail", "error"):
                if isinstance(body.get(name), str):
                    return str(body[name])
            return ""
    return content[:4096].decode("utf-8", "replace")


def _reason(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
