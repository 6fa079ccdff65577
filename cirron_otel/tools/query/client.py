"""GET requests to a query API, limited in size and time, with retries and one-line errors.

This module needs the extra `otlp`, which installs `requests`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib.parse import quote

from ...core.targets.otlp.config import TENANT_HEADER
from ...core.targets.otlp.transport import USER_AGENT, retry_after_seconds, without_secrets
from ...errors import EndpointError, MissingExtraError, UsageError
from .address import HEADERS_VARIABLE, QueryAddress

try:
    import requests
    from requests import exceptions
except ImportError:  # pragma: no cover - installed for tests
    raise MissingExtraError("otlp", "reading from Jaeger or Tempo") from None

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""The largest response that is read, bytes after decompression."""
ANSWER_SECONDS = 300.0
"""The maximum duration of one response."""
_SILENT_SECONDS = 60.0
"""The maximum time for which a server may send nothing."""
_CONNECT_SECONDS = 10.0
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0
_AGAIN = frozenset((429, 502, 503, 504))
_SHOWN_BYTES = 4096
Parameters = Mapping[str, str | int]
_PIECE = 64 * 1024
_NO_SUCH_PATH = b"page not found"
"""The content of a 404 response of a Go server that does not have this API; a 404 for an unknown
trace differs."""


class QueryResponse(NamedTuple):
    """The response of a server."""

    status: int
    kind: str
    """The content type without parameters, in lower case."""
    content: bytes


class ResponseTooLongError(EndpointError):
    """A response has more than `MAX_ANSWER_BYTES` bytes."""


class QueryClient:
    """Sends requests to one server. A context manager that closes its connections."""

    def __init__(self, address: QueryAddress) -> None:
        """Store the address; the first request connects."""
        self._address = address
        self._session = requests.Session()
        # Otherwise `requests` would replace our Authorization header with the entry for the host in
        # ~/.netrc.
        self._session.auth = lambda request: request
        self._headers = {"user-agent": USER_AGENT, "accept-encoding": "gzip", **address.headers}
        self.bytes_read = 0
        """The total size of all responses, bytes after decompression."""

    def get(
        self,
        path: str,
        parameters: Parameters | None = None,
        *,
        accept: str = "application/json",
        absent: bool = False,
    ) -> QueryResponse | None:
        """GET `path` below the address; return None for status 404 if `absent` is true.

        Raises EndpointError if there is no response or its status is not a success, UsageError if
        the request is invalid, and ResponseTooLongError.
        """
        pause = _FIRST_PAUSE_S
        for attempt in range(1, _ATTEMPTS + 1):
            answer, problem, after = self._attempt(path, parameters or {}, accept)
            if answer is not None and answer.status not in _AGAIN:
                return self._judged(answer, absent)
            if attempt < _ATTEMPTS:
                time.sleep(min(pause if after is None else after, _LONGEST_PAUSE_S))
                pause *= 2
        if answer is not None:
            problem = f"{answer.status}: {self._said(answer)}"
        raise EndpointError(f"{self._address.shown} does not answer: {problem}")

    def _attempt(
        self, path: str, parameters: Parameters, accept: str
    ) -> tuple[QueryResponse | None, str, float | None]:
        """Return the response or the problem, and the delay in seconds that the server requests."""
        try:
            with self._session.get(
                self._address.url + quote(path),
                params=parameters,
                headers={**self._headers, "accept": accept},
                timeout=(_CONNECT_SECONDS, _SILENT_SECONDS),
                allow_redirects=False,
                stream=True,
            ) as response:
                after = retry_after_seconds(response.headers.get("retry-after", ""))
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                content = self._content(response)
                return QueryResponse(response.status_code, kind, content), "", after
        except (exceptions.InvalidHeader, exceptions.InvalidURL, UnicodeError) as error:
            raise UsageError(
                f"no request can be made for {self._address.url} ({type(error).__name__}): check"
                f" the address, {HEADERS_VARIABLE}, and the proxy variables"
            ) from None
        except exceptions.SSLError as error:
            raise EndpointError(
                f"{self._address.shown}: no TLS connection: {self._one_line(_cause(error))}; its"
                " certificate is checked against REQUESTS_CA_BUNDLE, if that is set"
            ) from None
        except exceptions.RequestException as error:
            return None, self._one_line(_cause(error)), None

    def _content(self, response: requests.Response) -> bytes:
        deadline = time.monotonic() + ANSWER_SECONDS
        content = bytearray()
        for piece in response.iter_content(_PIECE):
            content += piece
            self.bytes_read += len(piece)
            if len(content) > MAX_ANSWER_BYTES:
                raise ResponseTooLongError(
                    f"{self._address.shown}: an answer of more than {MAX_ANSWER_BYTES >> 20} MiB,"
                    " the most that is read: ask for less (a trace, or a shorter time)"
                )
            if time.monotonic() > deadline:
                raise EndpointError(
                    f"{self._address.shown}: an answer took more than {ANSWER_SECONDS:.0f} s"
                )
        return bytes(content)

    def _judged(self, answer: QueryResponse, absent: bool) -> QueryResponse | None:
        shown = self._address.shown
        if answer.kind == "text/html" and answer.status < 500:
            raise EndpointError(
                f"{shown} answered with a web page ({answer.status}): name the query API's own"
                f" address (Jaeger: port 16686, Tempo: 3200; without a page's path)"
            )
        if 200 <= answer.status < 300:
            return answer
        if answer.status == 404 and absent and _NO_SUCH_PATH not in answer.content:
            return None
        message = f"{shown} answered {answer.status}"
        if words := self._said(answer):
            message += f": {words}"
        if answer.status in (401, 403) or (answer.status == 400 and "org id" in words.lower()):
            message += f"; headers come from {HEADERS_VARIABLE}, a tenant from tenant="
        elif 300 <= answer.status < 400:
            message += ": a redirect, which is not followed; name the address that it leads to"
        raise EndpointError(message)

    def _said(self, answer: QueryResponse) -> str:
        return self._one_line(answer.content[:_SHOWN_BYTES].decode("utf-8", "replace"))

    def _one_line(self, text: str) -> str:
        headers = self._address.headers
        # A tenant is not a secret, and error messages of servers contain its name.
        secrets = [value for name, value in headers.items() if name != TENANT_HEADER]
        secrets += [part for value in secrets for part in value.split()]
        return without_secrets(text, secrets)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cause(error: BaseException) -> str:
    """Return the root cause of a network failure, because the errors that wrap it repeat the
    URL.
    """
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, TimeoutError):
        return "timed out"
    if type(error).__name__ in ("IncompleteRead", "DecodeError", "error"):
        return f"the answer breaks off, or is damaged ({error})"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
