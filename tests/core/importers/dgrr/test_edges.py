"""Edge values of every field: they are checked, shown, and come back."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_round_trips import through_otlp
from .traces import (
    SMALL,
    chain,
    command,
    record,
    slow_findings,
    trace,
)

_INTEGERS = (0, 1, 2**31, 2**32 - 1, 2**53 + 1, 2**60, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)
_LAST_TIME = 2**63 // 10**9
"""The last second that fits a timestamp."""
_NUMBERS = tuple(
    struct.unpack(">d", bytes.fromhex(bits))[0]
    for bits in ("0000000000000000", "8000000000000000", "0000000000000001", "8000000000000001",
                 "000fffffffffffff", "7fefffffffffffff", "ffefffffffffffff", "7ff0000000000000",
                 "fff0000000000000", "7ff0000000000001", "7ff8deadbeefcafe", "ffffffffffffffff")
)  # fmt: skip
"""Zeros, subnormal numbers, the largest, infinities, and NaNs with their payloads."""


def edge_files() -> Iterator[bytes]:
    """Traces with an edge value in each field of the header and of a record."""
    for number in (*_INTEGERS, _LAST_TIME, _LAST_TIME + 1):
        for field in ("seed", "count", "created_at"):
            yield trace([], **{field: number})
            yield trace(chain(2), **{field: number})
        yield trace(chain(2, number) if number < 2**64 - 1 else [record(number, *[0.5] * 7)])
    for number in _NUMBERS:
        yield trace([], rate=number)
        for at in range(7):
            fields = [0.25] * 7
            fields[at] = number
            yield trace([record(0, *fields), record(1, *[0.25] * 7)])
    for pad in (1, 2**16 - 1):
        yield trace([], pad0=pad, reserved=pad.to_bytes(2, "big") * 8)
        yield trace([record(0, *[0.25] * 7, pad=pad << 16)])
    for tail in (b"\0", b"\n", SMALL[:71], b"DGRR"):
        yield SMALL + tail
    yield SMALL[:64]


@pytest.mark.parametrize(("suffix", "layout"), [(".jsonl", "session"), (".binpb", "segmented")])
def test_edge_values_come_back(suffix: str, layout: str, tmp_path: Path) -> None:
    files = set(edge_files())
    assert len(files) > 150
    assert through_otlp(sorted(files), suffix, layout, tmp_path) == files


def test_edge_values_are_checked_and_shown(tmp_path: Path) -> None:
    """Commands end with the code that the definition of the checks gives; JSON has no NaN."""
    path = tmp_path / "edge.dgrr"
    commands = (
        ("verify", path), ("inspect", "--step", 0, "--trace", path),
        ("replay", "--step", "all", "--trace", path), ("compare", "--a", path, "--b", path),
    )  # fmt: skip
    for data in edge_files():
        path.write_bytes(data)
        expected = slow_findings(data)
        for arguments in commands:
            code, out, problems = command("dgrr", *arguments, "--json")
            assert (code == 3) == bool(expected), (arguments, data[:64])
            assert code in (0, 3) or arguments[0] in ("inspect", "replay")
            assert "internal error" not in problems
            document = json.loads(out, parse_constant=pytest.fail) if out else {}
            if arguments[0] == "verify":
                found = [(each["check"], each["record"]) for each in document["findings"]]
                assert found == expected
