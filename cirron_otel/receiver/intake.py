"""What stands behind all servers: a request is looked at, kept in the journal, and answered.

What is looked at is what the answer depends on: that the body is what it says it is, and how much
is in it. What it says is the translation's business, behind the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from .. import exactjson
from ..errors import InputError, UsageError
from ..otlp.json_decode import traces_from_json
from ..spool.check import check_batch
from .export import Answer, Encoding, Reason, RefusalError, Request, Signal
from .journal import Journal, JournalBusyError, JournalFullError
from .journal_files import Head
from .measure import MAX_ELEMENTS, Measure, TooManyElementsError, measure

_BUSY_S, _FULL_S = 1.0, 5.0
_ACCEPT = "accept"


class _Header(msgspec.Struct):
    batch_id: str


_header = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What is taken at most."""

    body_bytes: int = 64 * 1024 * 1024
    elements: int = MAX_ELEMENTS
    in_flight_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Signals:
    """What becomes of signals beside traces: `accept` acknowledges and drops them."""

    logs: str = "refuse"
    metrics: str = "refuse"


class Intake:
    """The `Exporter` of a collector; for the tasks of one event loop."""

    def __init__(
        self,
        journal: Journal,
        limits: IntakeLimits | None = None,
        signals: Signals | None = None,
        *,
        kept: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`kept` is called when something was journalled; `is_over`: whether it is to end."""
        self._journal, self._limits = journal, limits or IntakeLimits()
        self._signals = signals or Signals()
        self._kept, self._is_over = kept, is_over
        self._in_flight = 0
        self.spans = 0
        """Taken so far, as measured."""

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

    async def export(self, request: Request) -> Answer:
        """See Exporter."""
        if self._is_over():
            raise RefusalError(Reason.UNAVAILABLE, "the collector is going down", _FULL_S)
        if request.signal is Signal.CIRRON:
            return await self._take_batch(request)
        body = request.body
        if request.encoding is Encoding.JSON and request.signal is Signal.TRACES:
            body = self._from_json(body)
        if request.signal is not Signal.TRACES:
            return self._take_other(request)
        found = self._measured(body, request.signal)
        if not found.is_empty:
            await self._keep(request, body, Encoding.PROTOBUF)
            self.spans += found.spans
        return Answer()

    def _measured(self, body: bytes, signal: Signal) -> Measure:
        try:
            return measure(body, signal, self._limits.elements)
        except TooManyElementsError as error:
            reason, told = Reason.TOO_LARGE, str(error)
        except InputError as error:
            reason, told = Reason.INVALID, str(error)
        # Not within `except`: the error's traceback would hold on to what was parsed.
        raise RefusalError(reason, told)

    def _from_json(self, body: bytes) -> bytes:
        """As protobuf: JSON is checked by reading it."""
        try:
            message, lost = traces_from_json(body)
        except InputError as error:
            lost = [str(error)]
        else:
            if not lost:
                return bytes(message.SerializeToString())
        raise RefusalError(Reason.INVALID, "; ".join(lost[:3]))

    def _take_other(self, request: Request) -> Answer:
        name = request.signal.value
        wanted = self._signals.logs if request.signal is Signal.LOGS else self._signals.metrics
        if wanted != _ACCEPT:
            raise RefusalError(Reason.UNSUPPORTED, f"{name} are not taken here: send traces")
        if request.encoding is Encoding.PROTOBUF:
            self._measured(request.body, request.signal)
        return Answer(message=f"{name} are not kept here")

    async def _take_batch(self, request: Request) -> Answer:
        problem = check_batch(request.body)
        if problem is not None:
            raise RefusalError(Reason.INVALID, f"no Cirron batch: {problem.message}")
        batch_id = _batch_id(request.body)
        await self._keep(request, request.body, Encoding.JSON)
        return Answer(batch_id=batch_id)

    async def _keep(self, request: Request, body: bytes, encoding: Encoding) -> None:
        head = Head(
            request.signal,
            encoding,
            request.received_ns,
            dict(request.headers),
            hashlib.sha256(body).hexdigest(),
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


def _batch_id(body: bytes) -> str:
    try:
        return _header.decode(body).batch_id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        batch = exactjson.loads(body)
        found = batch.get("batch_id") if isinstance(batch, dict) else None
        return found if isinstance(found, str) else ""
    except InputError as error:
        raise RefusalError(Reason.INVALID, f"no Cirron batch: {error}") from None
