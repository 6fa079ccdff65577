"""Reading: in order, tolerant of everything beside the batches, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from cirron_otel.core.records.problems import ReadingProblem
from cirron_otel.core.spool import reader
from cirron_otel.core.spool.reader import SpoolReader, read_batch
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import InputError
from tests.kit.spools.made import encoded, made
from tests.kit.spools.recorded import NAMES, SPOOLS, batch_files


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_read_completely_and_in_order(name: str) -> None:
    spool = SpoolReader(SPOOLS / name)
    batches = list(spool)
    assert [(b.name, b.path, b.data) for b in batches] == [
        (path.name, path, path.read_bytes()) for path in batch_files(name)
    ]
    torn = [finding.name for finding in spool.findings]
    assert torn == [p.name for p in (SPOOLS / name / ".cirron/spool").glob("*.json.tmp")]


def test_an_empty_spool(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    assert list(SpoolReader(tmp_path)) == []


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """A spool of two batches, among other files that a directory may hold."""
    writer = SpoolWriter(tmp_path, max_bytes=None)
    writer.write(encoded(made(1)), "b.json")
    writer.write(encoded(made(2)), "d.json")
    spool = tmp_path / "spool"
    for name, content in {
        "a.json": b"",
        "c.json": encoded(made(3))[:-10],
        "e.json": encoded(made(4, schema_version=2)),
        "f.json": b"[1,2]",
        "k.json": b"\xff\xfe",
        "l.json.tmp": b"{",
        "README": b"not looked at",
        "batch.json.gz": b"\x1f\x8b",
        "m.JSON": b"{}",
    }.items():
        (spool / name).write_bytes(content)
    (spool / "g.json").mkdir()
    os.mkfifo(spool / "h.json")
    (spool / "i.json").symlink_to("nowhere")
    (spool / "j.json").symlink_to("j.json")
    (spool / "sub").mkdir()
    (spool / "sub" / "x.json").write_bytes(encoded(made(9)))
    return tmp_path


FOUND = {
    "a.json": "not-json",
    "c.json": "not-json",
    "e.json": "schema-version",
    "f.json": "not-batch",
    "g.json": "unreadable",
    "h.json": "unreadable",
    "i.json": "unreadable",
    "j.json": "unreadable",
    "k.json": "not-json",
    "l.json.tmp": "torn",
}


def test_files_that_are_not_batches_are_reported_and_skipped(messy: Path) -> None:
    spool = SpoolReader(messy)
    for _ in range(2):
        assert [batch.name for batch in spool] == ["b.json", "d.json"]
        assert {finding.name: finding.code for finding in spool.findings} == FOUND
        assert spool.skipped == len(FOUND) == len(spool.findings)
    assert all(finding.severity == "error" for finding in spool.findings)


def test_findings_go_to_the_callback(messy: Path) -> None:
    found: list[ReadingProblem] = []
    spool = SpoolReader(messy, on_finding=found.append)
    assert len(list(spool)) == 2
    assert {finding.name: finding.code for finding in found} == FOUND
    assert spool.findings == []
    assert spool.skipped == len(FOUND)


def test_permissions_are_reported(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("permissions do not stop root")
    path = SpoolWriter(tmp_path).write(encoded(made(1))).path
    path.chmod(0)
    spool = SpoolReader(tmp_path)
    assert list(spool) == []
    assert [finding.code for finding in spool.findings] == ["unreadable"]


def test_batches_evicted_while_reading_are_not_reported(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    paths = [writer.write(encoded(made(number))).path for number in range(4)]
    spool = SpoolReader(tmp_path)
    seen = []
    for batch in spool:
        seen.append(batch.path)
        paths[2].unlink(missing_ok=True)
    assert seen == [paths[0], paths[1], paths[3]]
    assert spool.findings == []


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = SpoolWriter(tmp_path, max_bytes=None).write(encoded(made(1))).path
    (tmp_path / "spool" / "z.json").touch()
    os.truncate(tmp_path / "spool" / "z.json", 10 * 2**40)
    spool = SpoolReader(tmp_path)
    tracemalloc.start()
    assert [batch.name for batch in spool] == [path.name]
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert [(f.name, f.code) for f in spool.findings] == [("z.json", "too-large")]
    size = path.stat().st_size
    assert len(list(SpoolReader(tmp_path, max_batch_bytes=size))) == 1
    assert len(list(SpoolReader(tmp_path, max_batch_bytes=size - 1))) == 0


def test_a_directory_of_many_files_is_read_a_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_PAGE", 10)
    writer = SpoolWriter(tmp_path, max_bytes=None, durable=False)
    for count in (9, 10, 11, 20, 21, 57):
        names = [writer.write(encoded(made(number))).name for number in range(count)]
        assert list(SpoolReader(tmp_path).names()) == names


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25])
def test_a_pass_reports_its_progress_and_the_total_from_the_last_page_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(reader, "_PAGE", 10)
    writer = SpoolWriter(tmp_path, max_bytes=None, durable=False)
    (tmp_path / "spool").mkdir(exist_ok=True)
    for number in range(count):
        writer.write(encoded(made(number)))
    calls: list[tuple[int, int | None]] = []
    spool = SpoolReader(tmp_path, on_progress=lambda *call: calls.append(call))
    reported = []
    for _ in spool:
        reported.append(len(calls))  # a batch counts once the caller is done with it
    assert reported == list(range(count))
    in_full_pages = count // 10 * 10
    assert calls[:count] == [
        (done, count if done > in_full_pages else None) for done in range(1, count + 1)
    ]
    assert calls[count:] == [(count, count)] * (count == in_full_pages)


def test_progress_counts_the_batches_that_are_skipped_and_only_those_of_the_run(
    messy: Path,
) -> None:
    calls: list[tuple[int, int | None]] = []
    spool = SpoolReader(messy, on_progress=lambda *call: calls.append(call))
    assert len(list(spool)) < len(calls)
    assert calls[-1] == (len(calls), len(calls))
    calls.clear()
    spool.only = frozenset({"b.json", "c.json", "not-there.json"})
    assert [batch.name for batch in spool] == ["b.json"]
    assert calls == [(1, 2), (2, 2)]


_PEAK_OF_NAMES = """
import sys, tracemalloc
from cirron_otel.core.spool import reader
reader._PAGE = 500
names = reader.SpoolReader(sys.argv[1]).names()
tracemalloc.start()
print(sum(1 for _ in names), tracemalloc.get_traced_memory()[1])
"""


def test_the_names_of_a_large_directory_take_bounded_memory(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    for number in range(10_000):
        (spool / f"{number:020d}-{number:032x}.json").touch()
    # In a process of its own: threads that other tests have started would be measured as well.
    done = subprocess.run(
        [sys.executable, "-c", _PEAK_OF_NAMES, str(tmp_path)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    count, peak = map(int, done.stdout.split())
    assert count == 10_000
    # 10,000 names alone would take 1 MB, their Path objects far more.
    assert peak < 400_000


def test_unreadable_directories_are_input_errors(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    spool = SpoolReader(tmp_path)
    (tmp_path / "spool").rmdir()
    with pytest.raises(InputError, match="cannot be read"):
        list(spool)


class TestReadBatch:
    def test_one_file_anywhere(self, tmp_path: Path) -> None:
        path = tmp_path / "any.name"
        path.write_bytes(encoded(made(1)))
        assert read_batch(path).data == encoded(made(1))

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x1f\x8b"])
    def test_content_that_is_not_a_batch_is_an_input_error(
        self, tmp_path: Path, content: bytes
    ) -> None:
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(InputError, match=r"x\.json is not a batch"):
            read_batch(tmp_path / "x.json")

    def test_unreadable_path_is_an_input_error(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            read_batch(tmp_path / "x.json")
        with pytest.raises(InputError, match="not a regular file"):
            read_batch(tmp_path)
        with pytest.raises(InputError, match="is not valid"):
            read_batch("a\0b")
