"""Snapshots put together for OTLP: the numbers are those of all elements at once."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from cirron_otel import exactjson
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.core.targets.otlp.summary import summarised
from cirron_otel.core.translator.translate import FromOtlp, encode_own
from cirron_otel.errors import InputError
from tests.kit.spools.deliveries import batch_of

SPAN = "d2ce78ef00209c971111222233334444"


def stats_of(values: Any) -> dict[str, Any]:
    return {
        "mean": float(values.mean()), "std": float(values.std()), "min": float(values.min()),
        "max": float(values.max()), "norm": float(np.linalg.norm(values)),
        "histogram": {"bins": np.linspace(values.min(), values.max(), 17).tolist(),
                      "counts": np.histogram(values, 16)[0].tolist()},
    }  # fmt: skip


def snapshot(number: int, name: str, stats: Any, **changes: Any) -> dict[str, Any]:
    size = 0 if stats is None else sum(stats["histogram"]["counts"]) if "histogram" in stats else 4
    return {
        "id": f"{number:016x}1111222233334444", "span_id": SPAN, "tensor_name": name,
        "shape": [size], "dtype": "float32", "mode": "stats", "stats": stats, "blob_uri": None,
        "ts_ns": 10**18 + 5, "attrs": {},
    } | changes  # fmt: skip


def batch(*snapshots: dict[str, Any]) -> dict[str, Any]:
    made = batch_of("b" * 32, 10**18 + 9, 3)
    return made | {"snapshots": list(snapshots)}


def told(*snapshots: dict[str, Any]) -> list[dict[str, Any]]:
    """The snapshots of the summarised batch, which is valid, and otherwise the same."""
    whole = batch(*snapshots)
    data = summarised(json.dumps(whole, separators=(",", ":")).encode())
    made: dict[str, Any] = exactjson.loads(data)
    assert [each for each in validate_batch(data) if each.severity == "error"] == []
    assert made | {"snapshots": []} == whole | {"snapshots": []}
    found: list[dict[str, Any]] = made["snapshots"]
    return found


def test_one_for_weights_and_one_for_gradients_of_each_span() -> None:
    generator = np.random.default_rng(3)
    groups = [generator.normal(number, 1 + number, 50 + number) for number in range(4)]
    records = [
        snapshot(number, f"{number}.w", stats_of(some)) for number, some in enumerate(groups)
    ]
    records += [
        snapshot(number + 9, f"{number}.w.grad", stats_of(-some))
        for number, some in enumerate(groups)
    ]
    other = snapshot(50, "0.w", stats_of(groups[0]), span_id=SPAN.replace("d2", "d3"))
    found = {(each["span_id"], each["tensor_name"]): each for each in told(*records, other)}
    assert len(found) == 3
    whole = np.concatenate(groups)
    for name, sign in (("*", 1), ("*.grad", -1)):
        record = found[SPAN, name]
        expected = stats_of(sign * whole)
        del expected["histogram"]
        assert record["stats"] == pytest.approx(expected)
        assert record["shape"] == [len(whole)]
        assert record["attrs"] == {"summary": True, "tensors": 4}
        assert (record["dtype"], record["mode"], record["blob_uri"]) == ("float32", "stats", None)
        assert record["id"][16:] == SPAN[16:]


def test_summary_counts_non_finite_unmeasured_and_stored_tensors() -> None:
    usual = stats_of(np.arange(4.0))
    odd = dict.fromkeys(("mean", "std", "min", "max", "norm")) | {
        "nonfinite_count": 3, "finite": {"count": 1} | stats_of(np.array([7.0])),
        "nonfinite": dict.fromkeys(("mean", "std", "min", "max", "norm"), "nan"),
    }  # fmt: skip
    none = dict.fromkeys(("mean", "std", "min", "max", "norm")) | {
        "nonfinite_count": 4, "finite": {"count": 0}, "nonfinite": {}
    }  # fmt: skip
    uri = f"file:///run/.cirron/snapshots/{SPAN}/weights.safetensors"
    (record,) = told(
        snapshot(1, "a", odd, mode="full", blob_uri=uri),
        snapshot(2, "b", usual, mode="full", blob_uri=uri, dtype="bfloat16"),
        snapshot(3, "c", None, shape=[2, 2]),
        snapshot(4, "d", none),
    )
    assert (record["dtype"], record["mode"], record["blob_uri"]) == ("mixed", "full", uri)
    assert record["attrs"] == {
        "summary": True, "tensors": 4, "nonfinite_count": 7, "without_statistics": 1
    }  # fmt: skip
    assert record["shape"] == [16]
    expected = stats_of(np.array([7.0, 0, 1, 2, 3]))
    assert record["stats"] == pytest.approx({k: expected[k] for k in record["stats"]})


@pytest.mark.parametrize("value", [1e200, None])
def test_values_beyond_double_range_leave_no_statistics(value: float | None) -> None:
    usual = stats_of(np.arange(4.0))
    large = usual | dict.fromkeys(("mean", "std", "min", "max", "norm"), value)
    (record,) = told(snapshot(1, "a", large), snapshot(2, "b", usual))
    if value is None or math.isinf(value * value):
        assert record["stats"] is None
    assert record["attrs"]["tensors"] == 2


def test_batch_without_snapshots_is_unchanged() -> None:
    data = json.dumps(batch()).encode()
    assert summarised(data) is data
    named = json.dumps(batch() | {"otel": {"tensor_name": 1}}, separators=(",", ":")).encode()
    assert summarised(named) is named


def test_invalid_batch_is_refused() -> None:
    with pytest.raises(InputError):
        summarised(b'{"snapshots":[5],"tensor_name":1}')
    with pytest.raises(InputError):
        summarised(b'{"tensor_name":')


def test_summarised_batch_is_unchanged_by_an_otlp_round_trip() -> None:
    made = batch(snapshot(1, "a", stats_of(np.arange(4.0))))
    made["otel"] = {"session": "5e55105e55105e551111222233334444"}
    data = summarised(json.dumps(made, separators=(",", ":")).encode())
    whole = FromOtlp().feed_whole(encode_own(data))
    assert whole is not None
    assert exactjson.equal(exactjson.loads(whole.data), exactjson.loads(data))
