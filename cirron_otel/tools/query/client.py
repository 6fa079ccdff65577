"""GET requests to a query API, limited in size and time, with retries and one-line errors.

This module needs the extra `otlp`, which installs `certifi`.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib.parse import quote, urlencode

from ...core.delivery.retry_policy import Backoff
from ...core.http.client import (
    AnswerTooLateError,
    AnswerTooLongError,
    BrokenAnswerError,
    HttpAnswer,
)
from ...core.targets.otlp.config import TENANT_HEADER
from ...core.targets.otlp.transport import (
    USER_AGENT,
    cause_of,
    retry_after_seconds,
    without_secrets,
)
from ...errors import EndpointError, MissingExtraError, UsageError
from .address import HEADERS_VARIABLE, QueryAddress

try:
    from ...core.http.session import HttpSession
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
        self._headers = {"user-agent": USER_AGENT, "accept-encoding": "gzip", **address.headers}
        self._session: HttpSession | None = None
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
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        for attempt in range(_ATTEMPTS):
            answer, problem, after = self._attempt(path, parameters or {}, accept)
            if answer is not None and answer.status not in _AGAIN:
                return self._judged(answer, absent)
            if attempt < _ATTEMPTS - 1:
                wait = backoff.wait(attempt) if after is None else after
                time.sleep(min(wait, _LONGEST_PAUSE_S))
        if answer is not None:
            problem = f"{answer.status}: {self._said(answer)}"
        raise EndpointError(f"{self._address.shown} does not answer: {problem}")

    def _attempt(
        self, path: str, parameters: Parameters, accept: str
    ) -> tuple[QueryResponse | None, str, float | None]:
        """Return the response or the problem, and the delay in seconds that the server requests."""
        url = quote(path) + (f"?{urlencode(parameters)}" if parameters else "")
        try:
            answer = self._sent(url, {**self._headers, "accept": accept})
            content = self._content(answer)
        except AnswerTooLateError:
            raise EndpointError(
                f"{self._address.shown}: an answer took more than {ANSWER_SECONDS:.0f} s"
            ) from None
        except (ssl.SSLError, FileNotFoundError) as error:
            raise EndpointError(
                f"{self._address.shown}: no TLS connection: {self._one_line(cause_of(error))}; its"
                " certificate is checked against REQUESTS_CA_BUNDLE, if that is set"
            ) from None
        except (OSError, BrokenAnswerError) as error:
            return None, self._one_line(cause_of(error)), None
        except ValueError as error:  # an invalid header or address
            raise UsageError(
                f"no request can be made for {self._address.url} ({type(error).__name__}): check"
                f" the address, {HEADERS_VARIABLE}, and the proxy variables"
            ) from None
        if content is None:
            problem = f"the answer breaks off, or is damaged ({answer.problem})"
            return None, self._one_line(problem), None
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        after = retry_after_seconds(answer.headers.get("retry-after", ""))
        return QueryResponse(answer.status, kind, content), "", after

    def _sent(self, url: str, headers: Mapping[str, str]) -> HttpAnswer:
        if self._session is None:
            self._session = HttpSession(self._address.url, finds_login=False)
        return self._session.request(
            "GET",
            url,
            headers,
            timeout=ANSWER_SECONDS,
            connect_timeout=_CONNECT_SECONDS,
            silence=_SILENT_SECONDS,
            longest=MAX_ANSWER_BYTES,
        )

    def _content(self, answer: HttpAnswer) -> bytes | None:
        """Return the body; None if it is damaged. Raises the errors of `get`, and OSError."""
        self.bytes_read += len(answer.content)
        if isinstance(answer.problem, AnswerTooLongError):
            raise ResponseTooLongError(
                f"{self._address.shown}: an answer of more than {MAX_ANSWER_BYTES >> 20} MiB,"
                " the most that is read: ask for less (a trace, or a shorter time)"
            )
        if isinstance(answer.problem, OSError):
            raise answer.problem
        return answer.content if answer.problem is None else None

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
        """Close the connection."""
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
