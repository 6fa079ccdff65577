"""A difference as JSON text, between what decoding gives and the truth, whatever the truth is.

`{"set": {…}, "missing": […]}` as in `residual`, for the formats that have a field for it; and
`{"is": …}` where the truth is no object at all.
"""

from __future__ import annotations

from typing import Any

from ... import exactjson
from ...errors import InputError
from .residual import apply, difference


def diff_of(truth: Any, decoded: dict[str, Any]) -> str:
    """What makes `decoded` the truth, in ASCII; "" where nothing has to."""
    if not isinstance(truth, dict):
        return exactjson.dumps_ascii({"is": truth})
    residual = difference(truth, decoded)
    return exactjson.dumps_ascii(residual) if residual else ""


def apply_diff(decoded: dict[str, Any], text: str) -> Any:
    """The truth, of what `diff_of` gave; `decoded` is changed.

    Raises InputError where `text` is no such difference.
    """
    if not text:
        return decoded
    residual = exactjson.loads(text)
    if isinstance(residual, dict):
        if residual.keys() == {"is"}:
            return residual["is"]
        changed, missing = residual.get("set", {}), residual.get("missing", [])
        shaped = residual.keys() <= {"set", "missing"} and isinstance(changed, dict)
        if shaped and isinstance(missing, list) and all(isinstance(k, str) for k in missing):
            apply(decoded, residual)
            return decoded
    raise InputError(
        f"{text[:40]!a} is no difference between a record and its fields:"
        ' expected {"set": {…}, "missing": […]} or {"is": …}'
    )
