"""Read and compose the marks that carry digests of tensors (docs/digests.md, "The marks")."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...errors import InputError

if TYPE_CHECKING:
    from .rows import IndexedMark

PREFIX: Final = "digest."
"""The prefix of the marks' names."""
RNG, BATCH, LOSS, GRADS = "rng", "batch", "loss", "grads"
WEIGHTS, OPTIMIZER = "weights", "optimizer"
QUANTITIES: Final = (RNG, BATCH, LOSS, GRADS, WEIGHTS, OPTIMIZER)
"""The quantities of a step, in causal order."""
MARK_NAMES: Final = frozenset(PREFIX + quantity for quantity in QUANTITIES)
"""The names of marks that carry digests."""
DIGEST_BYTES: Final = 16
NUMBERS: Final = 4
"""The number of a tensor's numbers in its record."""
_SIZES: Final = {"bool": 1, "bfloat16": 2, "float4_e2m1fn_x2": 1}
"""The bytes of a number, for dtypes whose names do not end with a number of bits."""


class DigestMark(NamedTuple):
    """A mark that carries a digest."""

    quantity: str
    """One of `QUANTITIES`."""
    step: int
    """The step's number in its process, from 0."""
    occurrence: int
    """The number of the digest among those of the same quantity and step, from 0."""
    digest: str
    """32 hexadecimal digits."""
    bits: int | None
    """The bits of the loss, if the mark is that of a loss of one number."""
    dtype: str | None
    """The dtype of `bits`."""
    tensors: Mapping[str, Any] | None
    """The attribute `tensors`, for `Layouts.unpack`; None if only the quantity was digested."""
    blob_uri: str | None
    """The URI of the file that contains the tensors."""
    failed: str | None
    """The reason why tensors are missing."""
    is_sharded: bool
    """Whether a tensor is the process's part of a sharded one."""


class Layout(NamedTuple):
    """The names, dtypes and shapes of the tensors of a quantity."""

    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[Sequence[int]]

    @property
    def id(self) -> str:
        """16 hexadecimal digits, equal for equal layouts."""
        text = json.dumps([self.names, self.dtypes, self.shapes], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class TensorDigest(NamedTuple):
    """The record of one tensor."""

    name: str
    dtype: str
    """The dtype of `numbers`."""
    shape: tuple[int, ...]
    digest: str
    """32 hexadecimal digits."""
    numbers: tuple[int, ...]
    """The bits of four numbers (`positions`); empty if the size of a number is unknown."""


def digest_mark(name: object, value: object, attrs: object) -> DigestMark | None:
    """Return the digest that a mark carries; None for any other mark, or if it is malformed."""
    if not (isinstance(name, str) and name.startswith(PREFIX)):
        return None
    quantity = name.removeprefix(PREFIX)
    if not isinstance(attrs, Mapping):
        return None
    step, occurrence = attrs.get("step"), attrs.get("occurrence", 0)
    if quantity not in QUANTITIES or not _is_digest(value):
        return None
    if type(step) is not int or type(occurrence) is not int:
        return None
    tensors = attrs.get("tensors")
    return DigestMark(
        quantity, step, occurrence, str(value), _bits(attrs.get("bits")),
        _text(attrs.get("dtype")), tensors if isinstance(tensors, Mapping) else None,
        _text(attrs.get("blob_uri")), _text(attrs.get("failed")),
        attrs.get("sharded") is True,
    )  # fmt: skip


def has_digest(mark: IndexedMark) -> bool:
    """Return whether a mark carries a digest."""
    return (
        mark.name in MARK_NAMES and digest_mark(mark.name, mark.value, mark.attributes) is not None
    )


def positions(numbers: int) -> tuple[int, ...]:
    """Return the indices of the numbers in the record of a tensor of that many numbers."""
    apart = max((numbers - 1) // (NUMBERS - 1), 1)
    return tuple(min(each * apart, numbers - 1) for each in range(NUMBERS)) if numbers else ()


def number_size(dtype: str) -> int | None:
    """Return the bytes of a number of that dtype; None if they are unknown."""
    size = _SIZES.get(dtype)
    if size is not None:
        return size
    digits = dtype.partition("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) // 8 if digits in ("8", "16", "32", "64") else None


def quantity_digest(names: Sequence[str], digests: Sequence[bytes]) -> str:
    """Return the digest of a quantity, from the names and digests of its tensors."""
    joined = bytearray()
    for name, digest in zip(names, digests, strict=True):
        joined += name.encode("utf-8", "surrogatepass") + b"\0" + digest
    return hashlib.sha256(joined).hexdigest()[: 2 * DIGEST_BYTES]


def pack(records: Sequence[bytes]) -> str:
    """Return the text of the records of a quantity's tensors."""
    return base64.b64encode(b"".join(records)).decode()


class Layouts:
    """The layouts of a session, or of several: equal layouts have equal ids."""

    def __init__(self) -> None:
        self._layouts: dict[str, Layout] = {}

    def add(self, tensors: Mapping[str, Any]) -> None:
        """Read the layout in a mark's attribute `tensors`, if there is one."""
        key = tensors.get("layout")
        lists = [tensors.get(each) for each in ("names", "dtypes", "shapes")]
        if isinstance(key, str) and all(isinstance(each, list) for each in lists):
            self._layouts[key] = Layout(*lists)  # type: ignore[arg-type]

    def unpack(self, tensors: Mapping[str, Any]) -> list[TensorDigest] | None:
        """Return the records in a mark's attribute `tensors`; None if no mark had its layout.

        Raises InputError for records that do not fit the layout.
        """
        self.add(tensors)
        layout = self._layouts.get(str(tensors.get("layout")))
        if layout is None:
            return None
        try:
            data = base64.b64decode(str(tensors.get("packed")), validate=True)
            return _records(layout, data)
        except (ValueError, TypeError) as error:
            raise InputError(f"digests cannot be unpacked: {error}") from None


def _records(layout: Layout, data: bytes) -> list[TensorDigest]:
    records, at = [], 0
    for name, dtype, shape in zip(*layout, strict=True):
        size = number_size(dtype) or 0
        numbers = at + DIGEST_BYTES
        end = numbers + NUMBERS * size
        bits = tuple(
            int.from_bytes(data[start : start + size], "little")
            for start in range(numbers, end, size or 1)
        )
        digest = data[at:numbers].hex()
        records.append(TensorDigest(name, dtype, tuple(map(int, shape)), digest, bits))
        at = end
    if at != len(data):
        raise ValueError(f"{len(data)} bytes instead of {at}")
    return records


def _is_digest(value: object) -> bool:
    if not isinstance(value, str) or len(value) != 2 * DIGEST_BYTES:
        return False
    return not value.strip("0123456789abcdef")


def _bits(value: object) -> int | None:
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
