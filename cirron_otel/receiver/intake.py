"""What stands behind all servers: a request is looked at, kept in the journal, and answered.

What is looked at is what the answer depends on: that the body is what it says it is, and how much
is in it. What it says is the translation's business, behind the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.proto.logs.v1.logs_pb2 import LogsData

from ..errors import UsageError
from ..translator.log_marks import keep_marks
from .export import (
    BodyEncoding,
    ConsumeResult,
    Reason,
    ReceivedRequest,
    ReceivedSignal,
    RefusalError,
)
from .journal import IntakeJournal, JournalBusyError, JournalFullError
from .journal_files import Head
from .measure import MAX_ELEMENTS, RequestContent
from .reading import LARGE, ReadTurns, batch_of, check_object, from_json, measured

_BUSY_S, _FULL_S = 1.0, 5.0
_ACCEPT, _MARKS = "accept", "marks"


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What is taken at most."""

    body_bytes: int = 64 * 1024 * 1024
    elements: int = MAX_ELEMENTS
    in_flight_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SignalPolicy:
    """What becomes of signals beside traces: `accept` acknowledges and drops them."""

    logs: str = "refuse"
    """`marks` keeps the log records that are marks, and drops the others."""
    metrics: str = "refuse"


class Intake:
    """The `Exporter` of a collector; for the tasks of one event loop."""

    def __init__(
        self,
        journal: IntakeJournal,
        limits: IntakeLimits | None = None,
        signals: SignalPolicy | None = None,
        *,
        kept: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`kept` is called when something was journalled; `is_over`: whether it is to end."""
        self._journal, self._limits = journal, limits or IntakeLimits()
        self._signals = signals or SignalPolicy()
        self._kept, self._is_over = kept, is_over
        self._turns = ReadTurns()
        self._in_flight = 0
        self.spans = 0
        """Taken so far, as measured."""
        self.marks = 0
        """Log records that were taken for marks."""

    def apply(self, limits: IntakeLimits, signals: SignalPolicy) -> None:
        """Take other limits and signals: for requests that come from now on."""
        self._limits, self._signals = limits, signals

    @property
    def max_body_bytes(self) -> int:
        """See Exporter."""
        return self._limits.body_bytes

    @property
    def in_flight(self) -> int:
        """Bytes of bodies that are reserved."""
        return self._in_flight

    def reserve(self, size: int) -> bool:
        """See Exporter."""
        if self._in_flight + size > self._limits.in_flight_bytes:
            return False
        self._in_flight += size
        return True

    def release(self, size: int) -> None:
        """See Exporter."""
        self._in_flight -= size

    async def consume(self, request: ReceivedRequest) -> ConsumeResult:
        """See Exporter."""
        if self._is_over():
            raise RefusalError(Reason.UNAVAILABLE, "the collector is going down", _FULL_S)
        if request.signal is ReceivedSignal.CIRRON:
            return await self._take_batch(request)
        if request.signal is ReceivedSignal.LOGS and self._signals.logs == _MARKS:
            return await self._take_logs(request)
        if request.signal is not ReceivedSignal.TRACES:
            return await self._take_other(request)
        body, found, told = await self._traces(request)
        if not found.is_empty:
            await self._keep(request, body, BodyEncoding.PROTOBUF)
            self.spans += found.spans
        return ConsumeResult(message=told)

    async def _traces(self, request: ReceivedRequest) -> tuple[bytes, RequestContent, str]:
        """The request in protobuf, what it holds, and a warning."""
        body, most = request.body, self._limits.elements
        if request.encoding is BodyEncoding.JSON:
            return await self._turns.read(body, lambda: _from_json(body, most))
        found = await self._turns.read(
            body, lambda: measured(body, ReceivedSignal.TRACES, most), LARGE
        )
        return body, found, ""

    async def _take_other(self, request: ReceivedRequest) -> ConsumeResult:
        """Look whether it is what it says it is, and drop it."""
        name = request.signal.value
        wanted = (
            self._signals.logs if request.signal is ReceivedSignal.LOGS else self._signals.metrics
        )
        if wanted != _ACCEPT:
            raise RefusalError(Reason.UNSUPPORTED, f"{name} are not taken here: send traces")
        body, most = request.body, self._limits.elements
        if request.encoding is BodyEncoding.PROTOBUF:
            await self._turns.read(body, lambda: measured(body, request.signal, most), LARGE)
        else:
            await self._turns.read(body, lambda: check_object(body, most))
        return ConsumeResult(message=f"{name} are not kept here")

    async def _take_logs(self, request: ReceivedRequest) -> ConsumeResult:
        """Keep the records that are marks; the others are told to be rejected."""
        most = self._limits.elements
        body, marks, others, told = await self._turns.read(
            request.body, lambda: _marks(request, most)
        )
        if marks:
            await self._keep(request, body, BodyEncoding.PROTOBUF)
            self.marks += marks
        if others:
            why = f"{others} log records are no marks (an event name, and a span): not kept here"
            told = f"{why}; {told}" if told else why
        return ConsumeResult(others, told)

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
                Reason.BUSY, "more is waiting for the disk than may", _BUSY_S
            ) from None
        except JournalFullError:
            raise RefusalError(
                Reason.UNAVAILABLE, "nothing can be kept now: the disk is full or away", _FULL_S
            ) from None
        self._kept()


def _from_json(body: bytes, most: int) -> tuple[bytes, RequestContent, str]:
    """OTLP/JSON in protobuf, what it holds, and a warning."""
    message, told = from_json(body, ReceivedSignal.TRACES, most)
    body = message.SerializeToString()
    del message
    return body, measured(body, ReceivedSignal.TRACES, most), told


def _marks(request: ReceivedRequest, most: int) -> tuple[bytes, int, int, str]:
    """Those of the log records that are marks, how many are and how many not, and a warning."""
    body, told = request.body, ""
    is_json = request.encoding is BodyEncoding.JSON
    if is_json:
        message, told = from_json(body, ReceivedSignal.LOGS, most)
    else:
        measured(body, ReceivedSignal.LOGS, most)
        message = LogsData.FromString(body)
    marks, others = keep_marks(message)
    if marks and (others or is_json):
        body = message.SerializeToString()
        measured(body, ReceivedSignal.LOGS, most)
    return body, marks, others, told
