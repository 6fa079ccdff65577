"""Tables in a bucket of a real S3 server: convert, writers that are killed, and several at once."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import cirron_otel as ci
from cirron_otel.core.columns import bucket, ranged
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.bucket import BucketTables
from cirron_otel.core.columns.known_batches import KnownBatches, PartitionBatches
from cirron_otel.core.columns.layout import EMPTY_GROUP
from cirron_otel.core.columns.packed import arrow_rows
from cirron_otel.core.columns.reading import ColumnsReader, RowSelect
from cirron_otel.core.columns.schema import BATCHES, TABLES
from cirron_otel.core.columns.writing import ColumnsWriter, WriterLimits
from cirron_otel.core.targets.objects import s3
from cirron_otel.core.targets.objects.s3 import S3BlobStore
from cirron_otel.core.targets.objects.store import BlobContent
from cirron_otel.errors import TargetError
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.backends.versitygw import Versitygw
from tests.kit.servers.away import until
from tests.kit.spools.comparing import assert_same, batches
from tests.kit.spools.made import EPOCH_NS, span
from tests.kit.spools.recorded import SPOOLS
from tests.tools.frames.test_read import assert_same_tables

from .conftest import BUCKET
from .helpers import (
    add,
    assert_stored,
    of_run,
    stored,
)

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1800)]

# Adds the batches from one number to another, one group for each, and says so after each.
_ADD = """
import sys
from tests.core.columns.helpers import add
from tests.core.columns.test_bucket import many
first, last = map(int, sys.argv[2:])
for number in range(first, last):
    print(number, flush=True)
    add(sys.argv[1], many()[number : number + 3])
"""
MANY = 24

# Sends the first parts of a large file, and then waits to be killed.
_ADD_LARGE = """
import sys, time
from cirron_otel.core.columns import bucket, ranged
from cirron_otel.core.targets.objects import s3
from cirron_otel.core.targets.objects.store import BlobContent
from tests.core.columns.helpers import add
from tests.core.columns.test_bucket import large
bucket.WHOLE_BYTES, s3.PART_BYTES = 1 << 20, 5 << 20
checked_pieces = BlobContent.checked_pieces
def stopping(content, *arguments):
    for number, piece in enumerate(checked_pieces(content, *arguments)):
        if number == 2:
            print("sending", flush=True)
            time.sleep(3600)
        yield piece
