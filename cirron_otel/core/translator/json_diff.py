"""The difference between a decoded record and any original, as JSON text.

`{"set": {…}, "missing": […]}` as in `residual`, for formats that have a field for it; and `{"is":
…}` if the original is not an object.
"""

from __future__ import annotations

from typing import Any

from ... import exactjson
from ...errors import InputError
from .residual import apply, difference


def diff_of(truth: Any, decoded: dict[str, Any]) -> str:
    """Return the difference that makes `decoded` the original, in ASCII; "" if they are equal."""
    if not isinstance(truth, dict):
        return exactjson.dumps_ascii({"is": truth})
    residual = difference(truth, decoded)
    return exactjson.dumps_ascii(residual) if residual else ""


def apply_diff(decoded: dict[str, Any], text: str) -> Any:
    """Apply the result of `diff_of` to `decoded`, which is changed, and return the original.

    Raises InputError if `text` is not such a difference.
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
