"""The proof that a batch is complete, made before its file appears in the spool."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from ... import exactjson
from ...errors import InputError

_KINDS = ("spans", "marks", "snapshots")


class _Lists(Struct):
    """The lists of a batch; the records themselves are checked, but not decoded."""

    spans: list[Raw]
    marks: list[Raw]
    snapshots: list[Raw]


_decoder = msgspec.json.Decoder(_Lists)


def fault_of(data: bytes, counts: tuple[int, int, int]) -> str | None:
    """Return what is wrong with the text of a batch; None if it is complete.

    `counts` are the numbers of its spans, marks and snapshots.
    """
    try:
        lists = _decoder.decode(data)
        found = len(lists.spans), len(lists.marks), len(lists.snapshots)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:  # the exact reader also accepts lone surrogates, for example
            batch: Any = exactjson.loads(data)
            found = tuple(len(batch[kind]) for kind in _KINDS)  # type: ignore[assignment]
        except (InputError, LookupError, TypeError, RecursionError) as error:
            return f"its text is not a batch ({error})"
    if found == counts:
        return None
    differing = [
        f"{actual:,} {kind} instead of {expected:,}"
        for kind, actual, expected in zip(_KINDS, found, counts, strict=True)
        if actual != expected
    ]
    return f"its text has {', '.join(differing)}"
