"""The failures of a delivery, whatever the target is."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import EndpointError


@dataclass(frozen=True, slots=True)
class PushResult:
    """What became of the spans of one push."""

    accepted_spans: int = 0
    rejected_spans: int = 0
    """Refused by a partial success; sending them again is pointless."""
    error_message: str = ""
    """What the endpoint said in partial successes; it may warn without rejecting anything."""
    warnings: tuple[str, ...] = ()
    """What the encoding could not carry, or of an answer could not be read."""
    requests: int = 0
    """How many requests were accepted."""


class PushError(EndpointError):
    """Not everything was accepted; `result` says what was before the failure."""

    def __init__(
        self,
        message: str,
        result: PushResult | None = None,
        *,
        status: str = "",
        retry_after: float | None = None,
    ) -> None:
        """`status` is the endpoint's last answer, in the words of Response.status."""
        super().__init__(message)
        self.result = result or PushResult()
        self.status = status
        self.retry_after = retry_after
        """Seconds that the endpoint asked to wait, if it did."""
        self.unsent: tuple[bytes, ...] = ()
        """The requests that were not accepted, in order: the one that failed, and those behind."""


class RefusedError(PushError):
    """The endpoint refused for good: the same request will never be accepted."""


class UnreachableError(PushError):
    """The endpoint was not ready to accept before the deadline; it may be later."""


class StoppedError(PushError):
    """The push was told to stop before everything was accepted."""


class MisconfiguredError(UnreachableError):
    """The target says no to whatever is sent: a wrong key, URL, certificate or proxy.

    Setting it right must not have lost anything: it is tried again, slowly, and reported.
    """
