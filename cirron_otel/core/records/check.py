"""Cheap operations on bytes: check whether they are a batch, and count a batch's records."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ... import exactjson
from ...errors import InputError
from .schema import LISTS, SCHEMA_VERSION


class BatchProblem(NamedTuple):
    """The reason why a file is not used: a stable code, and a readable message."""

    code: str
    message: str


class Records(NamedTuple):
    """The number of records of each kind."""

    span: int = 0
    mark: int = 0
    snapshot: int = 0


class _Lists(msgspec.Struct, gc=False):
    spans: list[msgspec.Raw] = []
    marks: list[msgspec.Raw] = []
    snapshots: list[msgspec.Raw] = []


_lists = msgspec.json.Decoder(_Lists)
_pieces = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VERSION = str(SCHEMA_VERSION).encode()
_LIST_KEYS = frozenset(LISTS)


def records_of(data: bytes) -> Records:
    """Return the number of records in a batch; 0 of each kind for invalid data."""
    try:
        lists = _lists.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Records()
    return Records(len(lists.spans), len(lists.marks), len(lists.snapshots))


def check_batch(data: bytes) -> BatchProblem | None:
    """Return None if `data` is a batch of schema version 1, or else the problem.

    A batch is a JSON object, in UTF-8, whose `schema_version` is the integer 1 and whose `spans`,
    `marks` and `snapshots`, if present, are lists. The records are not checked: a reader tolerates
    unknown data.
    """
    return None if _is_plainly_batch(data) else check_value_of(data)


def check_value_of(data: bytes) -> BatchProblem | None:
    """Return the same result as `check_batch`, but always parse the complete `data`."""
    try:
        value = exactjson.loads(data)
    except InputError as error:
        return BatchProblem("not-json", str(error))
    return check_value(value)


def check_value(batch: Any) -> BatchProblem | None:
    """Return None if a value of `exactjson.loads` is a batch, or else the problem."""
    if isinstance(batch, exactjson.Raw) and batch.text.startswith("{"):
        return BatchProblem("repeated-key", "a key occurs twice at the top level: expected once")
    if not isinstance(batch, dict):
        return BatchProblem("not-batch", f"found {_kind(batch)}, expected a JSON object")
    if "schema_version" not in batch:
        return BatchProblem("not-batch", "no schema_version: expected a Cirron batch")
    version = batch["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        return BatchProblem(
            "schema-version",
            f"schema_version {_short(version)}: expected {SCHEMA_VERSION}; "
            "use a release that reads this version",
        )
    for key in LISTS:
        if key in batch and not isinstance(batch[key], list):
            return BatchProblem("not-batch", f"{key} is {_kind(batch[key])}: expected a list")
    return None


def _is_plainly_batch(data: bytes) -> bool:
    """Return whether `data` is certainly a batch, without building its values.

    False means that a complete check is needed. msgspec checks the syntax of skipped values but not
    their UTF-8, and takes the last value of a repeated key; both are therefore checked here.
    """
    try:
        pieces = _pieces.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    # A Raw never equals bytes, but its buffer does.
    if memoryview(pieces.get("schema_version", b"")) != _VERSION:
        return False
    size = 1
    for key, piece in pieces.items():
        raw = memoryview(piece)
        if key in _LIST_KEYS and raw[0] != ord("["):
            return False
        size += len(key.encode()) + len(raw) + 4
    # If the pieces with quotes, colons and commas add up to the length, no key is repeated.
    if size != len(data) and size != len(data.strip(b" \t\r\n")):
        return False
    return data.isascii() or _is_utf8(data)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    names |= {int: "a number", float: "a number", exactjson.Raw: "a number"}
    if isinstance(value, exactjson.Raw) and value.text.startswith("{"):
        return "an object"
    return names.get(type(value), "null")


def _short(value: Any) -> str:
    text = exactjson.dumps_ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
