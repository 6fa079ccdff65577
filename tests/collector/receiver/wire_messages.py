"""Serialised messages of any type, the odd ones included, and what they hold."""

from __future__ import annotations

from collections import Counter
from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cirron_otel.core.otlp.wire import FIXED32, FIXED64, LEN, VARINT, encode_varint, fields
from tests.kit.generators.otlp_messages import UNKNOWN_FIELDS

_OF = FieldDescriptor
_FIXED64 = (_OF.TYPE_FIXED64, _OF.TYPE_SFIXED64, _OF.TYPE_DOUBLE)
_FIXED32 = (_OF.TYPE_FIXED32, _OF.TYPE_SFIXED32, _OF.TYPE_FLOAT)
_TEXTS = (b"", b"a", b"step", "é".encode())
_NO_TEXTS = (b"\xff", b"\xed\xa0\x80")


def _tag(number: int, wire_type: int) -> bytes:
    return encode_varint(number << 3 | wire_type)


def _long(content: bytes) -> bytes:
    return encode_varint(len(content)) + content


class Maker:
    """Makes messages field by field: any field several times, in any order, unknown ones too.

    Unless `valid`, texts may be no UTF-8 and lengths may be wrong.
    """

    def __init__(self, random: Random, valid: bool = True, groups: bool = True) -> None:
        self._random, self._valid = random, valid
        self._unknown = UNKNOWN_FIELDS if groups else UNKNOWN_FIELDS[:-1]

    def message(self, kind: Descriptor, depth: int = 0) -> bytes:
        """Fields with messages are preferred, so that it gets deep."""
        random = self._random
        known = [f for f in kind.fields if f.message_type is not None] * 3 + list(kind.fields)
        count = random.randint(0, 4 if depth < 6 else 1)
        out = b"".join(self._field(random.choice(known), depth) for _ in range(count))
        if not self._valid and random.random() < 0.005:
            out += random.randbytes(random.randint(1, 3))
        return out

    def _field(self, field: FieldDescriptor, depth: int) -> bytes:
        odd = self._random.randrange(40)
        if odd == 0:
            return self._random.choice(self._unknown)
        if odd == 1:  # a known number with wire types that are not its own, or not all
            return _tag(field.number, VARINT) + b"\x01" + _tag(field.number, FIXED32) + bytes(4)
        if field.message_type is not None:
            inner = self.message(field.message_type, depth + 1)
            return _tag(field.number, LEN) + _long(inner)
        return self._scalar(field)

    def _scalar(self, field: FieldDescriptor) -> bytes:
        random, number = self._random, field.number
        if field.type in (_OF.TYPE_STRING, _OF.TYPE_BYTES):
            texts = _TEXTS
            if field.type == _OF.TYPE_BYTES or (not self._valid and random.random() < 0.03):
                texts = _NO_TEXTS
            return _tag(number, LEN) + _long(random.choice(texts))
        if field.is_repeated and random.random() < 0.5:
            packed = b"".join(self._number(field)[1] for _ in range(random.randint(0, 3)))
            return _tag(number, LEN) + _long(packed)
        wire_type, value = self._number(field)
        return _tag(number, wire_type) + value

    def _number(self, field: FieldDescriptor) -> tuple[int, bytes]:
        if field.type in _FIXED64:
            return FIXED64, self._random.randbytes(8)
        if field.type in _FIXED32:
            return FIXED32, self._random.randbytes(4)
        return VARINT, encode_varint(self._random.getrandbits(self._random.choice((1, 31, 64))))


def is_element(field: FieldDescriptor) -> bool:
    return field.is_repeated and field.type in (_OF.TYPE_STRING, _OF.TYPE_MESSAGE)


def held_on_the_wire(data: bytes, kind: Descriptor) -> Counter[str]:
    """How many elements of each type stand in a valid message, by walking it field by field."""
    found: Counter[str] = Counter()
    for number, wire_type, _, value, stop in fields(data):
        field = kind.fields_by_number.get(number)
        if field is None or wire_type != LEN:
            continue
        inner = field.message_type
        if is_element(field):
            found[inner.name if inner else "text"] += 1
        if inner is not None:
            found += held_on_the_wire(data[value:stop], inner)
    return found


def held(message: Message) -> Counter[str]:
    """How many elements of each type a parsed message has."""
    found: Counter[str] = Counter()
    for field, value in message.ListFields():
        children = value if field.is_repeated else (value,)
        if is_element(field):
            found[field.message_type.name if field.message_type else "text"] += len(children)
        if field.message_type is not None:
            for child in children:
                found += held(child)
    return found
