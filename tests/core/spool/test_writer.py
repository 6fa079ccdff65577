"""Writing: whole or not at all, private, and never over something else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter, Written, name_of
from cirron_otel.errors import TargetError, UsageError
from tests.kit.spools.made import (
    EPOCH_NS,
    batch_id,
    encoded,
    made,
)
from tests.kit.spools.recorded import ALL_BATCHES, NAMES, SPOOLS

ONE = encoded(made(1))
ONE_NAME = file_name(EPOCH_NS + 10**9, batch_id(1))


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_batch_is_written_under_its_file_name(tmp_path: Path) -> None:
    written = SpoolWriter(tmp_path / "new" / ".cirron").write(ONE)
    assert written == (ONE_NAME, tmp_path / "new/.cirron/spool" / ONE_NAME, True)
    assert written.path.read_bytes() == ONE
    assert listing(written.path.parent) == [ONE_NAME]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_directories_are_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        written = SpoolWriter(tmp_path / ".cirron").write(ONE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(written.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / ".cirron").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_copied_byte_for_byte(tmp_path: Path, name: str) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=None)
    originals = list(SpoolReader(SPOOLS / name))
    for batch in originals:
        assert writer.write(batch.data).name == batch.name
    copies = list(SpoolReader(tmp_path))
    assert [(copy.name, copy.data) for copy in copies] == [(b.name, b.data) for b in originals]


def test_the_same_batch_again_is_nothing_new(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    first = writer.write(ONE)
    before = first.path.stat()
    again = SpoolWriter(tmp_path).write(ONE)
    assert not again.is_new
    assert again.path == first.path
    after = first.path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("other", [ONE + b" ", ONE.replace(b"0.3.0", b"0.3.1"), b"", ONE[:-1]])
def test_another_batch_of_that_name_is_refused(tmp_path: Path, other: bytes) -> None:
    writer = SpoolWriter(tmp_path)
    path = writer.write(ONE).path
    with pytest.raises(TargetError, match="exists with other content: nothing was overwritten"):
        writer.write(other, ONE_NAME)
    assert path.read_bytes() == ONE
    assert listing(path.parent) == [ONE_NAME]


def test_a_directory_or_a_dangling_link_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool" / ONE_NAME).mkdir(parents=True)
    with pytest.raises(TargetError):
        SpoolWriter(tmp_path).write(ONE)
    (tmp_path / "spool" / "x.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError):
        SpoolWriter(tmp_path).write(ONE, "x.json")
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_as_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / ONE_NAME).with_suffix(".json.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(TargetError):
        SpoolWriter(tmp_path).write(ONE)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_temporary_file_of_a_dead_writer_is_replaced(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    tmp = spool / (ONE_NAME + ".tmp")
    tmp.write_bytes(b"x" * 10_000)
    tmp.chmod(0o644)
    path = SpoolWriter(tmp_path).write(ONE).path
    assert path.read_bytes() == ONE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert listing(spool) == [ONE_NAME]


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"[]",
        encoded({"schema_version": 1}),
        encoded(made(1, batch_id=None)),
        encoded(made(1, created_ns=-5)),
        encoded(made(1, created_ns=10**20)),
        encoded(made(1, created_ns=1.5)),
        encoded(made(1, batch_id="../../etc/passwd")),
    ],
)
def test_a_batch_that_cannot_name_its_file(tmp_path: Path, data: bytes) -> None:
    writer = SpoolWriter(tmp_path)
    with pytest.raises(TargetError):
        writer.write(data)
    assert listing(tmp_path) == []
    assert writer.write(data, "any.json").path.read_bytes() == data


@pytest.mark.parametrize("path", ALL_BATCHES, ids=lambda path: path.name)
def test_recorded_names_follow_from_the_batch(path: Path) -> None:
    assert name_of(path.read_bytes()) == path.name


def test_an_odd_batch_is_named_too() -> None:
    odd = made(1, attrs="\ud800", nan=float("nan"))
    assert name_of(encoded(odd)) == ONE_NAME


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="path separator"):
        SpoolWriter(tmp_path / "a").write(ONE, "../../x.json")
    assert listing(tmp_path) == []


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(TargetError):
        SpoolWriter(tmp_path / "root")
    (tmp_path / "spool").write_bytes(b"")
    with pytest.raises(TargetError, match="cannot be written"):
        SpoolWriter(tmp_path).write(ONE)


def test_a_cap_of_nothing_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        SpoolWriter(tmp_path, max_bytes=0)


def test_without_fsync_the_same_files_are_written(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=None, durable=False)
    path = writer.write(ONE).path
    writer.sync()
    assert path.read_bytes() == ONE


def test_threads_share_a_writer(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    datas = [encoded(made(number % 40)) for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(writer.write, datas))
    assert sum(result.is_new for result in results) == 40
    assert [batch.data for batch in SpoolReader(tmp_path)] == datas[:40]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, which root alone can mount."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", place],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_full_disk_leaves_no_partial_file(small_disk: Path) -> None:
    writer = SpoolWriter(small_disk / ".cirron")
    batches = [encoded(made(number, padding=10_000)) for number in range(100)]
    kept: list[Written] = []
    with pytest.raises(TargetError, match="No space left on device; free some space"):
        kept.extend(map(writer.write, batches))
    assert 2 < len(kept) < 10
    assert listing(small_disk / ".cirron/spool") == [written.name for written in kept]
    kept[0].path.unlink()
    assert writer.write(encoded(made(500, padding=8_000))).is_new


def test_file_size_limit_leaves_no_partial_file(tmp_path: Path) -> None:
    """Like a full disk, where no file system can be mounted: writes stop at 4 KiB."""
    script = f"""
import resource, signal
from cirron_otel.errors import TargetError
from cirron_otel.core.spool.writer import SpoolWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
writer = SpoolWriter({str(tmp_path)!r})
writer.write(b'{{}}', 'small.json')
try:
    writer.write(b' ' * 10_000, 'large.json')
except TargetError as error:
    print(error)
"""
    python = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "large.json cannot be written: File too large" in python.stdout
    assert python.stderr == ""
    assert listing(tmp_path / "spool") == ["small.json"]


def test_a_read_only_directory(tmp_path: Path) -> None:
    """A mount for root, whom permissions do not stop; permissions for anybody else."""
    place = tmp_path / "place"
    (place / "spool").mkdir(parents=True)
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no read-only file system can be mounted here")
    else:
        (place / "spool").chmod(0o500)
    try:
        with pytest.raises(TargetError, match="cannot be written"):
            SpoolWriter(place).write(ONE)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", place], check=True)
        else:
            (place / "spool").chmod(0o700)
