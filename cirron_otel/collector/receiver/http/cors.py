"""Cross-origin requests from browsers (fetch.spec.whatwg.org, "CORS protocol"); off by default."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from .answers import HttpError, Reply

ANY: Final = "*"
_ALWAYS: Final = ("accept", "content-encoding", "content-type", "x-requested-with")
"""Request headers that are allowed without being listed: OTLP over HTTP needs them."""
_REQUEST_METHOD: Final = "Access-Control-Request-Method"
_EXPOSED: Final = "Retry-After"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,200}")


@dataclass(frozen=True)
class Cors:
    """The origins whose pages may send requests, and the headers that are allowed."""

    origins: Sequence[str] = ()
    """Origins such as `https://app.example`, as browsers send them; one `*` matches any text."""
    headers: Sequence[str] = ()
    """Request headers in addition to those of OTLP, case-insensitive; `*` allows all."""
    max_age_s: int | None = None
    """How long a browser may cache the answer to a preflight request, seconds."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = (".*".join(map(re.escape, origin.split(ANY))) for origin in self.origins)
        return re.compile("|".join(parts), re.IGNORECASE)

    def allows(self, origin: str | None) -> bool:
        """Return whether pages of `origin` may send requests."""
        return bool(self.origins) and origin is not None and bool(self._pattern.fullmatch(origin))

    def answer_headers(self, origin: str | None) -> dict[str, str]:
        """Return the CORS headers for responses to requests from `origin`."""
        if not self.origins:
            return {}
        if not self.allows(origin):
            return {"Vary": "Origin"}
        if ANY in self.origins:
            # Do not combine a wildcard with credentials: any page could use a client certificate.
            return {"Access-Control-Allow-Origin": ANY, "Access-Control-Expose-Headers": _EXPOSED}
        assert origin is not None  # noqa: S101 - allows() is false for None
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",  # for navigator.sendBeacon
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }

    def preflight(self, headers: Mapping[str, str], methods: Sequence[str]) -> Reply:
        """Answer a preflight request for a path that accepts `methods`.

        The caller adds the headers of `answer_headers`. Raises HttpError 403 if the origin is not
        allowed.
        """
        if not self.allows(headers.get("Origin")):
            raise HttpError(403, "pages of this origin may not send requests here", reason="origin")
        allowed = {name.lower() for name in (*_ALWAYS, *self.headers)}
        raw_names = headers.get("Access-Control-Request-Headers", "").split(",")
        names = [name for each in raw_names if _TOKEN.fullmatch(name := each.strip().lower())]
        if ANY not in allowed:
            names = [name for name in names if name in allowed]
        answer = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": ", ".join(names) or ", ".join(_ALWAYS),
        }
        if self.max_age_s is not None:
            answer["Access-Control-Max-Age"] = str(self.max_age_s)
        return Reply(204, headers=answer)


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request is a CORS preflight request."""
    return method == "OPTIONS" and "Origin" in headers and _REQUEST_METHOD in headers
