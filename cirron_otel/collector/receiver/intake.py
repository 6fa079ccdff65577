"""The consumer of all servers' requests: it checks a request, appends it to the journal, and
answers.

The checks cover only the properties that the response depends on: whether the body has the declared
type, and how many elements it contains. The content is translated later, from the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.proto.logs.v1.logs_pb2 import LogsData

from ...core.translator.logs.log_marks import keep_marks
from ...errors import UsageError
from .consumer import (
    BodyEncoding,
    ConsumeResult,
    Reason,
    ReceivedRequest,
    ReceivedSignal,
    RefusalError,
)
from .journal.files import Head
from .journal.writer import IntakeJournal, JournalBusyError, JournalFullError
from .measure import MAX_ELEMENTS, RequestContent
from .reading import LARGE, ReadTurns, batch_of, check_object, from_json, measured

_BUSY_S, _FULL_S = 1.0, 5.0
_ACCEPT, _MARKS = "accept", "marks"


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """The limits on requests."""

    body_bytes: int = 64 * 1024 * 1024
    elements: int = MAX_ELEMENTS
    in_flight_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SignalPolicy:
    """How signals other than traces are treated; `accept` acknowledges and drops them."""

    logs: str = "refuse"
    """`marks` stores the log records that are marks, and drops all other log records."""
    metrics: str = "refuse"


class Intake:
    """The `Consumer` of a collector; for the tasks of one event loop."""

    def __init__(
        self,
        journal: IntakeJournal,
        limits: IntakeLimits | None = None,
        signals: SignalPolicy | None = None,
        *,
        on_written: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_written` is called after each append to the journal; `is_over` returns whether the
        collector is shutting down.
        """
        self._journal, self._limits = journal, limits or IntakeLimits()
        self._signals = signals or SignalPolicy()
        self._on_written, self._is_over = on_written, is_over
        self._turns = ReadTurns()
        self._in_flight = 0
        self.spans = 0
        """Number of accepted spans."""
        self.marks = 0
        """Number of accepted log records that are marks."""

    def apply(self, limits: IntakeLimits, signals: SignalPolicy) -> None:
        """Replace the limits and the signal policy for all later requests."""
        self._limits, self._signals = limits, signals

    @property
    def max_body_bytes(self) -> int:
        """The size of the largest accepted body after decompression, bytes."""
        return self._limits.body_bytes

    @property
    def in_flight(self) -> int:
        """The number of bytes reserved for bodies."""
        return self._in_flight

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes for a body in flight until `release`; False if there is no room."""
        if self._in_flight + size > self._limits.in_flight_bytes:
            return False
        self._in_flight += size
        return True

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self._in_flight -= size

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        """Check a request and store it; when this returns, the request survives a power cut.

        Raises RefusalError if the request is not stored.
        """
        if request.signal is ReceivedSignal.TRACEML:
            # Frames have no acknowledgement: those that were read before a shutdown are stored.
            await self._keep(request, request.body, request.encoding)
            return ConsumeResult()
        if self._is_over():
            raise RefusalError(Reason.UNAVAILABLE, "the collector is shutting down", _FULL_S)
        if request.signal is ReceivedSignal.CIRRON:
            return await self._take_batch(request)
        if request.signal is ReceivedSignal.LOGS and self._signals.logs == _MARKS:
            return await self._take_logs(request)
        if request.signal is not ReceivedSignal.TRACES:
            return await self._take_other(request)
        body, content, warning = await self._traces(request)
        if not content.is_empty:
            await self._keep(request, body, BodyEncoding.PROTOBUF)
            self.spans += content.spans
        return ConsumeResult(message=warning)

    async def _traces(self, request: ReceivedRequest) -> tuple[bytes, RequestContent, str]:
        """Return the request as protobuf, its content, and a warning."""
        body, most = request.body, self._limits.elements
        if request.encoding is BodyEncoding.JSON:
            return await self._turns.read(body, lambda: _from_json(body, most))
        content = await self._turns.read(
            body, lambda: measured(body, ReceivedSignal.TRACES, most), LARGE
        )
        return body, content, ""

    async def _take_other(self, request: ReceivedRequest) -> ConsumeResult:
        """Check a request for metrics or logs, and drop it."""
        name = request.signal.value
        policy = (
            self._signals.logs if request.signal is ReceivedSignal.LOGS else self._signals.metrics
        )
        if policy != _ACCEPT:
            raise RefusalError(Reason.UNSUPPORTED, f"{name} are not accepted: send traces")
        body, most = request.body, self._limits.elements
        if request.encoding is BodyEncoding.PROTOBUF:
            await self._turns.read(body, lambda: measured(body, request.signal, most), LARGE)
        else:
            await self._turns.read(body, lambda: check_object(body, most))
        return ConsumeResult(message=f"{name} are not stored")

    async def _take_logs(self, request: ReceivedRequest) -> ConsumeResult:
        """Store the log records that are marks; report all other log records as rejected."""
        most = self._limits.elements
        body, marks, others, warning = await self._turns.read(
            request.body, lambda: _marks(request, most)
        )
        if marks:
            await self._keep(request, body, BodyEncoding.PROTOBUF)
            self.marks += marks
        if others:
            why = f"{others} log records are not marks (an event name, and a span): not stored"
            warning = f"{why}; {warning}" if warning else why
        return ConsumeResult(others, warning)

    async def _take_batch(self, request: ReceivedRequest) -> ConsumeResult:
        body, most = request.body, self._limits.elements
        batch = await self._turns.read(body, lambda: batch_of(body, most))
        await self._keep(request, body, BodyEncoding.JSON)
        self.spans += batch.spans
        return ConsumeResult(batch_id=batch.batch_id)

    async def _keep(self, request: ReceivedRequest, body: bytes, encoding: BodyEncoding) -> None:
        head = Head(
            request.signal,
            encoding,
            request.received_ns,
            dict(request.headers),
        )
        try:
            await self._journal.append(head, body)
        except UsageError as error:
            raise RefusalError(Reason.TOO_LARGE, str(error)) from None
        except JournalBusyError:
            raise RefusalError(
                Reason.BUSY, "too much data is waiting for the disk", _BUSY_S
            ) from None
        except JournalFullError:
            raise RefusalError(
                Reason.UNAVAILABLE,
                "nothing can be stored now: the disk is full or unavailable",
                _FULL_S,
            ) from None
        self._on_written()


def _from_json(body: bytes, most: int) -> tuple[bytes, RequestContent, str]:
    """Convert OTLP/JSON to protobuf; also return its content and a warning."""
    message, warning = from_json(body, ReceivedSignal.TRACES, most)
    body = message.SerializeToString()
    del message
    return body, measured(body, ReceivedSignal.TRACES, most), warning


def _marks(request: ReceivedRequest, most: int) -> tuple[bytes, int, int, str]:
    """Select the log records of a request that are marks.

    Returns the marks as protobuf, the number of marks, the number of other log records, and a
    warning.
    """
    body, warning = request.body, ""
    is_json = request.encoding is BodyEncoding.JSON
    if is_json:
        message, warning = from_json(body, ReceivedSignal.LOGS, most)
    else:
        measured(body, ReceivedSignal.LOGS, most)
        message = LogsData.FromString(body)
    marks, others = keep_marks(message)
    if marks and (others or is_json):
        body = message.SerializeToString()
        measured(body, ReceivedSignal.LOGS, most)
    return body, marks, others, warning
