"""The failures of a delivery to any target."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import EndpointError

_LONGEST = 3_000
"""The length in characters from which no further messages are added to a text."""
_MOST_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of one push: how many spans and requests were accepted."""

    accepted_spans: int = 0
    rejected_spans: int = 0
    """The number of spans that partial successes rejected; sending them again is pointless."""
    error_message: str = ""
    """The messages of partial successes. An endpoint may send one even if it accepts all spans."""
    warnings: tuple[str, ...] = ()
    """Descriptions of values that the encoding cannot express, and of unreadable responses."""
    requests: int = 0
    """The number of accepted requests."""
    refused_spans: int = 0
    """The number of spans that were refused because each is too large for a request of its own."""
    refusal: str = ""
    """The reasons for `refused_spans`."""

    def plus(self, later: PushResult) -> PushResult:
        """Return the sum of this result and the result of a later push."""
        return PushResult(
            self.accepted_spans + later.accepted_spans,
            self.rejected_spans + later.rejected_spans,
            joined(self.error_message, later.error_message),
            tuple(dict.fromkeys((*self.warnings, *later.warnings)))[:_MOST_WARNINGS],
            self.requests + later.requests,
            self.refused_spans + later.refused_spans,
            joined(self.refusal, later.refusal),
        )


def joined(text: str, later: str) -> str:
    """Return two messages as one; the later one is dropped if it is known or the text is long."""
    if not text or not later:
        return text or later
    return text if later in text or len(text) > _LONGEST else f"{text}; {later}"


class PushError(EndpointError):
    """The push failed. `result` counts the spans that were accepted before the failure."""

    def __init__(
        self,
        message: str,
        result: PushResult | None = None,
        *,
        status: str = "",
        retry_after: float | None = None,
    ) -> None:
        """`status` is the endpoint's last answer, as in Response.status."""
        super().__init__(message)
        self.result = result or PushResult()
        self.status = status
        self.retry_after = retry_after
        """The wait in seconds that the endpoint asked for, if any."""
        self.unsent: tuple[bytes, ...] = ()
        """The requests that were not accepted, in order: the failed request and all later ones."""
        self.refusal = ""
        """Why the target permanently refused earlier parts of the batch; "" if it did not."""

    @property
    def reason(self) -> str:
        """The message, and the reasons for which earlier parts of the batch were refused."""
        return joined(str(self), self.refusal)


class RefusedError(PushError):
    """The endpoint permanently refused the request: it will never accept the same request."""


class UnreachableError(PushError):
    """The endpoint did not accept the request before the deadline, but may accept it later."""


class StoppedError(PushError):
    """The push was stopped before everything was accepted."""


class MisconfiguredError(UnreachableError):
    """The target refuses every request, for example because of a wrong key, URL or certificate.

    Nothing is lost: the delivery reports the error, and retries slowly until it is corrected.
    """


class WithheldError(MisconfiguredError):
    """A batch must not be sent for now.

    Its lane, as returned by the target's `lane_of`, may have changed since it was queued.
    """
