"""What is in a request's body, found out before it is kept.

Bodies of JSON are counted as text before anything makes objects of them. What takes long is done
in a thread, a large one at a time: meanwhile the event loop serves others, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from ... import exactjson
from ...core.otlp.json_decode import traces_from_json
from ...core.otlp.json_logs import logs_from_json
from ...core.records.check import LISTS, check_batch
from ...errors import InputError
from .consumer import Reason, ReceivedSignal, RefusalError
from .measure import RequestContent, TooManyElementsError, content
from .measure_json import check_json

T = TypeVar("T")

_AT_ONCE = 64 * 1024
"""Bytes of JSON that are read in the event loop: some milliseconds."""
LARGE = 1024 * 1024
"""Bytes from which on a body waits for those of its own size alone."""

_SHOWN = 3
_FROM_JSON: dict[ReceivedSignal, Callable[[bytes], tuple[Any, list[str]]]] = {
    ReceivedSignal.TRACES: traces_from_json,
    ReceivedSignal.LOGS: logs_from_json,
}

_pieces = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class BatchContent(NamedTuple):
    """What a Cirron batch holds."""

    batch_id: str
    """Empty where it says none."""
    spans: int
    records: int
    """Spans, marks and snapshots."""


class ReadTurns:
    """Lets bodies be read, few at a time; for the tasks of one event loop."""

    def __init__(self) -> None:
        self._large, self._others = asyncio.Lock(), asyncio.Lock()

    async def read(self, body: bytes, work: Callable[[], T], at_once: int = _AT_ONCE) -> T:
        """What `work`, which reads `body`, returns; or the RefusalError that it raises.

        Above `at_once` bytes others have their turn meanwhile.
        """
        if len(body) <= at_once:
            return work()
        async with self._large if len(body) > LARGE else self._others:
            found = await asyncio.to_thread(_tried, work)
        if isinstance(found, RefusalError):
            raise found
        return found


def _tried(work: Callable[[], T]) -> T | RefusalError:
    try:
        return work()
    except RefusalError as error:
        return error.with_traceback(None)  # that would hold on to what was read


def measured(body: bytes, signal: ReceivedSignal, most: int) -> RequestContent:
    """What a request in protobuf holds; RefusalError for more than `most` elements, and others."""
    try:
        return content(body, signal, most)
    except TooManyElementsError as error:
        reason, told = Reason.TOO_LARGE, str(error)
    except InputError as error:
        reason, told = Reason.INVALID, str(error)
    # Not within `except`: the error's traceback would hold on to what was parsed.
    raise RefusalError(reason, told)


def from_json(body: bytes, signal: ReceivedSignal, most: int) -> tuple[Any, str]:
    """The message of a request in OTLP/JSON, and a word on the keys that are not known.

    Those are ignored, as the specification has it. RefusalError for what is malformed, or holds
    more than `most` elements can.
    """
    counted(body, most)
    try:
        message, unknown = _FROM_JSON[signal](body)
    except InputError as error:
        told = str(error)
    else:
        return message, _warning(unknown)
    raise RefusalError(Reason.INVALID, told)


def counted(body: bytes, most: int) -> None:
    """RefusalError for JSON of more values than `most` elements have."""
    try:
        check_json(body, most)
    except TooManyElementsError as error:
        raise RefusalError(Reason.TOO_LARGE, str(error)) from None


def check_object(body: bytes, most: int) -> None:
    """RefusalError for what is no JSON object, or holds more than `most` elements can."""
    counted(body, most)
    try:
        _pieces.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = str(error)
    else:
        return
    raise RefusalError(Reason.INVALID, f"no JSON object: {told}")


def batch_of(body: bytes, most: int) -> BatchContent:
    """What is in a Cirron batch. RefusalError for what is none, or has over `most` records."""
    counted(body, most)
    try:
        pieces = _pieces.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pieces = {}
    if pieces and _keys(body, pieces) != len(pieces):
        raise RefusalError(Reason.INVALID, "no Cirron batch: a key stands twice at the top level")
    problem = check_batch(body)
    if problem is not None:
        raise RefusalError(Reason.INVALID, f"no Cirron batch: {problem.message}")
    if not pieces:
        return _batch_slowly(body)
    counts = [len(_items.decode(pieces[key])) if key in pieces else 0 for key in LISTS]
    _check_records(sum(counts), most)
    return BatchContent(_text(pieces.get("batch_id")), counts[0], sum(counts))


def _keys(body: bytes, pieces: dict[str, msgspec.Raw]) -> int:
    """How many keys stand at the top level of `body`, of which these are the values.

    With a key that stands twice it may be any number but that of `pieces`, or even that.
    """
    at, count = _space(body, _space(body, 0) + 1), 0
    while key := _KEY.match(body, at):
        try:
            value = pieces.get(msgspec.json.decode(key[0], type=str))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return -1  # no key: of one that stands twice the other value's length led here
        if value is None:
            return -1
        count += 1
        at = _space(body, _space(body, key.end()) + 1) + len(memoryview(value))
        at = _space(body, at)
        if body[at : at + 1] != b",":
            break
        at = _space(body, at + 1)
    return count if _space(body, at + 1) == len(body) else -1


def _space(body: bytes, at: int) -> int:
    found = _SPACE.match(body, at)
    return found.end() if found else at


def _batch_slowly(body: bytes) -> BatchContent:
    """For what only a reader that is exact takes, as `NaN`."""
    batch: Any = exactjson.loads(body)
    counts = [len(batch.get(key, ())) for key in LISTS]
    found = batch.get("batch_id")
    return BatchContent(found if isinstance(found, str) else "", counts[0], sum(counts))


def _check_records(records: int, most: int) -> None:
    if records > most:
        raise RefusalError(
            Reason.TOO_LARGE,
            f"{records} spans, marks and snapshots: expected up to {most} in one batch",
        )


def _text(piece: msgspec.Raw | None) -> str:
    found = exactjson.loads(bytes(piece)) if piece is not None else None
    return found if isinstance(found, str) else ""


def _warning(unknown: list[str]) -> str:
    if not unknown:
        return ""
    more = f"; and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return "; ".join(unknown[:_SHOWN]) + more
