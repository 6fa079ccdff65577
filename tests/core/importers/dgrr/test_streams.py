"""Traces that are read from standard input and from pipes, and written to standard output."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.tools.conftest import environment

from .traces import (
    CLEAN,
    DAMAGED,
    DRIFT,
    SMALL,
    command,
    dgrr,
)

PROGRAM = str(Path(sys.executable).with_name("cirron-otel"))
NO_CLOCK = {"SOURCE_DATE_EPOCH": "1700000000"}
_COMMANDS = (
    ("verify", "{}"),
    ("verify", "{}", "--json"),
    ("inspect", "--step", "50", "--trace", "{}"),
    ("inspect", "--step", "50", "--json", "--trace", "{}"),
    ("replay", "--step", "all", "--trace", "{}"),
    ("rollback", "--step", "50", "--trace", "{}"),
    ("compare", "--a", "{}", "--b", str(CLEAN)),
    ("compare", "--a", str(DRIFT), "--b", "{}", "--json"),
)


def run(*arguments: object, data: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run `cirron-otel dgrr` with this standard input."""
    return subprocess.run(
        [PROGRAM, "dgrr", *map(str, arguments)], input=data, capture_output=True, check=False,
        env=environment(**NO_CLOCK, **more),
    )  # fmt: skip


@pytest.mark.parametrize("path", [CLEAN, DAMAGED, DRIFT], ids=lambda path: path.stem)
@pytest.mark.parametrize("arguments", _COMMANDS, ids=" ".join)
def test_standard_input_gives_the_same_output_as_the_file(
    arguments: tuple[str, ...], path: Path, tmp_path: Path
) -> None:
    code, out, problems = command("dgrr", *(each.format(path) for each in arguments))
    done = run(*(each.format("-") for each in arguments), data=path.read_bytes(),
               TMPDIR=str(tmp_path))  # fmt: skip
    assert done.returncode == code
    assert done.stdout.decode() == out.replace(str(path), "-")
    assert done.stderr.decode() == problems.replace(str(path), "-")
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for data, expected in ((SMALL, 0), (SMALL[:-1], 3), (b"", 3)):
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        assert dgrr("verify", pipe)[0] == expected
        writer.join()


@pytest.mark.parametrize("data", [b"", b"RIFF" + bytes(80), b"DGRR\0\1" + SMALL[6:], SMALL[:63]])
def test_other_streams_are_refused(data: bytes) -> None:
    for arguments in (
        ("replay", "--step", 0, "--trace", "-"),
        ("compare", "--a", "-", "--b", CLEAN),
    ):
        done = run(*arguments, data=data)
        assert (done.returncode, done.stdout) == (3, b"")
        assert done.stderr.startswith(b"cirron-otel: error: -: ")
        assert done.stderr.count(b"\n") == 1


def test_a_closed_standard_input_is_exit_code_2() -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec '{PROGRAM}' dgrr verify - <&-"], capture_output=True, check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.endswith(b"error: standard input is closed: name a file instead of -\n")
    assert done.stderr.count(b"\n") == 1


def test_a_stream_that_does_not_wait_is_exit_code_2() -> None:
    """A program that reads it would take the present lack of data for the end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, SMALL[:100])
    done = subprocess.run(
        [PROGRAM, "dgrr", "verify", "-"], stdin=reading, capture_output=True, check=False,
        env=environment(),
    )  # fmt: skip
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"it does not wait for data (O_NONBLOCK): pipe it through `cat`" in done.stderr


def test_a_copy_that_does_not_fit_is_exit_code_2(tmp_path: Path) -> None:
    """A limit of the file size has the effect of a full disk."""
    import resource

    done = subprocess.run(
        [PROGRAM, "dgrr", "verify", "-"], input=CLEAN.read_bytes(), capture_output=True,
        env=environment(TMPDIR=str(tmp_path)), check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert b"set TMPDIR to a writable directory with enough space" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert not list(tmp_path.iterdir())


def test_standard_output_is_the_file(tmp_path: Path) -> None:
    written = run("train", "--steps", 2_000, "--out", tmp_path / "file")
    piped = run("train", "--steps", 2_000, "--out", "-")
    data = (tmp_path / "file").read_bytes()
    assert piped.stdout == data
    assert piped.stderr == b"cirron-otel: -" + written.stdout[len(str(tmp_path / "file")) :]
    assert written.stderr == b""
    run("rollback", "--step", 1_500, "--trace", tmp_path / "file", "--out", tmp_path / "back")
    back = run("rollback", "--step", 1_500, "--trace", "-", "--out", "-", data=data)
    assert (back.returncode, back.stdout) == (0, (tmp_path / "back").read_bytes())
    assert b"before step 1500" in back.stderr
    assert run("verify", "-", data=back.stdout).returncode == 0


def test_a_standard_output_that_fails() -> None:
    """A full disk is exit code 2 with one line; if the reader has ended, the line is omitted."""
    for steps in (10, 20_000):
        arguments = [PROGRAM, "dgrr", "train", "--steps", str(steps), "--out", "-"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                arguments, stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
            )
        assert done.returncode == 2
        assert done.stderr == (
            b"cirron-otel: error: standard output cannot be written: No space left on device\n"
        )
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    problems = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), problems) == (2, b"")


def test_a_trace_is_not_written_to_a_terminal(tmp_path: Path) -> None:
    assert command("convert", f"dgrr:{CLEAN}", tmp_path / "s")[0] == 0
    for arguments, code in (
        (["dgrr", "train", "--steps", str(10**12), "--out", "-"], 1),
        (["dgrr", "rollback", "--step", "5", "--trace", str(CLEAN), "--out", "-"], 1),
        (["convert", str(tmp_path / "s"), "-", "--to", "dgrr"], 2),
    ):
        leader, follower = pty.openpty()
        done = subprocess.run(
            [PROGRAM, *arguments], stdout=follower, stderr=subprocess.PIPE, env=environment(),
            check=False,
        )  # fmt: skip
        os.close(follower)
        os.close(leader)
        assert done.returncode == code
        assert done.stderr == (
            b"cirron-otel: error: a trace is binary, and standard output is a terminal:"
            b" redirect it, or name a file\n"
        )
