"""What an OTLP endpoint is sent of batches that were sampled in part."""

from __future__ import annotations

from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.targets.otlp.sampled import sampled_part
from cirron_otel.errors import InputError

SAMPLED, UNSAMPLED = 0x101, 0x100


def span(some_id: str, flags: int | None = None) -> dict[str, Any]:
    return {"id": some_id, "name": "x"} | ({} if flags is None else {"otel": {"flags": flags}})


def batch(spans: list[dict[str, Any]], marks: list[str], **otel: Any) -> bytes:
    return exactjson.dumps(
        {
            "spans": spans,
            "marks": [{"id": f"m{n}", "span_id": some_id} for n, some_id in enumerate(marks)],
            "snapshots": [],
            "otel": otel,
        }
    )


def kept(data: bytes | None) -> tuple[list[str], list[str]] | None:
    if data is None:
        return None
    told = exactjson.loads(data)
    return [s["id"] for s in told["spans"]], [m["span_id"] for m in told["marks"]]


def test_a_batch_without_flags_is_the_very_bytes() -> None:
    data = batch([span("a")], ["a"], session="s")
    assert sampled_part(data) is data


def test_an_attribute_that_looks_like_a_flag_changes_nothing() -> None:
    data = batch([{"id": "a", "attrs": {"flags": 256, "sampled": False}}], ["a"], session="s")
    assert sampled_part(data) is data


def test_spans_that_differ_from_their_session_go_with_their_marks() -> None:
    data = batch([span("a"), span("b", UNSAMPLED), span("c", 0)], ["a", "b", "open"])
    assert kept(sampled_part(data)) == (["a", "c"], ["a", "open"])


def test_of_an_unsampled_session_only_sampled_callers_are_left() -> None:
    data = batch(
        [span("a"), span("b", SAMPLED)], ["a", "b", "open"],
        sampled=False, running=[{"id": "x"}], segments=[{}], session="s",
    )  # fmt: skip
    part = sampled_part(data)
    assert kept(part) == (["b"], ["b"])
    assert part is not None
    assert exactjson.loads(part)["otel"] == {"sampled": False, "session": "s"}


@pytest.mark.parametrize("marks", [[], ["a"], ["open"]])
def test_nothing_is_left_of_an_unsampled_session(marks: list[str]) -> None:
    assert sampled_part(batch([span("a")], marks, sampled=False)) is None


def test_invalid_json_is_refused() -> None:
    with pytest.raises(InputError):
        sampled_part(b'{"sampled":false')
