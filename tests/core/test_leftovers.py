"""Temporary files and folders of killed processes: removed by the next one, and never before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cirron_otel.core.leftovers import temporary_directory, temporary_file
from cirron_otel.core.new_folder import new_folder
from cirron_otel.core.otlp.replacing import replacing

KINDS: dict[str, str] = {
    "a file": "from cirron_otel.core.otlp.replacing import replacing as use",
    "a folder": "from cirron_otel.core.new_folder import new_folder as use",
}
_HOLDER = """
import sys
from pathlib import Path
%s
with use(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(kind: str, target: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is writing `target`."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER % KINDS[kind], target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def write(kind: str, target: Path) -> None:
    """Write `target` in this process."""
    use: Callable[[Path], contextlib.AbstractContextManager[object]]
    use = replacing if kind == "a file" else new_folder
    with use(target):
        pass


def temporary(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".tmp")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_process_leaves_is_removed_by_the_next(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    for _ in range(2):
        with holder(kind, target) as process:
            assert len(temporary(tmp_path)) == 1
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert len(temporary(tmp_path)) == 1
    write(kind, target)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_in_use_stays(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with holder(kind, target) as process:
        (used,) = temporary(tmp_path)
        write(kind, target)
        assert temporary(tmp_path) == [used]
        if kind == "a file":
            process.communicate("")
            assert process.returncode == 0
    assert target.exists()


@pytest.mark.parametrize(
    "name", ["out.tmp", "out.12345678.tmp.x", "out.1234.tmp", "other.12345678.tmp"]
)
def test_other_files_stay(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    write("a file", tmp_path / "out")
    assert (tmp_path / name).exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (tmp_path / "out.12345678.tmp").symlink_to(kept)
    write("a folder", tmp_path / "out")
    assert (kept / "file").exists()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_removes_the_file_and_the_folder(
    error: type[BaseException], tmp_path: Path
) -> None:
    with (  # noqa: PT012
        pytest.raises(error),
        temporary_file("a.", ".tmp", tmp_path) as (path, descriptor),
    ):
        os.close(descriptor)
        assert path.exists()
        raise error
    with pytest.raises(error), temporary_directory("b-", "", tmp_path) as folder:  # noqa: PT012
        (folder / "file").touch()
        raise error
    assert list(tmp_path.iterdir()) == []
