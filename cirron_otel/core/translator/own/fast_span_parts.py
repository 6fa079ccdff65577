"""Helpers of `fast_spans`: translate a span's trace, name and attributes into JSON text."""

from __future__ import annotations

from .... import exactjson
from .... import semconv as sc
from ....ids import is_id
from .. import residual as residuals
from ..header import Header, Origin
from ..json_text_cache import quoted
from ..pieces import PARENT_PREFIX
from ..typed import NotCanonicalError
from .fast_attributes import int_text, object_of, string_of
from .record_text import NEXT

ZERO = bytes(8)
NAME_TAG = 0x2A
KIND_AND_START = b"\x30\x01\x39"
"""The field of the kind, and the tag of the start time."""
PARENT_SIZE = len(PARENT_PREFIX) + 32


class TraceText:
    """Text that all spans of a trace share."""

    def __init__(self, head: bytes, header: Header) -> None:
        trace_id = head[2:18]
        if head[:2] != b"\x0a\x10" or head[18:] != b"\x12\x08":
            raise NotCanonicalError
        self.lower = trace_id[8:].hex()
        has_own_trace = header.own_trace_ids and trace_id != header.trace_id
        self.last = (f',"otel":{{"trace_id":"{trace_id.hex()}"}}' if has_own_trace else "") + NEXT
        """The JSON text at the end of a span's record."""
        self.parents: dict[bytes, str] = {}
        """The JSON text of a parent's id, keyed by the parent's field."""
        self.explicit: dict[bytes, tuple[bytes, str]] = {}
        """The last attribute with a parent's explicit id, and the id's JSON, by the parent's field.
        """
        self.tails: dict[bytes, str] = {}
        """JSON from `cpu_ns` to the end of a span without events, keyed by the attributes."""

    def parent(self, field: bytes) -> str:
        """Return the JSON text of the id in a parent's field; "" if the field is not valid."""
        if field[:2] != b"\x22\x08" or field[2:] == ZERO or len(field) != 10:
            return ""
        text = self.parents[field] = f'"{field[2:].hex()}{self.lower}"'
        return text

    def explicit_parent(self, above: bytes, field: bytes) -> tuple[bytes, str]:
        """Return the attribute `field` and the JSON text of the parent's id that it contains.

        `above` is the parent's field. The text is empty if `field` is not the attribute of this
        parent's explicit id.
        """
        parent_id = field[-32:].decode("latin-1")
        if not field.startswith(PARENT_PREFIX) or len(field) != PARENT_SIZE or not is_id(parent_id):
            return field, ""
        if above[:2] != b"\x22\x08" or above[2:] == ZERO or len(above) != 10:
            return field, ""
        if parent_id[:16] != above[2:].hex() or parent_id[16:] == self.lower:
            return field, ""
        entry = self.explicit[above] = field, f'"{parent_id}"'
        return entry


def members_of(ours: dict[str, str], users: dict[str, str], origin: Origin) -> str:
    """Return the text from `cpu_ns` to `attrs`.

    Raises NotCanonicalError if `ours` contains any other attribute.
    """
    costs = [f'"{name}":{_int(ours, key)}' for key, name in sc.COSTS]
    thread = _int(ours, sc.THREAD_ID)
    pid = _differing(ours, sc.PROCESS_PID, origin.pid)
    rank = _differing(ours, sc.RANK, origin.rank)
    if ours:
        raise NotCanonicalError
    return (
        f',{",".join(costs)},"thread_id":{thread},"pid":{pid},"rank":{rank},'
        f'"attrs":{object_of(users)}'
    )


def _int(ours: dict[str, str], key: str) -> str:
    """Remove an int attribute from `ours` and return its JSON; null if there is none."""
    text = ours.pop(key, None)
    return "null" if text is None else int_text(text)


def _differing(ours: dict[str, str], key: str, default: int | None) -> str:
    """Return the JSON of an int attribute; `default` is the resource's value.

    The encoder writes the attribute on a span only if the two values differ.
    """
    common = "null" if default is None else str(default)
    text = ours.pop(key, None)
    if text is None:
        return common
    if text == common:
        raise NotCanonicalError
    return int_text(text)


def residual_of(ours: dict[str, str]) -> str:
    """Remove the pieces of a span's residual from `ours` and return the joined text."""
    pieces = []
    name = sc.REST
    while name in ours:
        pieces.append(string_of(ours.pop(name)))
        name = f"{sc.REST}.{len(pieces)}"
    texts = [exactjson.loads(piece.encode("latin-1")) for piece in pieces]
    if any(len(text) != sc.REST_PIECE for text in texts[:-1]):
        raise NotCanonicalError
    if not 0 < len(texts[-1]) <= sc.REST_PIECE:
        raise NotCanonicalError  # the encoder writes no empty piece
    return "".join(texts)


def other_ids(text: str, mark_ids: str) -> str:
    """Return the JSON of the `mark_ids` in a residual that contains only them."""
    residual = residuals.parse(text)
    changed = residual.get("set", {})
    listed = changed.get("mark_ids")
    if (
        residual.keys() != {"set"}
        or changed.keys() != {"mark_ids"}
        or residuals.text_of(residual) != text
    ):
        raise NotCanonicalError
    if exactjson.equal(listed, exactjson.loads(mark_ids.encode("latin-1"))):
        raise NotCanonicalError
    return exactjson.dumps(listed).decode("latin-1")


def name_of(field: bytes) -> str:
    """Return the text from the name to the parent; `field` ends with the tag of the start time."""
    text = field[2:-3]
    if not field.endswith(KIND_AND_START):
        raise NotCanonicalError
    if len(field) == len(KIND_AND_START):
        text = b""
    elif not text or len(text) > 127 or field[0] != NAME_TAG or field[1] != len(text):
        raise NotCanonicalError
    return f'","name":{quoted(text)},"parent_id":'
