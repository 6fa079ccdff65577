"""The JSON text of a batch's records, as pieces that are joined once at the end.

Interpreter overhead is most of the cost of a record, so a few calls convert the numbers and ids of
all records to text. Text is UTF-8 with one character per byte (Latin-1), so that a character
outside ASCII does not widen the string.
"""

from __future__ import annotations

from operator import add
from typing import Any

from .... import exactjson
from ..events import Record
from ..typed import NotCanonicalError, encode
from .fast_wire import SuspectError

_START = '{"id":"'
NEXT = '},{"id":"'
"""The text between two records: the end of the first, and the start of the second up to its id."""
Key = tuple[int, str]
"""The sort key of the canonical order: time and id."""


class RecordText:
    """Records of one list of a batch, in their order on the wire."""

    stride: int
    """The number of pieces per record."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.times: list[int] = []
        self.seqs: dict[int, int] = {}
        """The `seq` of a record, by its position; most records have none."""
        self._exact: dict[int, tuple[str, Key]] = {}
        """The text and sort key of each record that was added as complete text, by its position."""

    def __len__(self) -> int:
        return len(self.parts) // self.stride

    def add_record(self, record: Record, time_field: str, seq: int | None) -> None:
        """Append a record that an exact mapper has read."""
        time_ns, record_id = record.get(time_field), record.get("id")
        if type(time_ns) is not int or not isinstance(record_id, str):
            raise NotCanonicalError
        text = exactjson.dumps({"id": record_id} | record).decode("latin-1")
        self.add_text(text, (time_ns, record_id), seq)

    def add_text(self, text: str, key: Key, seq: int | None) -> None:
        """Append a record as its complete JSON text, which begins with the id."""
        number = len(self)
        if seq is not None:
            self.seqs[number] = seq
        self._exact[number] = text[len(_START) : -1], key
        self._add_blank()

    def cut(self, count: int) -> None:
        """Drop all records except the first `count`."""
        self.seqs = {number: seq for number, seq in self.seqs.items() if number < count}
        self._exact = {number: each for number, each in self._exact.items() if number < count}
        self._cut(count)
        del self.parts[count * self.stride :]

    def joined(self) -> str:
        """Join all records in the order of `order.arranged`, separated by commas.

        Raises NotCanonicalError if an id or a `seq` occurs twice, SuspectError if a piece is
        invalid.
        """
        count = len(self)
        if not count:
            return ""
        self._fill()
        parts = self.parts
        if not self.seqs and not self._exact and self._is_in_order():
            return _joined(parts)
        keys = self._keys()
        for number, (text, key) in self._exact.items():
            start = number * self.stride
            parts[start : start + self.stride] = [text, *[""] * (self.stride - 2), NEXT]
            keys[number] = key
        if len({record_id for _, record_id in keys}) != count:
            raise NotCanonicalError
        if len(set(self.seqs.values())) != len(self.seqs):
            raise NotCanonicalError  # their order would depend on their spans
        if self.seqs or keys != sorted(keys):
            stride = self.stride
            parts = []
            for number in self._order(keys):
                parts += self.parts[number * stride : (number + 1) * stride]
        return _joined(parts)

    def _order(self, keys: list[Key]) -> list[int]:
        free = [number for number in range(len(keys)) if number not in self.seqs]
        free.sort(key=keys.__getitem__)
        result: list[int] = []
        rest = iter(free)
        for number, seq in sorted(self.seqs.items(), key=lambda item: item[1]):
            while len(result) < seq and (following := next(rest, None)) is not None:
                result.append(following)
            result.append(number)
        result.extend(rest)
        return result

    def _add_blank(self) -> None:
        raise NotImplementedError

    def _cut(self, count: int) -> None:
        raise NotImplementedError

    def _fill(self) -> None:
        raise NotImplementedError

    def _keys(self) -> list[Key]:
        raise NotImplementedError

    def _is_in_order(self) -> bool:
        """Return whether the records are in order by time alone, and no id occurs twice."""
        raise NotImplementedError


class SpanText(RecordText):
    """The text of spans.

    The pieces of a span are: both halves of the id, the text up to the value of `parent_id`, that
    value, the text with `index` up to the start time, the start time, the text up to the end time,
    the end time, and the remaining text.
    """

    stride = 9

    def __init__(self) -> None:
        super().__init__()
        self.span_ids: list[bytes] = []
        """The span ids on the wire, which are the first halves of the ids."""

    def _add_blank(self) -> None:
        self.parts += [""] * self.stride
        self.times += (0, 0)
        self.span_ids.append(bytes(8))

    def _cut(self, count: int) -> None:
        del self.times[2 * count :], self.span_ids[count:]

    def _fill(self) -> None:
        parts = self.parts
        parts[0::9] = b"".join(self.span_ids).hex(",", 8).split(",")
        texts = encode(self.times)[1:-1].decode().split(",")
        parts[5::9] = texts[0::2]
        parts[7::9] = texts[1::2]

    def _keys(self) -> list[Key]:
        ids = map(add, self.parts[0::9], self.parts[1::9])
        return list(zip(self.times[1::2], ids, strict=True))

    def _is_in_order(self) -> bool:
        return _is_increasing(self.times[1::2]) and len(set(self.span_ids)) == len(self.span_ids)


class MarkText(RecordText):
    """The text of marks.

    The pieces of a mark are: the id, the scope's id, the text up to the value, the value, the text
    up to the time, the time, and the remaining text.
    """

    stride = 7

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []
        """Finite numbers; 0 if `others` contains the value."""
        self.others: dict[int, str] = {}
        """The JSON of the values that are not in `values`, by the position of the mark."""

    def _add_blank(self) -> None:
        self.parts += [""] * self.stride
        self.times.append(0)
        self.values.append(0)

    def _cut(self, count: int) -> None:
        del self.times[count:], self.values[count:]
        self.others = {number: text for number, text in self.others.items() if number < count}

    def _fill(self) -> None:
        parts = self.parts
        texts = encode(self.values)[1:-1].decode()
        if "n" in texts:
            raise SuspectError  # an "n" of "null": a value is not finite
        parts[3::7] = texts.split(",")
        for number, text in self.others.items():
            parts[7 * number + 3] = text
        parts[5::7] = encode(self.times)[1:-1].decode().split(",")
        ids = "".join(parts[0::7])
        if ids and not (ids.isascii() and ids.isalnum()):
            raise SuspectError

    def _keys(self) -> list[Key]:
        return list(zip(self.times, self.parts[0::7], strict=True))

    def _is_in_order(self) -> bool:
        return _is_increasing(self.times) and len(set(self.parts[0::7])) == len(self.times)


class SnapshotText(RecordText):
    """The text of snapshots; each is added as its complete text."""

    stride = 2

    def _add_blank(self) -> None:
        self.parts += [""] * self.stride
        self.times.append(0)

    def _cut(self, count: int) -> None:
        del self.times[count:]

    def _fill(self) -> None:
        """Do nothing: the texts are complete."""

    def _keys(self) -> list[Key]:
        return [(0, "")] * len(self)

    def _is_in_order(self) -> bool:
        return False


def _joined(parts: list[str]) -> str:
    """Join the pieces. Trim the first and last one beforehand: the joined text is large."""
    parts[0] = _START + parts[0]
    parts[-1] = parts[-1][: 1 - len(NEXT)]
    return "".join(parts)


def _is_increasing(times: list[int]) -> bool:
    return len(set(times)) == len(times) and times == sorted(times)
