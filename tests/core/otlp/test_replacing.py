from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cirron_otel.core.otlp.files import TracesWriter
from cirron_otel.core.otlp.formats import Compression, Encoding, Format
from cirron_otel.core.otlp.replacing import replacing
from cirron_otel.errors import TargetError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def only(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


def run_in_child(code: str, *, expect: int = 0) -> str:
    """Run `code` in a Python of its own, for limits and users that this process must not take."""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert child.returncode == expect, child.stderr
    return child.stdout.strip()


def test_a_new_file_is_private(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    before = os.umask(0)
    try:
        with replacing(target) as file:
            file.write(b"a" * 100_000)
            assert not target.exists()
            (temporary,) = tmp_path.iterdir()
            assert temporary.name.startswith("out.jsonl.")
            assert temporary.suffix == ".tmp"
            assert mode(temporary) == 0o600
    finally:
        os.umask(before)
    assert target.read_bytes() == b"a" * 100_000
    assert mode(target) == 0o600
    assert only(target) == ["out.jsonl"]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")
    target.chmod(0o644)
    with replacing(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert mode(target) == 0o644


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, TargetError])
def test_failed_write_leaves_the_target_unchanged(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "out.jsonl"
    for before in (None, b"old"):
        if before is not None:
            target.write_bytes(before)
        with pytest.raises(error), replacing(target) as file:  # noqa: PT012
            file.write(b"half of it")
            raise error("stop")
        assert only(target) == ([] if before is None else ["out.jsonl"])
        assert before is None or target.read_bytes() == before


def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")
    code = (
        "import sys, time\n"
        "from cirron_otel.core.otlp.replacing import replacing\n"
        "with replacing(sys.argv[1]) as file:\n"
        "    file.write(b'x' * 1000000); print('writing', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        assert len(only(target)) == 2
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        child.wait(120)
    assert only(target) == ["out.jsonl"]
    assert target.read_bytes() == b"old"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "out", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "real" / "later")
    with replacing(dangling) as file:
        file.write(b"new")
    assert (tmp_path / "real" / "later").read_bytes() == b"new"


def test_a_long_name(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 127)
    with replacing(target) as file:
        file.write(b"x")
    assert target.read_bytes() == b"x"


def test_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    with replacing("/dev/null") as file:
        file.write(b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(pipe) as file:
        file.write(b"through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/out.jsonl", "No such file or directory"),
        ("file/out.jsonl", "Not a directory"),
        ("", "it is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_targets_that_cannot_be_written(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    target = tmp_path / name
    with pytest.raises(TargetError) as caught, replacing(target):
        pytest.fail("the block must not begin")
    assert str(caught.value).startswith(f"cannot write {target}: ")
    assert reason in str(caught.value)
    assert only(tmp_path / "file") == ["file"]


def test_a_full_device() -> None:
    with (
        pytest.raises(TargetError, match="cannot write /dev/full: No space left on device"),
        replacing("/dev/full") as file,
    ):
        file.write(b"x")


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A disk that fills up while it is written: here by the limit on a file's size."""
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")
    out = run_in_child(
        "import resource\n"
        "from cirron_otel.errors import TargetError\n"
        "from cirron_otel.core.otlp.replacing import replacing\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))\n"
        "try:\n"
        f"    with replacing({str(target)!r}) as file:\n"
        "        for _ in range(100): file.write(bytes(5000))\n"
        "except TargetError as error: print(error)\n"
    )
    assert out == f"cannot write {target}: File too large"
    assert target.read_bytes() == b"old"
    assert only(target) == ["out.jsonl"]


def test_the_last_bytes_count_too(tmp_path: Path) -> None:
    """What is still in the buffer when the block ends may be what does not fit."""
    target = tmp_path / "out.jsonl"
    out = run_in_child(
        "import resource\n"
        "from cirron_otel.errors import TargetError\n"
        "from cirron_otel.core.otlp.replacing import replacing\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try:\n"
        f"    with replacing({str(target)!r}) as file: file.write(bytes(11))\n"
        "except TargetError as error: print(error)\n"
    )
    assert "File too large" in out
    assert list(tmp_path.iterdir()) == []


def as_nobody(code: str) -> str:
    """Run `code` as a user whom modes bind, also where the tests run as root."""
    drop = "import os\nif os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    imports = (
        "from cirron_otel.errors import TargetError\n"
        "from cirron_otel.core.otlp.replacing import replacing\n"
        "import tempfile\n"
    )
    return run_in_child(imports + drop + code)


def test_a_read_only_folder_and_a_read_only_file(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if (
            folder.stat().st_uid == os.geteuid()
            and mode(folder) & 0o5 != 0o5
            and folder.parent != folder
        ):
            folder.chmod(mode(folder) | 0o5)
    closed, file = tmp_path / "closed", tmp_path / "open" / "file"
    closed.mkdir(mode=0o555)
    file.parent.mkdir()
    file.parent.chmod(0o777)
    file.write_bytes(b"old")
    file.chmod(0o444)
    out = as_nobody(
        f"for path in ({str(closed / 'out')!r}, {str(file)!r}):\n"
        "    try:\n"
        "        with replacing(path): raise SystemExit('began')\n"
        "    except TargetError as error: print(error)\n"
    )
    assert out.splitlines() == [
        f"cannot write {closed / 'out'}: Permission denied",
        f"cannot write {file}: it is read-only: change its mode, or choose another name",
    ]
    assert file.read_bytes() == b"old"
    assert only(file) == ["file"]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("encoding", Encoding)
def test_a_full_disk_under_a_writer(encoding: Encoding, compression: Compression) -> None:
    """The path is named, whatever stands between the messages and the disk."""
    with (
        pytest.raises(TargetError, match=r"^cannot write /dev/full: No space left on device$"),
        replacing("/dev/full") as file,
        TracesWriter(file, Format(encoding, compression)) as writer,
    ):
        writer.write(b"".join(b"\x0a\x06\x1a\x04%04x" % number for number in range(20_000)))
