"""The target that sends sealed batches to an OTLP endpoint."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Final

from ....errors import InputError, UsageError
from ...delivery.batch_target import Receipt, SealedBatch
from ...delivery.errors import (
    MisconfiguredError,
    PushError,
    PushResult,
    RefusedError,
    UnreachableError,
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
"""The maximum number of partially accepted batches with remaining requests in memory."""

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


class OtlpTarget:
    """Sends batches to the endpoint of `config`; several small batches share one request.

    If a batch needs several requests and only some are accepted, only the remaining requests are
    sent again, as long as this object exists.
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
        self._rest: dict[str, tuple[bytes, ...]] = {}
        """The remaining requests of partially accepted batches, by batch name."""
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
            return self._pushed(b"".join(self._encoded(batch) for batch in batches))
        (batch,) = batches
        unsent = self._rest.pop(batch.name, None)
        requests = unsent or (self._encoded(batch),)
        is_partial = unsent is not None
        refused, receipt = "", Receipt()
        while requests:
            try:
                receipt = _joined(receipt, self._pushed(requests[0]))
                requests = requests[1:]
                is_partial = True
            except RefusedError as error:
                # The endpoint may still accept the other parts of a large batch.
                refused = str(error)
                requests = (*error.unsent[1:], *requests[1:])
                is_partial = True
            except PushError as error:
                if is_partial or error.result.requests:
                    self._keep(batch.name, (*(error.unsent or requests[:1]), *requests[1:]))
                raise
        if refused:
            raise RefusedError(refused)
        return receipt

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

    def _pushed(self, request: bytes) -> Receipt:
        if not request:
            return Receipt()  # no span in the batch was sampled
        try:
            return _receipt(self._pusher.push(request))
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

    def _keep(self, name: str, requests: tuple[bytes, ...]) -> None:
        self._rest[name] = requests
        if len(self._rest) > _MOST_PARTIAL:
            del self._rest[next(iter(self._rest))]

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


def _joined(one: Receipt, other: Receipt) -> Receipt:
    rejected = one.rejected_spans + other.rejected_spans
    return Receipt(rejected, other.message or one.message)
