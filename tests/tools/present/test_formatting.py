"""Sizes, durations, times and names as text for people."""

from __future__ import annotations

import time

import click
import pytest

from cirron_otel.tools.cli.parameters import age_in_ns, size_in_bytes
from cirron_otel.tools.present.formatting import (
    count,
    duration,
    local_moment,
    numbers,
    printable,
    size,
)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "?"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1 µs"),
        (1_234, "1.23 µs"),
        (999_400, "999 µs"),
        (999_999, "1 ms"),
        (81_900_000, "81.9 ms"),
        (1_122_332_829, "1.12 s"),
        (59_900_000_000, "59.9 s"),
        (59_990_000_000, "1 min 00 s"),
        (3_599_900_000_000, "1 h 00 min"),
        (90_000_000_000_000, "25 h 00 min"),
        (-1_234, "-1.23 µs"),
    ],
)
def test_duration(ns: int | None, text: str) -> None:
    assert duration(ns) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (98_628, "98.6 kB"), (999_999, "1 MB"), (2 * 10**15, "2e+03 TB")],
)
def test_size(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("1000000", 10**6), ("500MB", 500 * 10**6), ("1GiB", 2**30), ("1.5 kb", 1500),
     ("2K", 2000), ("3t", 3 * 10**12), ("7B", 7)],
)  # fmt: skip
def test_size_in_bytes(text: str, number: int) -> None:
    assert size_in_bytes(text) == number


@pytest.mark.parametrize("text", ["", "MB", "-1", "1 XB", "1e3", "१MB", "1iB"])
def test_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        size_in_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", 604_800), ("0s", 0)]
)
def test_age_in_ns(text: str, seconds: int) -> None:
    assert age_in_ns(text) == seconds * 10**9


def test_local_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        assert local_moment(1_795_197_733_763_229_517) == "2026-11-20 23:47:13 +0545"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert local_moment(10**30) == f"{10**30} ns"
    assert local_moment(None) == "?"


def test_printable_escapes_terminal_control_characters() -> None:
    assert printable("épo\x1b[31m\ud800\n値") == "épo\\x1b[31m\\ud800\\n値"


def test_count_and_numbers() -> None:
    assert count(1, "batch", "batches") == "1 batch"
    assert count(1234, "span") == "1,234 spans"
    assert numbers([]) == "-"
    assert numbers([0, 1, 2, 7, -3, 9, 10]) == "-3, 0-2, 7, 9-10"