BlobContent.checked_pieces = stopping
add(sys.argv[1], large())
"""


@pytest.fixture
def place(bucket_place: str) -> str:
    return bucket_place


def many() -> list[tuple[str, bytes]]:
    """Batches of one partition, so that writers meet."""
    return [of_run(1, batch_id=f"{number:032x}", records=2 + number % 3) for number in range(MANY)]


def writer(place: str, first: int, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _ADD, place, str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_recording_comes_back(place: str, tmp_path: Path) -> None:
    spool = SPOOLS / "01_torch_basic"
    first = convert(ConvertRequest(str(spool), f"parquet:{place}"))
    assert (first.exit_code, first.unchanged) == (0, 0)
    again = convert(ConvertRequest(str(spool), f"parquet:{place}"))
    assert (again.exit_code, again.unchanged) == (0, again.batches)
    back = convert(ConvertRequest(f"parquet:{place}", str(tmp_path / "back")))
    assert back.exit_code == 0
    assert_same(batches(tmp_path / "back"), batches(spool))


def test_tables_in_s3_are_read_as_frames(place: str) -> None:
    convert(ConvertRequest(str(RECORDING), f"parquet:{place}"))
    assert_same_tables(ci.read(f"parquet:{place}"), ci.read(RECORDING))


@pytest.mark.parametrize("run", ["r", "a/b", "é", "x" * 199, "é" * 60, "a b+c", "%41"])
def test_any_run_has_a_partition(run: str, place: str) -> None:
    files = [of_run(1, run), of_run(2, "another"), of_run(3, "")]
    add(place, files)
    assert_stored(place, files)
    rows = ColumnsReader(place).rows("spans", RowSelect(run_id=run))
    assert set(rows.column("run_id").to_pylist()) == {run}
    assert rows.num_rows == 3


def test_a_writer_that_is_killed_between_the_parts_of_a_file(place: str, server: Versitygw) -> None:
    """The server has received parts, and has no object of them."""
    command = [sys.executable, "-c", _ADD_LARGE, place]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "sending\n"
    while _bytes_below(server.buckets / BUCKET / ".sgwtmp") < 1 << 20:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    prefix = place.removeprefix(f"s3://{BUCKET}/")
    sizes = [len(data) for key, data in server.objects(BUCKET).items() if key.startswith(prefix)]
    assert max(sizes) < 1 << 20
    assert stored(place) == []
    add(place, large())
    assert_stored(place, large())


def large() -> list[tuple[str, bytes]]:
    """A batch whose file is more than one part of the usual size, or two of the smallest size."""
    return [of_run(1, sdk_version=random.Random(1).randbytes(11 << 20).hex())]


def _bytes_below(folder: Path) -> int:
    """The size of the files of uploads that are not complete."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def test_a_writer_that_fails_between_the_parts_of_a_file(
    place: str, server: Versitygw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps none of the parts that it has: the upload is aborted."""
    checked_pieces = BlobContent.checked_pieces
    uploads = server.buckets / BUCKET / ".sgwtmp" / "multipart"
    before = _bytes_below(uploads)

    def failing(content: BlobContent, *arguments: int) -> Iterator[bytes]:
        for number, piece in enumerate(checked_pieces(content, *arguments)):
            if number == 2:
                # A server may store a part for which it receives the data while it aborts.
                until(lambda: _bytes_below(uploads) >= before + 2 * s3.PART_BYTES)
                raise OSError("the disk is broken")
            yield piece

    monkeypatch.setattr(bucket, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(BlobContent, "checked_pieces", failing)
    with pytest.raises(TargetError, match="the disk is broken"):
        add(place, large())
    until(lambda: _bytes_below(uploads) <= before)  # an earlier upload may still be removed


def test_a_file_of_the_usual_size_has_no_parts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a writer that is killed leaves nothing that only a lifecycle rule removes."""
    monkeypatch.setattr(S3BlobStore, "_put_parts", None)
    add(place, large())
    assert_stored(place, large())


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is read from now on."""
    sizes: list[int] = []
    get, get_tail, get_range = S3BlobStore.get, S3BlobStore.get_tail, S3BlobStore.get_range

    def whole(store: S3BlobStore, key: str) -> Iterator[bytes]:
        for piece in get(store, key):
            sizes.append(len(piece))
            yield piece

    def tail(store: S3BlobStore, key: str, length: int) -> tuple[bytes, int]:
        data, size = get_tail(store, key, length)
        sizes.append(len(data))
        return data, size

    def part(store: S3BlobStore, key: str, start: int, end: int) -> bytes:
        sizes.append(end - start)
        return get_range(store, key, start, end)

    monkeypatch.setattr(S3BlobStore, "get", whole)
    monkeypatch.setattr(S3BlobStore, "get_tail", tail)
    monkeypatch.setattr(S3BlobStore, "get_range", part)
    return sizes


def test_a_reader_fetches_the_columns_and_row_groups_that_it_needs(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would be some megabytes."""
    noise = random.Random(2)
    spans = [
        span(n, 1, start_ns=EPOCH_NS + n, end_ns=EPOCH_NS + n + 1,
             attrs={"noise": noise.randbytes(2_000).hex()})
        for n in range(2, 2_002)
    ]  # fmt: skip
    content = of_run(1, spans=spans, marks=[], snapshots=[])
    add(place, [content], WriterLimits(row_group_rows=100))
    monkeypatch.setattr(ranged, "TAIL_BYTES", 20_000)
    reader = ColumnsReader(place)
    sizes = fetched(monkeypatch)
    select = RowSelect(since_ns=EPOCH_NS + 1_050, until_ns=EPOCH_NS + 1_060)
    rows = reader.rows("spans", select)
    assert rows.column("start_ns").to_pylist() == [EPOCH_NS + n for n in range(1_050, 1_060)]
    assert 100_000 < sum(sizes) < 600_000
    sizes.clear()
    assert reader.rows("spans", columns=["id", "start_ns"]).num_rows == 2_000
    assert sum(sizes) < 500_000
    sizes.clear()
    assert reader.rows("spans", RowSelect(run_id="r")).num_rows == 2_000
    assert sum(sizes) > 3_000_000
    sizes.clear()
    assert list(reader.keys(reader.groups()[-1]))
    assert sum(sizes) < 100_000


