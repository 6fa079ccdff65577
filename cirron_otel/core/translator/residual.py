"""The residual: the difference between a record and the result of decoding its message.

Every mapper writes what OTLP can express, decodes the result, and stores the difference as JSON
text, `{"set": {…}, "missing": […]}`. `set` contains the keys that decoding does not restore, with
their values; `missing` contains the keys that decoding gives but the record does not have. The
decoder applies the residual, so every record is restored completely, whatever it contains.

`diff_of` and `apply_diff` are for formats that store the residual in a separate field.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from ... import exactjson
from ... import semconv as sc
from ...errors import InputError
from .values import UnencodableError, add, read_typed

Residual = dict[str, Any]

_MAX_DEPTH = exactjson.MAX_DEPTH + 8
"""The depth limit of a residual, which adds at most three levels to the values of a batch."""

NESTED = "otel"
"""The only object of a batch whose difference is stored key by key."""


def difference(truth: dict[str, Any], decoded: dict[str, Any]) -> Residual:
    """Return the difference that makes `decoded` equal to `truth`; {} if they are equal."""
    changed = {
        key: truth[key]
        for key in sorted(truth)
        if key not in decoded or not exactjson.equal(truth[key], decoded[key])
    }
    missing = sorted(key for key in decoded if key not in truth)
    residual: Residual = {}
    if changed:
        residual["set"] = changed
    if missing:
        residual["missing"] = missing
    return residual


def nested(residual: Residual, key: str, truth: object, decoded: object) -> None:
    """Store only the difference of the values of `key`, if they differ and are objects."""
    changed = residual.get("set", {})
    if key in changed and isinstance(truth, dict) and isinstance(decoded, dict):
        del changed[key]
        if not changed:
            del residual["set"]
        residual[key] = difference(truth, decoded)


def together(residual: Residual, truth: dict[str, Any], keys: Collection[str]) -> None:
    """If the residual sets any of `keys`, make it set all of them that the record has."""
    changed = residual.get("set", {})
    if any(key in changed for key in keys):
        merged = changed | {key: truth[key] for key in keys if key in truth}
        residual["set"] = {key: merged[key] for key in sorted(merged)}


def apply(decoded: dict[str, Any], residual: Residual) -> None:
    """Apply a residual to `decoded`, in place."""
    if NESTED in residual:
        inner = decoded.get(NESTED)
        inner = dict(inner) if isinstance(inner, dict) else {}
        apply(inner, residual[NESTED])
        decoded[NESTED] = inner
    for key in residual.get("missing", ()):
        decoded.pop(key, None)
    decoded.update(residual.get("set", {}))


def text_of(residual: Residual) -> str:
    """Return the residual as ASCII JSON, which can be split anywhere and can escape surrogates."""
    return exactjson.dumps_ascii(residual) if residual else ""


def write(target: Any, key: str, text: str) -> None:
    """Append `text` in pieces, as the attributes `key`, `key.1`, `key.2` and so on."""
    for number, start in enumerate(range(0, len(text), sc.REST_PIECE)):
        name = f"{key}.{number}" if number else key
        add(target, name, text[start : start + sc.REST_PIECE])


def joined(ours: dict[str, AnyValue], key: str) -> str:
    """Remove the pieces that `write` wrote from `ours`, and return the joined text.

    Returns "" if there are no pieces.
    """
    pieces = []
    name, number = key, 0
    while name in ours:
        piece = read_typed(ours, name, "string_value")
        if piece is None:
            raise UnencodableError(name)
        pieces.append(piece)
        del ours[name]
        number += 1
        name = f"{key}.{number}"
    return "".join(pieces)


def parse(text: str, *, of_batch: bool = False) -> Residual:
    """Parse the text of a residual. The residual of a batch may contain a residual of its `otel`.

    Raises UnencodableError if `text` is not a residual.
    """
    if not text:
        return {}
    try:
        residual = exactjson.loads(text, max_depth=_MAX_DEPTH)
    except InputError:
        raise UnencodableError("not JSON, or nested too deeply") from None
    if of_batch and isinstance(residual, dict) and NESTED in residual:
        _check(residual[NESTED])
        _check({key: value for key, value in residual.items() if key != NESTED})
    else:
        _check(residual)
    return residual  # type: ignore[no-any-return]


def _check(residual: object) -> None:
    if not isinstance(residual, dict) or not residual.keys() <= {"set", "missing"}:
        raise UnencodableError("not a residual")
    missing = residual.get("missing", [])
    if not isinstance(residual.get("set", {}), dict) or not isinstance(missing, list):
        raise UnencodableError("not a residual")
    if not all(isinstance(key, str) for key in missing):
        raise UnencodableError("not a residual")


def diff_of(truth: Any, decoded: dict[str, Any]) -> str:
    """Return the difference that turns `decoded` into `truth`, as ASCII JSON; "" if they are equal.

    It is the text of a residual, or `{"is": …}` if `truth` is not an object.
    """
    if not isinstance(truth, dict):
        return exactjson.dumps_ascii({"is": truth})
    residual = difference(truth, decoded)
    return exactjson.dumps_ascii(residual) if residual else ""


def apply_diff(decoded: dict[str, Any], text: str) -> Any:
    """Apply the result of `diff_of` to `decoded`, in place, and return the original.

    Raises InputError if `text` is not a result of `diff_of`.
    """
    if not text:
        return decoded
    residual = exactjson.loads(text, max_depth=_MAX_DEPTH)
    if isinstance(residual, dict):
        if residual.keys() == {"is"}:
            return residual["is"]
        changed, missing = residual.get("set", {}), residual.get("missing", [])
        shaped = residual.keys() <= {"set", "missing"} and isinstance(changed, dict)
        if shaped and isinstance(missing, list) and all(isinstance(k, str) for k in missing):
            apply(decoded, residual)
            return decoded
    raise InputError(
        f"{text[:40]!a} is not a difference between a record and its fields:"
        ' expected {"set": {…}, "missing": […]} or {"is": …}'
    )
