"""The checks of a trace, against a slow definition."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from pathlib import Path

import pytest

from cirron_otel.core.importers.dgrr.checking import check_trace

from .traces import (
    ANSWERS,
    FILES,
    NAN,
    RECORDINGS,
    SMALL,
    chain,
    damaged_copies,
    dgrr,
    opened,
    record,
    slow_findings,
    trace,
)


def findings(data: bytes) -> list[tuple[str, int | None]]:
    return [(each.check, each.record) for each in check_trace(opened(data)) if not each.is_note]


def test_every_flipped_bit_and_every_length() -> None:
    copies = list(damaged_copies(SMALL))
    assert len(copies) == 9 * len(SMALL)
    for copy in copies:
        assert findings(copy) == slow_findings(copy)
    covered = [copy for copy in copies if findings(copy)]
    uncovered = 8 * (8 + 16)
    """The bits of `created_at` and of the reserved bytes: the pads of records are in file_crc32."""
    assert len(covered) == len(copies) - uncovered


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_testdata(path: Path) -> None:
    expected = ANSWERS["files"][path.name]["expect"]
    code, document = dgrr("verify", path)
    assert document["valid"] is expected.get("valid", True)
    assert code in _listed(expected.get("exit", 0 if document["valid"] else 3))
    assert document["records"] == expected.get("whole_records", (path.stat().st_size - 64) // 72)
    if "first_bad_record" in expected:
        first = {"check": expected["check"], "record": expected["first_bad_record"]}
        assert document["findings"][0] == first
    found = [(each["check"], each["record"]) for each in document["findings"]]
    assert found == slow_findings(path.read_bytes())


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def test_damage_in_any_chunk_is_detected() -> None:
    """Traces of several chunks, with damage at random places."""
    draw = random.Random(23)
    whole = trace(chain(3_000))
    for _ in range(40):
        copy = bytearray(whole)
        for _ in range(draw.randrange(4)):
            copy[draw.randrange(64, len(copy))] ^= 1 << draw.randrange(8)
        data = bytes(copy[: draw.randrange(len(copy)) if draw.random() < 0.3 else len(copy)])
        assert findings(data) == slow_findings(data)


@pytest.mark.parametrize("first", [0, 1, 2, 2**64 - 2])
def test_steps_are_consecutive_from_0_or_1(first: int) -> None:
    data = trace(chain(2, first))
    expected = [] if first in (0, 1) else [("step_id", 0)]
    assert findings(data) == slow_findings(data) == expected


def test_removed_repeated_and_exchanged_records() -> None:
    one, two, three = chain(3)
    for records in ([one, three], [one, one, two], [two, one, three], [two, three], []):
        data = trace(records)
        assert findings(data) == slow_findings(data)
    assert findings(trace([one, three])) == [("step_id", 1), ("w_before", 1), ("b_before", 1)]


def test_non_finite_values_are_not_errors() -> None:
    data = trace([record(0, 0.0, NAN, 1.0, NAN, float("inf"), NAN, NAN),
                  record(1, float("inf"), NAN, 1.0, 2.0, 0.0, 0.0, float("-inf"))])  # fmt: skip
    assert findings(data) == []


def test_parameters_continue_bit_for_bit() -> None:
    other_nan = float("nan")
    for before, after in ((0.0, -0.0), (NAN, other_nan)):
        data = trace([record(0, 0, 0, 0, 0, after, 0, 0), record(1, before, 0, 0, 0, 0, 0, 0)])
        assert findings(data) == [("w_before", 1)]


def test_another_coverage_of_the_file_s_crc_is_a_note() -> None:
    body = b"".join(chain(1_500))
    start = trace(chain(1_500), file_crc=0)
    crcs = {
        "bytes 0 to 63 of each record": zlib.crc32(
            b"".join(body[at : at + 64] for at in range(0, len(body), 72))
        ),
        "bytes 0 to 31, and 64 to the end": zlib.crc32(start[:32] + body),
        "the complete file, with file_crc32 and header_crc32 as zero": zlib.crc32(
            start[:32] + bytes(8) + start[40:64] + body
        ),
    }
    for name, crc in crcs.items():
        notes = list(check_trace(opened(trace(chain(1_500), file_crc=crc))))
        assert [(each.check, each.is_note) for each in notes] == [("file_crc32", True)]
        assert name in notes[0].message


def test_a_note_is_not_a_finding(tmp_path: Path) -> None:
    data = trace(chain(2))
    path = tmp_path / "note.dgrr"
    path.write_bytes(trace(chain(2), file_crc=zlib.crc32(data[:32] + data[64:])))
    assert dgrr("verify", path) == (0, {"valid": True, "records": 2, "findings": []})


def test_2_to_the_60_records_need_no_memory() -> None:
    data = trace(chain(2), count=2**60)
    tracemalloc.start()
    assert findings(data) == [("step_count", 2)]
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_the_memory_of_a_check_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    from cirron_otel.tools.convert.trace_files import open_trace

    peaks = []
    for count in (2_000, 40_000):
        path = tmp_path / f"{count}.dgrr"
        path.write_bytes(trace(chain(count)))
        tracemalloc.start()
        with open_trace(str(path)) as file:
            assert not list(check_trace(file))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_the_list_of_findings_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bad.dgrr"
    path.write_bytes(trace([bytes(72)] * 12_000))
    code, document = dgrr("verify", path)
    assert code == 3
    assert len(document["findings"]) == 10_000
    assert document["findings_left_out"] > 10_000


def test_the_testdata_is_complete() -> None:
    assert {path.name for path in RECORDINGS.glob("*.dgrr")} == set(ANSWERS["files"])
