"""The target that sends sealed batches to an OTLP endpoint."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from ....errors import InputError, UsageError
from ...delivery.batch_target import Receipt, SealedBatch
from ...delivery.errors import (
    MisconfiguredError,
    PushError,
    PushResult,
    RefusedError,
    UnreachableError,
    joined,
)
from ...spool.paths import parse_name
from ...translator.own.encode import Options
from ...translator.translate import encode_own
from ..exported_part import exported_part
from .config import OtlpConfig, target_key
from .pusher import Pusher
from .sampled import sampled_part
from .summary import summarised

_GROUP_BYTES = 2_000_000
_MOST_PARTIAL = 4
"""The maximum number of batches whose unfinished parts are kept in memory."""

_REFUSES_THIS = re.compile(r"400|413|422|INVALID_ARGUMENT|")
"""Matches the status of a refusal that concerns the request itself.

Any other refusal (a 401, a web page) concerns the endpoint or the configuration. The status is
empty if individual spans are too large.
"""

_SERVER_FAULT = re.compile(r"5\d\d\b|408\b|425\b|INTERNAL|UNKNOWN|RESOURCE_EXHAUSTED")
"""Matches statuses that the specification does not call retryable but that may succeed later."""

_left_by_parents: Final[list[Pusher]] = []
"""In a forked child, the parent's pushers, kept alive: their destructors could hang, or end the
parent's calls.
"""


@dataclass(slots=True)
class _Rest:
    """The unfinished part of a batch, and the answers to the finished part."""

    requests: tuple[bytes, ...]
    """The requests without a final answer."""
    size: int
    """The size of the complete batch as OTLP, in bytes."""
    result: PushResult = field(default_factory=PushResult)
    """The sum of the results so far."""
    refusal: str = ""
    """The reasons for which parts were permanently refused; "" if none was."""

    @classmethod
    def of(cls, request: bytes) -> Self:
        """Return the rest of a batch that was not sent yet."""
        return cls((request,), len(request))

    def add(self, result: PushResult, requests: Sequence[bytes], refusal: str = "") -> None:
        """Add the result of a push, after which `requests` remain; `refusal` is its error."""
        self.result = self.result.plus(result)
        self.refusal = joined(joined(self.refusal, result.refusal), refusal)
        self.requests = tuple(requests)

    @property
    def is_worth_keeping(self) -> bool:
        """Whether sending the complete batch again would repeat an accepted request, or might
        change a refusal.
        """
        return self.result.requests > 0 or bool(self.requests and self.refusal)

    @property
    def receipt(self) -> Receipt:
        """The receipt for the accepted parts."""
        return _receipt(self.result)


class OtlpTarget:
    """Sends batches to the endpoint of `config`; several small batches share one request.

    If a batch needs several requests, and some of them must be sent again, only these are. The
    answers to the others are kept as well: the batch is refused if any part was, and its receipt
    covers all parts. Without what was kept, for example in a new process, the complete batch is
    sent again, and gets all answers again.
    """

    blobs = None

    def __init__(
        self,
        config: OtlpConfig,
        options: Options,
        *,
        whole_snapshots: bool = True,
        within_budget: bool = False,
    ) -> None:
        """Prepare the target, without opening a connection.

        `whole_snapshots=False` sends a summary of each span's snapshots instead of the snapshots.
        `within_budget` sends the steps as summaries that a batch lists because of an export budget.
        Raises MissingExtraError if the extra `otlp` is not installed, and UsageError if a
        certificate or header is unusable.
        """
        self.key = target_key(config)
        self.shown = config.shown_endpoint
        self._options = options
        self._whole_snapshots, self._within_budget = whole_snapshots, within_budget
        self._stop = threading.Event()
        self._pusher = Pusher(config, deadline=config.timeout, retry=False, stop=self._stop)
        self._rests: dict[str, _Rest] = {}
        """The unfinished parts of batches that got some answers, by batch name."""
        self._last: tuple[int, str] | None = None

    @property
    def request_bytes(self) -> int:
        """The maximum size in bytes of the batches in one request, as JSON: OTLP is smaller."""
        return min(_GROUP_BYTES, self._pusher.max_request_bytes)

    def skip_after(self, created_ns: int, owner: str) -> None:
        """Skip the batches that `owner` seals after `created_ns`.

        Call this if another exporter sends the spans of these batches.
        """
        self._last = created_ns, owner

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Push batches, several in one request.

        Raises the errors of `BatchTarget.send`, and RefusedError if OTLP cannot express a batch.
        """
        if len(batches) > 1:
            return self._send_group(batches)
        (batch,) = batches
        rest = self._rests.pop(batch.name, None) or _Rest.of(self._encoded(batch))
        try:
            self._send_rest(rest)
            if rest.refusal:
                raise RefusedError(rest.refusal, rest.result)
        except BaseException:
            self._keep(batch.name, rest)
            raise
        self._accepted(rest.result, rest.size)
        return rest.receipt

    def _send_group(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send batches together. If this fails, all of them are sent again, in groups or alone."""
        for batch in batches:
            self._rests.pop(batch.name, None)
        request = b"".join(self._encoded(batch) for batch in batches)
        result = self._pushed(request)
        if result.refusal:
            raise RefusedError(result.refusal, result)
        self._accepted(result, len(request))
        return _receipt(result)

    def _send_rest(self, rest: _Rest) -> None:
        """Send the remaining requests of a batch until one of them must be tried again later."""
        while rest.requests:
            request, *later = rest.requests
            try:
                rest.add(self._pushed(request), later)
            except RefusedError as error:
                # The endpoint may still accept the other parts of a large batch.
                rest.add(error.result, (*error.unsent[1:], *later), str(error))
            except PushError as error:
                rest.add(error.result, (*(error.unsent or (request,)), *later))
                error.refusal = rest.refusal
                raise

    def _accepted(self, result: PushResult, size: int) -> None:
        """Handle the acceptance of complete batches, `size` bytes in total as OTLP."""

    def forget(self, name: str) -> Receipt:
        """Drop the unfinished part of a batch; return the receipt of the accepted part."""
        rest = self._rests.pop(name, None)
        return Receipt() if rest is None else rest.receipt

    def _encoded(self, batch: SealedBatch) -> bytes:
        if self._last is not None and self._is_skipped(batch.name, *self._last):
            return b""
        try:
            data = sampled_part(batch.data)
            if data is None:
                return b""
            if self._within_budget:
                batch = exported_part(SealedBatch(batch.name, data))
                data = batch.data
            if not self._whole_snapshots:
                data = summarised(data)
            return encode_own(data, batch.name, self._options)
        except InputError as error:
            raise RefusedError(f"{batch.name} cannot be expressed in OTLP: {error}") from None

    def _is_skipped(self, name: str, created_ns: int, owner: str) -> bool:
        parsed = parse_name(name)
        return parsed is not None and parsed[0] > created_ns and parsed[1].startswith(owner)

    def _pushed(self, request: bytes) -> PushResult:
        if not request:
            return PushResult()  # no span in the batch was sampled
        try:
            return self._pusher.push(request)
        except RefusedError as error:
            if _REFUSES_THIS.fullmatch(error.status[:3]) or _REFUSES_THIS.fullmatch(error.status):
                raise
            kind = UnreachableError if _SERVER_FAULT.match(error.status) else MisconfiguredError
            later = kind(str(error), error.result, status=error.status)
            later.unsent = error.unsent
            raise later from None
        except UsageError as error:
            raise MisconfiguredError(str(error)) from None
        except InputError as error:  # our own request could not be split
            raise RefusedError(str(error)) from None

    def _keep(self, name: str, rest: _Rest) -> None:
        if rest.is_worth_keeping:
            self._rests[name] = rest
        if len(self._rests) > _MOST_PARTIAL:
            del self._rests[next(iter(self._rests))]

    def interrupt(self) -> None:
        """End the wait of a push; later pushes end before their first attempt."""
        self._stop.set()

    def close(self) -> None:
        """Close the connections."""
        self._pusher.close()

    def abandon(self) -> None:
        """In a forked child: leave the parent's connections untouched."""
        _left_by_parents.append(self._pusher)


def _receipt(result: PushResult) -> Receipt:
    return Receipt(result.rejected_spans, result.error_message)
