"""The target that sends sealed batches to an OTLP endpoint."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
_PARTIAL_BYTES = 32 * 1024 * 1024
"""The maximum total size of the unfinished parts that are kept in memory, in bytes of OTLP."""

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
        self._lock = threading.Lock()
        """Held while a thread uses `_rests` or handles an acceptance."""
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
        return self._prepared(batches, self._pusher)()

    def _prepared(self, batches: Sequence[SealedBatch], pusher: Pusher) -> Callable[[], Receipt]:
        """Encode batches, and return a function that pushes them, from any thread.

        No other thread may use `pusher` meanwhile. Raises RefusedError as `send` does.
        """
        with self._lock:
            rests = [self._rests.pop(batch.name, None) for batch in batches]
        if len(batches) > 1:
            request = b"".join(self._encoded(batch) for batch in batches)
            return partial(self._send_group, request, pusher)
        (batch,) = batches
        rest = rests[0] or _Rest.of(self._encoded(batch))
        return partial(self._send_one, batch.name, rest, pusher)

    def _send_one(self, name: str, rest: _Rest, pusher: Pusher) -> Receipt:
        try:
            self._send_rest(rest, pusher)
            if rest.refusal:
                raise RefusedError(rest.refusal, rest.result)
        except BaseException:
            self._keep(name, rest)
            raise
        with self._lock:
            self._accepted(rest.result, rest.size)
        return rest.receipt

    def _send_group(self, request: bytes, pusher: Pusher) -> Receipt:
        """Send batches together. If this fails, all of them are sent again, in groups or alone."""
        result = self._pushed(request, pusher)
        if result.refusal:
            raise RefusedError(result.refusal, result)
        with self._lock:
            self._accepted(result, len(request))
        return _receipt(result)

    def _send_rest(self, rest: _Rest, pusher: Pusher) -> None:
        """Send the remaining requests of a batch until one of them must be tried again later."""
        while rest.requests:
            request, *later = rest.requests
            try:
                rest.add(self._pushed(request, pusher), later)
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
        with self._lock:
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

    def _pushed(self, request: bytes, pusher: Pusher) -> PushResult:
        if not request:
            return PushResult()  # no span in the batch was sampled
        try:
            return pusher.push(request)
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
        """Keep the unfinished part of a batch; drop the oldest others above the maximum size."""
        if not rest.is_worth_keeping:
            return
        with self._lock:
            self._rests[name] = rest
            total = sum(each.size for each in self._rests.values())
            while total > _PARTIAL_BYTES and len(self._rests) > 1:
                total -= self._rests.pop(next(iter(self._rests))).size

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
