"""Traces become batches and come back byte for byte, damaged ones too."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.importers.dgrr.importing import TraceImport
from cirron_otel.core.importers.dgrr.restoring import CollectedTrace
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.errors import InputError
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.comparing import assert_same, batches

from .traces import (
    CLEAN,
    DAMAGED,
    FILES,
    ODD,
    SMALL,
    batches_of,
    chain,
    command,
    damaged_copies,
    is_trace,
    opened,
    record,
    slow_findings,
    trace,
)


def spool_of(files: list[bytes], folder: Path) -> Path:
    """A spool with the batches of several traces."""
    (folder / "spool").mkdir(parents=True)
    for data in files:
        for batch in batches_of(data):
            (folder / "spool" / batch.name).write_bytes(batch.data)
    return folder


def restored(spool: Path, folder: Path) -> set[bytes]:
    """Each trace of a spool, restored alone."""
    parts = defaultdict(list)
    for batch in batches(spool).values():
        parts[batch["dgrr"]["trace"]].append(batch)
    files = set()
    for number, trace_batches in enumerate(parts.values()):
        place = folder / f"{number}"
        place.mkdir()
        collected = CollectedTrace(place)
        for batch in reversed(trace_batches):
            collected.add(batch)
        files.add(b"".join(collected.pieces()))
        assert not collected.incomplete
        assert not collected.others
        collected.close()
    return files


def through_otlp(files: list[bytes], suffix: str, layout: str, folder: Path) -> set[bytes]:
    """The traces that come back from an OTLP file of their batches."""
    spool, between = spool_of(files, folder / "imported"), folder / f"between{suffix}"
    convert(ConvertRequest(str(spool), str(between), layout=layout, jobs=1))
    convert(ConvertRequest(str(between), f"{folder}/back/"))
    assert_same(batches(folder / "back"), batches(spool))
    (folder / "work").mkdir()
    return restored(folder / "back", folder / "work")


FIELD_AT = {6: "_pad0", 7: "_pad0", 36: "header_crc32", 40: "created_at", 63: "_reserved"}


@pytest.mark.parametrize("size", FIELD_AT)
def test_a_file_that_ends_in_its_header_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.dgrr"
    path.write_bytes(CLEAN.read_bytes()[:size])
    done = subprocess.run(
        [sys.executable, "-m", "cirron_otel", "convert", f"dgrr:{path}", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert f"ends in the header, in {FIELD_AT[size]}, after {size} bytes" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", ["segmented", "session"])
@pytest.mark.parametrize("suffix", [".jsonl", ".binpb", ".json.gz"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_comes_back(path: Path, suffix: str, layout: str, tmp_path: Path) -> None:
    code = int(bool(slow_findings(path.read_bytes())))
    between, spool = tmp_path / f"between{suffix}", tmp_path / "spool-of-it"
    assert convert(ConvertRequest(f"dgrr:{path}", str(spool))).exit_code == code
    report = convert(ConvertRequest(f"dgrr:{path}", str(between), layout=layout, jobs=1))
    assert report.exit_code == code
    found = [each.code for each in report.skipped]
    assert found == [check for check, _ in slow_findings(path.read_bytes())]
    convert(ConvertRequest(str(between), f"{tmp_path}/back/"))
    assert_same(batches(tmp_path / "back"), batches(spool))
    for source in (between, spool, tmp_path / "back"):
        report = convert(ConvertRequest(str(source), f"dgrr:{tmp_path}/out.dgrr", jobs=1))
        assert report.exit_code == 0
        assert (tmp_path / "out.dgrr").read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def damaged_spool(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[bytes]]:
    """A spool with each damaged copy of a small trace, and the copies."""
    copies = {copy for copy in (*damaged_copies(SMALL), ODD, SMALL) if is_trace(copy)}
    return spool_of(sorted(copies), tmp_path_factory.mktemp("damaged")), copies


def test_every_batch_of_a_damaged_trace_is_valid(damaged_spool: tuple[Path, set[bytes]]) -> None:
    for file in (damaged_spool[0] / "spool").glob("*.json"):
        problems = [f for f in validate_batch(file.read_bytes(), file.name) if f.severity != "note"]
        assert not problems


def test_every_damaged_trace_comes_back(
    damaged_spool: tuple[Path, set[bytes]], tmp_path: Path
) -> None:
    spool, copies = damaged_spool
    assert len(copies) == 9 * len(SMALL) - 48 - 6 + 2
    assert restored(spool, tmp_path) == copies


@pytest.mark.parametrize(
    ("half", "suffix", "layout"), [(0, ".jsonl", "segmented"), (1, ".binpb", "session")]
)
def test_every_damaged_trace_comes_back_through_otlp(
    half: int, suffix: str, layout: str, damaged_spool: tuple[Path, set[bytes]], tmp_path: Path
) -> None:
    """Every second copy in each of two forms."""
    _, copies = damaged_spool
    chosen = {*sorted(copies)[half::2], ODD, SMALL}
    assert through_otlp(sorted(chosen), suffix, layout, tmp_path) == chosen


def test_the_command_refuses_or_restores_damaged_traces(tmp_path: Path) -> None:
    """A sample of the damaged copies, and each that is refused."""
    path, spool, out = tmp_path / "in.dgrr", tmp_path / "s", tmp_path / "out.dgrr"
    for number, copy in enumerate(damaged_copies(SMALL)):
        if is_trace(copy) and number % 97:
            continue
        path.write_bytes(copy)
        code, _, problems = command("convert", f"dgrr:{path}", f"{spool}{number}")
        assert code == (int(bool(slow_findings(copy))) if is_trace(copy) else 3)
        assert "Traceback" not in problems
        if code == 3:
            assert problems.count("\n") == 1
            assert not Path(f"{spool}{number}").exists()
        else:
            assert command("convert", f"{spool}{number}", f"dgrr:{out}")[0] == 0
            assert out.read_bytes() == copy


def test_random_traces_come_back(tmp_path: Path) -> None:
    draw = random.Random(72)
    files = []
    for _ in range(300):
        records = [
            record(*struct.unpack("<Q7d", draw.randbytes(64)), pad=draw.choice([0, 0, 0, 5]))
            for _ in range(draw.randrange(5))
        ]
        data = trace(records, seed=draw.getrandbits(64), created_at=draw.getrandbits(64) >> 30)
        files.append(data + draw.randbytes(draw.choice([0, 0, 71, 72, 73])))
    assert through_otlp(files, ".binpb", "segmented", tmp_path) == set(files)


def test_a_long_trace_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "long.dgrr"
    path.write_bytes(trace(chain(4_500)))
    report = convert(ConvertRequest(f"dgrr:{path}", f"{tmp_path}/spooled"))
    assert (report.exit_code, report.batches, report.spans, report.marks) == (0, 3, 1, 4_500)
    convert(ConvertRequest(f"{tmp_path}/spooled", f"{tmp_path}/long.jsonl"))
    convert(ConvertRequest(f"{tmp_path}/long.jsonl", f"dgrr:{tmp_path}/out"))
    assert (tmp_path / "out").read_bytes() == path.read_bytes()


def test_the_session_and_the_marks(tmp_path: Path) -> None:
    data = trace(chain(2, 1), seed=2**64 - 1, rate=0.25)
    (tmp_path / "t.dgrr").write_bytes(data)
    convert(ConvertRequest(f"dgrr:{tmp_path}/t.dgrr", f"{tmp_path}/spooled"))
    (batch,) = batches(tmp_path / "spooled").values()
    (span,) = batch["spans"]
    crcs = struct.unpack_from("<II", data, 32)
    assert span["attrs"] == {
        "source": "dgrr", "dgrr.magic": "DGRR", "dgrr.version": 1, "dgrr._pad0": 0,
        "dgrr.seed": 2**64 - 1, "dgrr.step_count": 2, "dgrr.learning_rate": 0.25,
        "dgrr.file_crc32": crcs[0], "dgrr.header_crc32": crcs[1],
        "dgrr.created_at": 1_700_000_000, "dgrr._reserved": "00" * 16, "dgrr.untimed": True,
    }  # fmt: skip
    time = 1_700_000_000 * 10**9
    assert (span["start_ns"], span["end_ns"]) == (time, time)
    fields = ("step_id", "w_before", "b_before", "grad_w", "grad_b", "w_after", "b_after")
    for number, mark in enumerate(batch["marks"]):
        stored = struct.unpack_from("<Q7d", data, 64 + 72 * number)
        assert (mark["name"], mark["span_id"], mark["ts_ns"]) == ("dgrr.step", span["id"], time)
        assert mark["value"] == stored[7]
        assert mark["attrs"] == {"record": number} | dict(zip(fields, stored, strict=False))
        assert "dgrr" not in mark


def test_values_without_a_json_number_are_texts_and_verbatim(tmp_path: Path) -> None:
    (tmp_path / "t.dgrr").write_bytes(ODD)
    convert(ConvertRequest(f"dgrr:{tmp_path}/t.dgrr", f"{tmp_path}/spooled"))
    (batch,) = batches(tmp_path / "spooled").values()
    (span,), (mark,) = batch["spans"], batch["marks"]
    assert span["attrs"]["dgrr.learning_rate"] == "nan"
    assert span["start_ns"] == mark["ts_ns"] == 0
    assert (mark["value"], mark["value_nonfinite"]) == (None, "nan")
    attrs = mark["attrs"]
    assert (attrs["w_before"], attrs["grad_b"], attrs["w_after"]) == ("nan", "inf", "-inf")
    assert str(attrs["b_before"]) == "-0.0"


def test_standard_input_output_and_formats(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = str(Path(sys.executable).with_name("cirron-otel"))
    spool = tmp_path / "spooled"
    data = CLEAN.read_bytes()
    run = subprocess.run
    run([program, "convert", "-", spool, "--from", "dgrr"], input=data, check=True)
    done = run([program, "convert", spool, "-", "--to", "dgrr"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == data
    (tmp_path / "t.bin").write_bytes(data)
    assert command("convert", tmp_path / "t.bin", tmp_path / "o", "--from", "dgrr")[0] == 0
    assert_same(batches(tmp_path / "o"), batches(spool))


def test_a_file_holds_exactly_one_trace(tmp_path: Path) -> None:
    both = tmp_path / "both"
    for path in (CLEAN, DAMAGED):
        convert(ConvertRequest(f"dgrr:{path}", str(both)))
    target = tmp_path / "out.dgrr"
    target.write_bytes(b"before")
    code, _, problems = command("convert", both, f"dgrr:{target}")
    assert code == 3
    assert "several DGRR traces" in problems
    assert target.read_bytes() == b"before"
    session = next(
        span["id"]
        for batch in batches(both).values()
        for span in batch["spans"]
        if batch["dgrr"]["header"] and any("dgrr" in mark for mark in batch["marks"])
    )
    assert command("convert", both, f"dgrr:{target}", "--select", f"session={session}")[0] == 0
    assert target.read_bytes() == DAMAGED.read_bytes()
    other = Path(__file__).parents[3] / "testdata" / "spools" / "01_torch_basic"
    code, _, problems = command("convert", other, f"dgrr:{tmp_path}/none.dgrr")
    assert code == 3
    assert "contains no DGRR trace" in problems
    assert not (tmp_path / "none.dgrr").exists()


def test_missing_records_are_reported(tmp_path: Path) -> None:
    (tmp_path / "t.dgrr").write_bytes(trace(chain(4_500)))
    convert(ConvertRequest(f"dgrr:{tmp_path}/t.dgrr", f"{tmp_path}/spooled"))
    second = sorted((tmp_path / "spooled" / "spool").glob("*.json"))[1]
    lost = len(exactjson.loads(second.read_bytes())["marks"])
    second.unlink()
    code, _, problems = command("convert", tmp_path / "spooled", f"dgrr:{tmp_path}/out")
    assert code == 1
    assert f"{lost} records are not in the source" in problems
    assert (tmp_path / "out").stat().st_size == 64 + 72 * (4_500 - lost)


def test_other_records_of_the_source_are_reported(tmp_path: Path) -> None:
    other = Path(__file__).parents[3] / "testdata" / "spools" / "01_torch_basic"
    convert(ConvertRequest(str(other), f"{tmp_path}/both"))
    convert(ConvertRequest(f"dgrr:{CLEAN}", f"{tmp_path}/both"))
    code, _, problems = command("convert", tmp_path / "both", f"dgrr:{tmp_path}/out")
    assert code == 1
    assert "not kept: records that a DGRR trace cannot store" in problems
    assert (tmp_path / "out").read_bytes() == CLEAN.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"header": "*"}, {"header": 1}, {"tail": "A" * 400}, {"records": -1}, {"records": None},
        {"trace": None}, {"records": 2**63}, {"header": "A" * 400}, {"trace": "\ud800"},
        {"trace": "AB" * 16}, {"header": "\ud800"}, {"tail": "é"}, {"records": 10**5000},
    ],
)  # fmt: skip
def test_another_form_of_a_batch_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    (imported,) = TraceImport(opened(SMALL), bytes(32), print).batches()
    batch = exactjson.loads(imported.data)
    batch["dgrr"] |= change
    collected = CollectedTrace(tmp_path)
    with pytest.raises(InputError, match=r"docs/dgrr\.md"):
        collected.add(batch)
    collected.close()


@pytest.mark.parametrize(
    "change",
    [
        {"attrs": {}}, {"attrs": None}, {"value": "x"}, {"value": None}, {"dgrr": 1},
        {"dgrr": {"verbatim": "AAAA"}}, {"dgrr": {}}, {"value": True},
        {"attrs": {"record": 2**63}}, {"attrs": {"record": 0, "step_id": -1}},
    ],
)  # fmt: skip
def test_another_form_of_a_mark_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    (imported,) = TraceImport(opened(SMALL), bytes(32), print).batches()
    batch = exactjson.loads(imported.data)
    batch["marks"][1] |= change
    collected = CollectedTrace(tmp_path)
    with pytest.raises(InputError):
        collected.add(batch)
    collected.close()


def test_the_memory_of_an_import_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    from cirron_otel.tools.convert.trace_files import open_trace

    peaks = []
    for count in (5_000, 25_000):
        path = tmp_path / f"{count}.dgrr"
        path.write_bytes(trace(chain(count)))
        tracemalloc.start()
        with open_trace(str(path)) as file:
            assert sum(batch.marks for batch in TraceImport(file, b"", print).batches()) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    """An empty file, a directory, a big-endian trace, another format, and no file."""
    big_endian = tmp_path / "big-endian"
    big_endian.write_bytes(b"DGRR\0\1" + SMALL[6:])
    (tmp_path / "empty").touch()
    other = Path(__file__)
    for path in (tmp_path / "empty", tmp_path, big_endian, other, tmp_path / "absent"):
        for arguments in (
            ["convert", f"dgrr:{path}", tmp_path / "out"],
            ["report", f"dgrr:{path}"],
        ):
            code, out, problems = command(*arguments)
            assert code == 3, path
            assert problems.count("\n") == 1
            assert not out
    assert not (tmp_path / "out").exists()


def test_2_to_the_60_claimed_records_come_back(tmp_path: Path) -> None:
    data = trace(chain(3), count=2**60)
    (tmp_path / "t.dgrr").write_bytes(data)
    code, _, problems = command("convert", f"dgrr:{tmp_path}/t.dgrr", tmp_path / "spooled")
    assert code == 1
    assert "step_count is 1152921504606846976, but the file has 3 records" in problems
    assert command("convert", tmp_path / "spooled", f"dgrr:{tmp_path}/out")[0] == 0
    assert (tmp_path / "out").read_bytes() == data


def test_a_full_target_is_exit_code_4(tmp_path: Path) -> None:
    convert(ConvertRequest(f"dgrr:{CLEAN}", f"{tmp_path}/spooled"))
    code, _, problems = command("convert", tmp_path / "spooled", "dgrr:/dev/full")
    assert code == 4
    assert "No space left" in problems
    assert command("convert", tmp_path / "spooled", f"dgrr:{tmp_path}")[0] == 4


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    from cirron_otel.tools.convert.trace_files import open_trace

    path = tmp_path / "t.dgrr"
    path.write_bytes(trace(chain(2_000)))
    with open_trace(str(path)) as file:
        chunks = file.chunks()
        next(chunks)
        path.write_bytes(SMALL)
        with pytest.raises(InputError, match="became shorter while it was read"):
            list(chunks)


def test_report_and_diff_take_traces() -> None:
    code, out, _ = command("report", f"dgrr:{CLEAN}", "--full")
    assert code == 0
    assert "dgrr.step" in out
    assert command("report", f"dgrr:{DAMAGED}", "--json")[0] == 1
    assert command("diff", f"dgrr:{CLEAN}", f"dgrr:{CLEAN}", "--json")[0] == 0
