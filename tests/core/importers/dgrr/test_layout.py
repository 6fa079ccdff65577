"""The layout of the page: every field and CRC as a reader in C11 prints them."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from cirron_otel.core.importers.dgrr.comparing import records_of
from cirron_otel.core.importers.dgrr.layout import HEADER, RECORD, TraceHeader, bits_of
from tests.conftest import leave_out

from .traces import (
    FILES,
    NAN,
    chain,
    command,
    opened,
    record,
    trace,
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled reader."""
    compiler = shutil.which("cc")
    if compiler is None:
        leave_out("cc is not installed: install a C compiler")
    program = tmp_path_factory.mktemp("reader") / "reader"
    source = Path(__file__).with_name("reader.c")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
    subprocess.run([compiler, *flags, "-o", str(program), str(source)], check=True)
    return program


def shown(data: bytes) -> str:
    """The output of the reader, from our own structures."""
    file = opened(data)
    head = TraceHeader.parse(file.head)
    lines = [
        f"{head.magic.decode()} {head.version} {head.pad0} {head.seed} {head.step_count}"
        f" {bits_of(head.learning_rate)} {head.file_crc32:08x} {head.header_crc32:08x}"
        f" {head.created_at} {head.reserved.hex()} {zlib.crc32(file.head[:36]):08x}"
    ]
    crc = 0
    for each, start in zip(records_of(file), range(64, len(data), 72), strict=False):
        whole = data[start : start + 72]
        crc = zlib.crc32(whole, crc)
        numbers = " ".join(bits_of(value) for value in each[1:8])
        lines.append(
            f"{each.step_id} {numbers} {each.record_crc32:08x} {each.pad0}"
            f" {zlib.crc32(whole[:64]):08x}"
        )
    return "\n".join([*lines, f"{crc:08x}", ""])


def read_in_c(reader: Path, path: Path) -> str:
    return subprocess.run([reader, path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_reader_in_c_agrees_on_every_field(path: Path, reader: Path) -> None:
    assert read_in_c(reader, path) == shown(path.read_bytes())


def test_a_reader_in_c_agrees_on_odd_values(reader: Path, tmp_path: Path) -> None:
    odd = record(2**64 - 1, NAN, -0.0, 5e-324, float("inf"), float("-inf"), 1e308, NAN, pad=9)
    data = trace([*chain(3), odd], pad0=3, seed=2**64 - 1, rate=NAN, created_at=2**64 - 1,
                 reserved=bytes(range(16)), count=2**60)  # fmt: skip
    (tmp_path / "odd.dgrr").write_bytes(data)
    assert read_in_c(reader, tmp_path / "odd.dgrr") == shown(data)


def test_a_reader_in_c_agrees_on_a_training(reader: Path, tmp_path: Path) -> None:
    path = tmp_path / "trained.dgrr"
    assert command("dgrr", "train", "--steps", 2_000, "--out", path)[0] == 0
    assert read_in_c(reader, path) == shown(path.read_bytes())


def test_the_sizes_and_offsets_of_the_page() -> None:
    assert HEADER.size == 64
    assert RECORD.size == 72
    data = trace(chain(1), seed=0x1122334455667788)
    assert data[:8] == b"DGRR\1\0\0\0"
    assert data[8:16] == bytes.fromhex("8877665544332211")
    assert TraceHeader.parse(data).pack() == data[:64]
