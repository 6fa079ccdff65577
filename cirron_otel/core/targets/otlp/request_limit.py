"""The maximum size of a request, learned from what an endpoint accepts and refuses."""

from __future__ import annotations

MIN_REQUEST_BYTES = 8 * 1024
"""The minimum of the limit, in bytes."""

_FIRST_TRIAL = 16
_LAST_TRIAL = 256
"""The limit is doubled after this number of accepted requests: 16 at first, and twice as many each
time that the endpoint refuses the doubled size."""


class RequestLimit:
    """The maximum size of a request to one endpoint, in bytes.

    It is reduced if the endpoint refuses larger requests, and grows again with the number of
    accepted requests, because the endpoint's limit may have changed.
    """

    def __init__(self, most: int, least: int = MIN_REQUEST_BYTES) -> None:
        """Start with the limit `most`. The limit is never reduced below `least`."""
        self.bytes = most
        self._most, self._least = most, min(least, most)
        self._trial = _FIRST_TRIAL
        """The number of accepted requests after which the limit grows."""
        self._accepted = 0
        """The number of accepted requests since the limit last changed."""
        self._has_grown = False

    def accepted(self) -> None:
        """Record that the endpoint accepted a request within the limit."""
        if self.bytes == self._most:
            return
        self._accepted += 1
        if self._accepted >= self._trial:
            self.bytes = min(2 * self.bytes, self._most)
            self._accepted, self._has_grown = 0, True

    def reduce(self, fitting: int) -> None:
        """Record that a request was refused for its size, and that `fitting` bytes were accepted.

        This does not increase the limit.
        """
        reduced = max(fitting, self._least)
        if reduced >= self.bytes:
            return
        if self._has_grown:
            self._trial = min(2 * self._trial, _LAST_TRIAL)
        self.bytes, self._accepted, self._has_grown = reduced, 0, False
