"""Shorten a batch for tracing backends: summarise snapshots, and omit the digests of tensors.

A model with a hundred tensors produces a hundred snapshots per epoch, 1 to 2 kB each. Few backends
show them, and some refuse them. They become one summary per span and kind. The spool keeps all of
them; see docs/snapshots.md, "Over OTLP". The digests of a step's tensors may have several kB, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .... import exactjson
from ....errors import InputError
from ....ids import digest
from ...records.digest_marks import digest_mark

WEIGHTS, GRADIENTS = "*", "*.grad"
"""The tensor names of the two kinds of summaries; no parameter has these names."""
_HINT = b'"tensor_name":'
_TENSORS = "tensors"
_HINT_OF_TENSORS = b'"tensors":{"layout":'


def summarised(data: bytes) -> bytes:
    """Return a batch with its snapshots summarised, and without the digests of single tensors.

    The SDK must have written `data`.

    Raises InputError if the batch has to be parsed and is not JSON.
    """
    has_digests = _HINT_OF_TENSORS in data
    if _HINT not in data and not has_digests:
        return data
    batch = exactjson.loads(data)
    if not isinstance(batch, dict):
        return data
    if has_digests:
        data = _without_tensors(batch, data)
    snapshots = batch.get("snapshots")
    if not isinstance(snapshots, list) or not snapshots:
        return data
    if not all(isinstance(each, dict) for each in snapshots):
        raise InputError("a snapshot of the batch is not an object")
    groups: dict[tuple[Any, bool], list[dict[str, Any]]] = {}
    for snapshot in snapshots:
        is_gradient = str(snapshot.get("tensor_name")).endswith(".grad")
        groups.setdefault((snapshot.get("span_id"), is_gradient), []).append(snapshot)
    summaries = [
        _summary(str(batch.get("batch_id")), is_gradient, some)
        for (_, is_gradient), some in groups.items()
    ]
    batch["snapshots"] = sorted(summaries, key=lambda each: (each["ts_ns"], each["id"]))
    return exactjson.dumps(batch)


def _without_tensors(batch: dict[str, Any], data: bytes) -> bytes:
    """Remove the digests of single tensors from a batch's marks; return its bytes."""
    is_changed = False
    marks = batch.get("marks")
    for mark in marks if isinstance(marks, list) else ():
        if digest_mark(mark.get("name"), mark.get("value"), mark.get("attrs")) is not None:
            is_changed = mark["attrs"].pop(_TENSORS, None) is not None or is_changed
    return exactjson.dumps(batch) if is_changed else data


def _summary(batch_id: str, is_gradient: bool, some: list[dict[str, Any]]) -> dict[str, Any]:
    first = some[0]
    span_id = str(first.get("span_id"))
    name = GRADIENTS if is_gradient else WEIGHTS
    id_prefix = digest("snapshots", batch_id, span_id, name)[:8].hex()
    dtypes = {str(each.get("dtype")) for each in some}
    stored = [each for each in some if each.get("blob_uri") is not None]
    measured = [moments for each in some if (moments := _moments(each)) is not None]
    attrs: dict[str, Any] = {"summary": True, "tensors": len(some)}
    others = sum(count for _, count, _ in measured)
    if others:
        attrs["nonfinite_count"] = others
    if len(measured) < len(some):
        attrs["without_statistics"] = len(some) - len(measured)
    return {
        "id": id_prefix + span_id[16:],
        "span_id": first.get("span_id"),
        "tensor_name": name,
        "shape": [sum(math.prod(each.get("shape", ())) for each in some)],
        "dtype": dtypes.pop() if len(dtypes) == 1 else "mixed",
        "mode": (stored or some)[0].get("mode"),
        "stats": _combined([(count, stats) for count, _, stats in measured if count]),
        "blob_uri": stored[0]["blob_uri"] if stored else None,
        "ts_ns": max(each.get("ts_ns", 0) for each in some),
        "attrs": attrs,
    }


def _moments(snapshot: dict[str, Any]) -> tuple[int, int, dict[str, Any]] | None:
    """Return the numbers of finite and of other elements, and the statistics of the finite ones."""
    stats = snapshot.get("stats")
    if not isinstance(stats, dict):
        return None
    finite = stats.get("finite")
    if isinstance(finite, dict):
        return finite.get("count", 0), stats.get("nonfinite_count", 0), finite
    return sum(stats.get("histogram", {}).get("counts", ())), 0, stats


def _combined(some: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, Any] | None:
    """Combine the mean, std, min, max and norm of groups of elements.

    Returns None if there are no elements or if a group lacks a finite statistic.
    """
    count = 0
    mean = squares = norm = 0.0
    low, high = math.inf, -math.inf
    for number, stats in some:
        if any(stats.get(key) is None for key in ("mean", "std", "min", "max", "norm")):
            return None
        total = count + number
        delta = stats["mean"] - mean
        mean += delta * number / total
        squares += stats["std"] * stats["std"] * number + delta * delta * (count * number / total)
        norm = math.hypot(norm, stats["norm"])
        low, high = min(low, stats["min"]), max(high, stats["max"])
        count = total
    statistics = (mean, math.sqrt(squares / count) if count else math.nan, low, high, norm)
    if not all(map(math.isfinite, statistics)):
        return None
    return dict(zip(("mean", "std", "min", "max", "norm"), statistics, strict=True))
