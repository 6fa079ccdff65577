"""The headers of a request that are kept with it, validated identically for gRPC and HTTP.

Exporters forward the kept headers, which determine the tenant that owns the data. So each header
must have exactly one value, in characters that every protocol can transmit (RFC 9110, "Field
Values"). Repeated headers are refused rather than merged or overwritten, so that a client cannot
bypass a proxy that adds a header.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from .consumer import Reason, RefusalError

KEPT_HEADERS: Final = (
    "x-scope-orgid",
    "x-cirron-sdk-version",
    "x-cirron-batch-id",
    "x-cirron-workspace-id",
    "x-cirron-run-id",
    "x-cirron-pipeline-id",
    "x-cirron-deployment-id",
    "x-cirron-model-id",
)
"""The headers that are kept by default."""
NEVER_KEPT: Final = frozenset(("authorization", "proxy-authorization", "cookie"))

LONGEST_VALUE: Final = 1024
"""The longest value, characters. Common servers accept 4 to 8 KiB for all headers of a request
combined."""

FIELD_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""A header value as defined by RFC 9110, 5.5, but without tabs and obsolete text, which gRPC cannot
transmit. Blanks at either end are not allowed: servers strip them, and the result may be another
tenant's value."""
_SURROUNDING = " \t"

Value = str | bytes
"""A header's value; gRPC returns bytes for values that are not text."""


class KeptHeaders:
    """Selects and validates the headers that are kept with a request."""

    def __init__(self, names: Collection[str] = KEPT_HEADERS) -> None:
        """`names` are case-insensitive; names of credentials are ignored."""
        self._names = frozenset(name.lower() for name in names) - NEVER_KEPT

    def select(self, headers: Iterable[tuple[str, Value]]) -> dict[str, str]:
        """Return the headers to keep, by lower-case name.

        Raises RefusalError if a kept header is repeated, blank, too long, or not printable ASCII.
        """
        by_name: dict[str, str] = {}
        for raw_name, value in headers:
            name = raw_name.lower()
            if name not in self._names:
                continue
            if name in by_name:
                raise _refusal(name, "several")
            by_name[name] = _checked(name, value)
        return by_name


def only_value(values: Collection[Value]) -> str | None:
    """Return the value of a header that must not be repeated; None if it is absent.

    Raises RefusalError with the reason UNAUTHENTICATED if it is repeated, because this function is
    used for `authorization`, and there is no safe choice between several values.
    """
    if len(values) > 1:
        raise RefusalError(
            Reason.UNAUTHENTICATED, f"expected one authorization header, found {len(values)}"
        )
    for value in values:
        return value if isinstance(value, str) else None
    return None


def _checked(name: str, value: Value) -> str:
    if not isinstance(value, str):
        raise _refusal(name, "bytes that are not text")
    value = value.strip(_SURROUNDING)
    if not value:
        raise _refusal(name, "a blank value")
    if len(value) > LONGEST_VALUE:
        raise _refusal(name, f"{len(value)} characters")
    if not FIELD_VALUE.fullmatch(value):
        raise _refusal(name, "other characters")
    return value


def _refusal(name: str, found: str) -> RefusalError:
    return RefusalError(
        Reason.HEADERS,
        f"expected one {name[:100]!a} of 1 to {LONGEST_VALUE} printable ASCII characters,"
        f" found {found}",
    )
