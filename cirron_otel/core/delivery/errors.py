"""The failures of a delivery to any target."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import EndpointError


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of one push: how many spans and requests were accepted."""

    accepted_spans: int = 0
    rejected_spans: int = 0
    """Refused by a partial success; sending them again is pointless."""
    error_message: str = ""
    """The messages of partial successes; an endpoint may warn and still accept all spans."""
    warnings: tuple[str, ...] = ()
    """Values that the encoding cannot express, and parts of answers that cannot be read."""
    requests: int = 0
    """The number of accepted requests."""


class PushError(EndpointError):
    """The push failed; `result` has the spans that were accepted before the failure."""

    def __init__(
        self,
        message: str,
        result: PushResult | None = None,
        *,
        status: str = "",
        retry_after: float | None = None,
    ) -> None:
        """`status` is the endpoint's last answer, in the form of Response.status."""
        super().__init__(message)
        self.result = result or PushResult()
        self.status = status
        self.retry_after = retry_after
        """Seconds that the endpoint asked to wait, if it did."""
        self.unsent: tuple[bytes, ...] = ()
        """The requests that were not accepted, in order: the failed one and all after it."""


class RefusedError(PushError):
    """The endpoint refused permanently: the same request will never be accepted."""


class UnreachableError(PushError):
    """The endpoint did not accept the request before the deadline, but may accept it later."""


class StoppedError(PushError):
    """The push was stopped before everything was accepted."""


class MisconfiguredError(UnreachableError):
    """The target refuses every request: a wrong key, URL, certificate or proxy.

    Nothing is lost: the delivery reports it, and tries again slowly until it is corrected.
    """