def test_a_writer_that_is_killed_at_any_time(place: str) -> None:
    chance = random.Random(3)
    for _ in range(3):
        process = writer(place, 0, MANY)
        assert process.stdout is not None
        for _ in range(chance.randrange(2, MANY)):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if any(BucketTables(place).groups(BATCHES)):
            assert set(stored(place)) <= set(many())
    add(place, many())
    assert_stored(place, many())


def test_writers_at_once(place: str, tmp_path: Path) -> None:
    """They overlap in each batch; each comes back once."""
    writers = [writer(place, 0, MANY) for _ in range(2)]
    assert [process.wait() for process in writers] == [0, 0]
    convert(ConvertRequest(f"parquet:{place}", str(tmp_path / "back")))
    assert sorted(batches(tmp_path / "back")) == sorted(name for name, _ in many())
    rows = ColumnsReader(place).rows("spans", columns=["batch_key", "ordinal"]).to_pylist()
    seen = [(row["batch_key"], row["ordinal"]) for row in rows]
    assert len(seen) == len(set(seen)) == sum(2 + number % 3 for number in range(MANY))


def test_a_batch_in_two_groups_counts_once(place: str) -> None:
    """As after a race: the second writer does not look at what the first has written."""

    class Blind(KnownBatches):
        def refresh(self, partition: object) -> PartitionBatches:  # noqa: ARG002
            return PartitionBatches()

    add(place, [of_run(1), of_run(2)])
    with ColumnsWriter(place, known=Blind(BucketTables(place))) as blind:
        assert blind.add(arrow_rows(rows_of(*of_run(1))))
    reader = ColumnsReader(place)
    assert reader.rows("spans").num_rows == 6
    assert reader.rows("batches").num_rows == 2
    assert sum(1 for group in reader.groups() if group.partition.date != "1970-01-01") == 3


def test_files_of_a_group_that_does_not_count_stay_for_a_day(
    place: str, server: Versitygw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may be writing them."""
    add(place, [of_run(1)])
    tables = BucketTables(place)
    [group] = [each for each in tables.groups(BATCHES) if each != EMPTY_GROUP]
    tables.remove(BATCHES, group)
    tables.clean()
    assert tables.has("spans", group)
    monkeypatch.setattr(bucket, "ABANDONED_AFTER", timedelta(minutes=-1))
    tables.clean()
    assert not any(tables.has(table, group) for table in TABLES)
    assert all(tables.has(table, EMPTY_GROUP) for table in TABLES)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "the secret key is wrong"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "the connection was refused"),
    ],
)
def test_a_server_that_refuses(
    variable: str,
    value: str,
    words: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    (tmp_path / "one.json").write_bytes(of_run(1)[1])
    for arguments in (
        ["convert", str(tmp_path / "one.json"), f"parquet:{place}"],
        ["convert", f"parquet:{place}", str(tmp_path / "back")],
    ):
        assert run_command(arguments) == 5
        message = capsys.readouterr().err
        assert words in message
        assert message.count("\n") == 1


def test_a_prefix_without_tables(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["convert", f"parquet:{place}", str(tmp_path / "back")]) == 3
    assert "has no table batches: expected tables that" in capsys.readouterr().err
