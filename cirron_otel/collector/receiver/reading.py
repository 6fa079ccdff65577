"""Checks on the body of a request before it is stored.

The values of a JSON body are counted in its text before a parser creates objects: a value of two
bytes becomes a Python object of up to 64 bytes, and then a message object of the same size, so 30
MB of empty attributes would become 2 GB. The number of brackets and commas outside of strings is an
upper bound for the number of values.

Long checks run in a thread, and large bodies are checked one at a time: the event loop serves other
requests in the meantime, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from ... import exactjson
from ...core.otlp.json_decode import traces_from_json
from ...core.otlp.json_logs import logs_from_json
from ...core.otlp.json_parse import parse
from ...core.records.check import check_batch
from ...core.records.schema import LISTS
from ...errors import InputError
from .consumer import Reason, ReceivedSignal, RefusalError
from .measure import MAX_ELEMENTS, RequestContent, TooManyElementsError, content

_OBJECTS_EACH = 3
"""Maximum number of JSON objects per element of OTLP: a key-value, its value, and the list in that
value."""
_VALUES_EACH = 16
"""Maximum number of values, lists and objects per element, on average; an attribute has four, a
span with all fields twenty."""

_STEP = 256 * 1024
"""The number of bytes to examine at a time: other threads are blocked meanwhile, and removing the
strings takes many times as much memory."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Matches a JSON string. It may be unterminated: otherwise the search would restart at each
quote."""
_WHOLE_TEXTS = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)


def check_json(body: bytes, max_elements: int = MAX_ELEMENTS) -> None:
    """Raise TooManyElementsError if `body` has more values than `max_elements` elements can have.

    Invalid JSON is left to the parser. Memory use is small for any body.
    """
    # First count the characters within strings as well: usually that is enough.
    if not _is_within(_steps(body), max_elements) and not _is_within(
        _outside_texts(body), max_elements
    ):
        raise TooManyElementsError(
            f"more values than {max_elements} elements (spans, events, attributes, …) have, in one"
            " request: send smaller batches"
        )


def _is_within(pieces: Iterable[bytes], max_elements: int) -> bool:
    objects = values = 0
    for piece in pieces:
        braces = piece.count(b"{")
        objects += braces
        values += braces + piece.count(b"[") + piece.count(b",")
        if objects > _OBJECTS_EACH * max_elements + 1 or values > _VALUES_EACH * max_elements + 1:
            return False
    return True


def _steps(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), _STEP):
        yield body[at : at + _STEP]


def _outside_texts(body: bytes) -> Iterator[bytes]:
    """Yield `body` without its strings, in pieces."""
    at = 0
    while at < len(body):
        end = _end(_WHOLE_TEXTS.match(body, at, at + _STEP))
        if end > at:
            yield _TEXT.sub(b"", body[at:end])
        else:  # a string that is longer than one step
            end = _end(_TEXT.match(body, at))
        at = end


def _end(match: re.Match[bytes] | None) -> int:
    assert match is not None  # noqa: S101 - one pattern matches "", the other any quote
    return match.end()


T = TypeVar("T")

_AT_ONCE = 64 * 1024
"""JSON bodies up to this many bytes are read in the event loop, which takes a few milliseconds."""
LARGE = 1024 * 1024
"""Bodies above this many bytes wait only for each other, not for smaller bodies."""

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
    """The content of a Cirron batch."""

    batch_id: str
    """The id of the batch; empty if it has none."""
    spans: int
    records: int
    """The number of spans, marks and snapshots."""


class ReadTurns:
    """Limits how many bodies are read at a time; for the tasks of one event loop."""

    def __init__(self) -> None:
        self._large, self._others = asyncio.Lock(), asyncio.Lock()

    async def read(self, body: bytes, work: Callable[[], T], at_once: int = _AT_ONCE) -> T:
        """Return the result of `work`, which reads `body`, or raise its RefusalError.

        A body of more than `at_once` bytes is read in a thread.
        """
        if len(body) <= at_once:
            return work()
        async with self._large if len(body) > LARGE else self._others:
            result = await asyncio.to_thread(_tried, work)
        if isinstance(result, RefusalError):
            raise result
        return result


def _tried(work: Callable[[], T]) -> T | RefusalError:
    try:
        return work()
    except RefusalError as error:
        return error.with_traceback(None)  # the traceback would keep the parsed body alive


def measured(body: bytes, signal: ReceivedSignal, most: int) -> RequestContent:
    """Return the content of a protobuf request.

    Raises RefusalError if it is malformed, or has more than `most` elements.
    """
    try:
        return content(body, signal, most)
    except TooManyElementsError as error:
        reason, message = Reason.TOO_LARGE, str(error)
    except InputError as error:
        reason, message = Reason.INVALID, str(error)
    # Raise outside of `except`: the traceback of the error would keep the parsed body alive.
    raise RefusalError(reason, message)


def from_json(body: bytes, signal: ReceivedSignal, most: int) -> tuple[Any, str]:
    """Return the message of an OTLP/JSON request, and a warning about unknown keys.

    Unknown keys are ignored, as the specification requires. Raises RefusalError if the body is
    malformed, or has more values than `most` elements can have.
    """
    counted(body, most)
    try:
        message, unknown = _FROM_JSON[signal](body)
    except InputError as error:
        problem = str(error)
    else:
        return message, _warning(unknown)
    raise RefusalError(Reason.INVALID, problem)


def counted(body: bytes, most: int) -> None:
    """Raise RefusalError for JSON with more values than `most` elements can have."""
    try:
        check_json(body, most)
    except TooManyElementsError as error:
        raise RefusalError(Reason.TOO_LARGE, str(error)) from None


def check_object(body: bytes, most: int) -> None:
    """Raise RefusalError if `body` is not a JSON object, repeats a key, or has too many values."""
    counted(body, most)
    try:
        document, _ = parse(body)
    except InputError as error:
        problem = str(error)
    else:
        if isinstance(document, dict):
            return
        problem = "expected a JSON object, found something else"
    raise RefusalError(Reason.INVALID, problem)


def batch_of(body: bytes, most: int) -> BatchContent:
    """Return the content of a Cirron batch.

    Raises RefusalError if `body` is not a Cirron batch, or has more than `most` records.
    """
    counted(body, most)
    try:
        pieces = _pieces.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pieces = {}
    if pieces and _keys(body, pieces) != len(pieces):
        raise RefusalError(Reason.INVALID, "not a Cirron batch: a key is repeated at the top level")
    problem = check_batch(body)
    if problem is not None:
        raise RefusalError(Reason.INVALID, f"not a Cirron batch: {problem.message}")
    if not pieces:
        return _batch_slowly(body)
    counts = [len(_items.decode(pieces[key])) if key in pieces else 0 for key in LISTS]
    _check_records(sum(counts), most)
    return BatchContent(_text(pieces.get("batch_id")), counts[0], sum(counts))


def _keys(body: bytes, pieces: dict[str, msgspec.Raw]) -> int:
    """Return the number of top-level keys in `body`, whose parsed members are `pieces`.

    If a key is repeated, the result is meaningless, but nearly always differs from `len(pieces)`.
    """
    at, count = _space(body, _space(body, 0) + 1), 0
    while key := _KEY.match(body, at):
        try:
            value = pieces.get(msgspec.json.decode(key[0], type=str))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return -1  # not a key: a repeated key has led to a wrong position
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
    match = _SPACE.match(body, at)
    return match.end() if match else at


def _batch_slowly(body: bytes) -> BatchContent:
    """Read a batch that only the exact parser accepts, for example one with `NaN`."""
    batch: Any = exactjson.loads(body)
    counts = [len(batch.get(key, ())) for key in LISTS]
    batch_id = batch.get("batch_id")
    return BatchContent(batch_id if isinstance(batch_id, str) else "", counts[0], sum(counts))


def _check_records(records: int, most: int) -> None:
    if records > most:
        raise RefusalError(
            Reason.TOO_LARGE,
            f"{records} spans, marks and snapshots: expected up to {most} in one batch",
        )


def _text(piece: msgspec.Raw | None) -> str:
    value = exactjson.loads(bytes(piece)) if piece is not None else None
    return value if isinstance(value, str) else ""


def _warning(unknown: list[str]) -> str:
    if not unknown:
        return ""
    more = f"; and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return "; ".join(unknown[:_SHOWN]) + more
