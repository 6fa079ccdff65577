"""Odd numbers and deep nesting come back from OTLP, or their file is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.errors import InputError
from cirron_otel.tools.convert.convert import ConvertRequest, convert

LOWER = "1122334455667788"
SESSION = "a1b2c3d4e5f60718" + LOWER


def batch_with(value: str, number: int = 1) -> bytes:
    """Return a batch with one span, whose attributes contain the JSON text `value`."""
    span: dict[str, Any] = {
        "id": f"{number:016x}{LOWER}", "name": "step", "parent_id": SESSION, "index": None,
        "start_ns": 10, "end_ns": 20, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": 7, "pid": 1, "rank": 0, "attrs": {"v": "@"}, "mark_ids": [],
    }  # fmt: skip
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": f"{number:032x}",
        "created_ns": number, "spans": [span], "marks": [], "snapshots": [],
    }  # fmt: skip
    return json.dumps(batch, separators=(",", ":")).replace('"@"', value).encode()


def name_of(number: int) -> str:
    return f"{number:020d}-{number:032x}.json"


def spool_of(folder: Path, *values: str) -> Path:
    (folder / "spool").mkdir(parents=True)
    for number, value in enumerate(values, 1):
        (folder / "spool" / name_of(number)).write_bytes(batch_with(value, number))
    return folder


NUMBERS = (
    "0e99999999999999999999", "-0e99999999999999999999", "0.0e-99999999999999999999", "0E5", "-0.0",
    "1e-99999999999999999999", "1e99999999999999999999", "-1.5E+99999999999999999999",
    "0." + "0" * 5000 + "1e5001", "1" * 4300, "1" * 5000, "1" * 5000 + ".5", "0." + "3" * 5000,
    "4.9e-324", "2.4e-324", "1.7976931348623157e308", "1e22", "1e23",
)  # fmt: skip


@pytest.mark.parametrize("form", ["binpb", "jsonl"])
def test_numbers_of_any_exponent_and_length_come_back(form: str, tmp_path: Path) -> None:
    source = spool_of(tmp_path / "in", *NUMBERS)
    there = convert(ConvertRequest(str(source), str(tmp_path / f"traces.{form}")))
    back = convert(ConvertRequest(str(tmp_path / f"traces.{form}"), str(tmp_path / "back")))
    assert (there.exit_code, back.exit_code) == (0, 0)
    for number, token in enumerate(NUMBERS, 1):
        data = (tmp_path / "back" / "spool" / name_of(number)).read_bytes()
        returned = exactjson.loads(data)["spans"][0]["attrs"]["v"]
        assert exactjson.equal(returned, exactjson.loads(token)), token


def deep(opening: str, closing: str, levels: int) -> str:
    return opening * levels + "1" + closing * levels


NESTED = [
    pytest.param(deep(opening, closing, levels), id=f"{name}-{levels}")
    for name, opening, closing in (
        ("lists", "[", "]"),
        ("objects", '{"d":', "}"),
        ("repeated-keys", '{"d":0,"d":', "}"),
        ("not-first", "[0,", "]"),
        ("not-last", "[", ",0]"),
    )
    for levels in (17, 450, 508, 509, 600, 900, 1100)
]


@pytest.mark.parametrize("value", NESTED)
def test_deep_nesting_comes_back_or_is_refused_by_name(value: str, tmp_path: Path) -> None:
    """A good batch follows, so that a conversion that ends early would lose it."""
    source = spool_of(tmp_path / "in", value, "1")
    there = convert(ConvertRequest(str(source), str(tmp_path / "traces.binpb")))
    back = convert(ConvertRequest(str(tmp_path / "traces.binpb"), str(tmp_path / "back")))
    assert back.exit_code == 0
    refused = [finding.name for finding in there.skipped]
    is_too_deep = value.count("[") + value.count("{") > exactjson.MAX_DEPTH - 4
    assert refused == ([name_of(1)] if is_too_deep else [])
    names = {path.name for path in (tmp_path / "back" / "spool").iterdir()}
    assert names == {name_of(1), name_of(2)} - set(refused)
    for name in names:
        left, right = (tmp_path / where / "spool" / name for where in ("in", "back"))
        assert exactjson.equal(*(exactjson.loads(path.read_bytes()) for path in (left, right)))
    # `spool verify` reports every batch that a conversion refuses.
    assert not is_too_deep or validate_batch(batch_with(value))


def test_deepest_parsed_values_can_be_written_compared_and_sorted() -> None:
    """This holds at the deepest nesting that is read, for every kind of value."""
    for text in (deep("[", "]", exactjson.MAX_DEPTH), deep('{"d":', "}", exactjson.MAX_DEPTH)):
        for leaf in ("1", "1e400", "-0"):
            value = exactjson.loads(text.replace("1", leaf, 1))
            assert exactjson.equal(value, exactjson.loads(exactjson.dumps(value)))
            assert exactjson.dumps_sorted(value) == exactjson.dumps(value).decode()
        with pytest.raises(InputError, match="nested too deep"):
            exactjson.loads("[" + text + "]")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ('["]",', ',"["]'),
        ('["\\"]\\"",', ',"\\"[\\""]'),
        ('[{"a":', "}]"),
        ("[[],", "]"),
        ('{"]":', "}"),
    ],
)
def test_brackets_in_texts_hide_no_depth(opening: str, closing: str) -> None:
    for levels in (200, 600):
        text = deep(opening, closing, levels)
        is_deep = opening.count("[{") * levels + levels > exactjson.MAX_DEPTH
        if is_deep:
            with pytest.raises(InputError, match="nested too deep"):
                exactjson.loads(text)
        else:
            assert exactjson.loads(exactjson.dumps(exactjson.loads(text)))
