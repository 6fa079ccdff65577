"""A difference as JSON text, between what decoding gives and the truth, whatever the truth is.

`{"set": {…}, "missing": […]}` as in `rest`, for the formats that have a field for it; and
`{"is": …}` where the truth is no object at all.
"""

from __future__ import annotations

from typing import Any

from ... import exactjson
from ...errors import InputError
from .residual import apply, difference


def patch_of(truth: Any, decoded: dict[str, Any]) -> str:
    """What makes `decoded` the truth, in ASCII; "" where nothing has to."""
    if not isinstance(truth, dict):
        return exactjson.dumps_ascii({"is": truth})
    rest = difference(truth, decoded)
    return exactjson.dumps_ascii(rest) if rest else ""


def patched(decoded: dict[str, Any], text: str) -> Any:
    """The truth, of what `patch_of` gave; `decoded` is changed.

    Raises InputError where `text` is no such difference.
    """
    if not text:
        return decoded
    rest = exactjson.loads(text)
    if isinstance(rest, dict):
        if rest.keys() == {"is"}:
            return rest["is"]
        changed, missing = rest.get("set", {}), rest.get("missing", [])
        shaped = rest.keys() <= {"set", "missing"} and isinstance(changed, dict)
        if shaped and isinstance(missing, list) and all(isinstance(k, str) for k in missing):
            apply(decoded, rest)
            return decoded
    raise InputError(
        f"{text[:40]!a} is no difference between a record and its fields:"
        ' expected {"set": {…}, "missing": […]} or {"is": …}'
    )
