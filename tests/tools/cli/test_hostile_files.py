"""Files, descriptors and limits that fail: one line, and the documented exit code."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run as in_process
from tests.tools.conftest import (
    COMMAND,
    Run,
    environment,
    one_line,
    same_batches,
)

LINE = b'{"resourceSpans":[]}\n'
SPOOL_COMMANDS = ("spool ls", "spool verify", "report", "diagnose", "runs report")


def ends_well(code: int, text: str, codes: tuple[int, ...]) -> None:
    assert "Traceback" not in text
    assert "internal error" not in text
    assert code in codes, text


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has 107 bytes at most
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def nothing(_: Path) -> None:
    """Make no file."""


SOURCES: dict[str, tuple[str, Callable[[Path], object], int]] = {
    "directory": ("a.json", lambda path: path.mkdir(), 3),
    "socket": ("a.json", bind, 3),
    "link to itself": ("a.json", lambda path: path.symlink_to(path.name), 3),
    "link to nothing": ("a.json", lambda path: path.symlink_to("nowhere"), 3),
    "no file": ("a.json", nothing, 3),
    "below a file": ("b.json/a.json", lambda path: path.parent.write_bytes(LINE), 3),
    "name too long": ("a" * 300 + ".json", nothing, 3),
    "NUL in its name": ("a\0.json", nothing, 3),
    "name not UTF-8": (os.fsdecode(b"caf\xe9.jsonl"), content(LINE * 2), 0),
    "empty JSON": ("a.jsonl", content(b""), 0),
    "empty protobuf": ("a.binpb", content(b""), 0),
    "empty gzip": ("a.jsonl.gz", content(b""), 3),
    "empty zstd": ("a.binpb.zst", content(b""), 3),
    "garbage after gzip": ("a.jsonl.gz", content(gzip.compress(LINE) + b"garbage"), 3),
    "garbage after protobuf": ("a.binpb", content(b"\0\0\0\xff\xff"), 3),
    "NULs": ("a.jsonl", content(bytes(5_000)), 3),
    "deep": ("a.jsonl", content(b"[" * 5_000 + b"]" * 5_000), 1),
    "huge exponents": ("a.jsonl", content(b'{"resourceSpans":1e99999999999999999999}'), 1),
    "a number as long as a line": ("a.jsonl", content(b'{"resourceSpans":' + b"9" * 9_999), 1),
    "a batch as a line": ("a.jsonl", content(b'{"schema_version":1,"batch_id":"a"}'), 1),
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_source_of_any_kind(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, make, expected = SOURCES[case]
    make(tmp_path / name)
    for words in (
        ["convert", name, "out"],
        ["convert", name, "out.jsonl"],
        ["convert", name, "part", "--select", "rank=0"],
        ["report", name],
        ["diagnose", name],
        ["runs", "report", name, "--group-by", "model"],
        ["spool", "ls", name],
        ["spool", "verify", name],
        ["diff", name, name],
    ):
        code = in_process(words)
        text = "".join(capsys.readouterr())
        # Commands that need a spool, or records, refuse more files.
        is_plain = words[0] == "convert" and "--select" not in words
        ends_well(code, text, (expected,) if is_plain else (0, 1, 2, 3))
        assert code == 0 or text.strip()


def test_all_of_a_pipe_is_read(run: Run, spool: Path, tmp_path: Path) -> None:
    assert run("convert", ".cirron", "a.jsonl").returncode == 0
    os.mkfifo(tmp_path / "pipe.json")
    data = (tmp_path / "a.jsonl").read_bytes()
    writer = threading.Thread(target=(tmp_path / "pipe.json").write_bytes, args=(data,))
    writer.start()
    result = run("convert", "pipe.json", "back")
    writer.join()
    assert (result.returncode, result.stderr) == (0, "")
    assert same_batches(spool / "spool", tmp_path / "back" / "spool")


@pytest.mark.parametrize("target", ["a.jsonl", ".cirron"])
def test_the_target_is_the_source(spool: Path, tmp_path: Path, target: str) -> None:
    both, before = str(tmp_path / target), shutil.copytree(spool, tmp_path / "before")
    if target != ".cirron":
        assert in_process(["convert", str(spool), both]) == 0
    assert in_process(["convert", both, both]) == 0
    assert in_process(["convert", both, str(tmp_path / "back")]) == 0
    assert same_batches(before / "spool", spool / "spool")
    assert same_batches(before / "spool", tmp_path / "back" / "spool")


def closing(tmp_path: Path, redirections: str, *words: str) -> tuple[int, str]:
    """Run the command with descriptors closed or moved; return its exit code and all its output."""
    with (tmp_path / "said").open("wb") as said:
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", COMMAND, *words],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=tmp_path, timeout=120,
            env=environment(), check=False,
        )  # fmt: skip
    return done.returncode, (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    ("redirections", "words", "expected"),
    [
        (">&-", "convert .cirron -", 4),
        (">&- 2>&-", "convert .cirron -", 4),
        (">&-", "spool ls", 4),
        (">/dev/full", "convert .cirron -", 4),
        (">/dev/full", "report --json", 4),
        ("2>&-", "convert .cirron out.jsonl", 0),
        ("<&- >&- 2>&-", "convert .cirron out", 4),
        ("<&-", "convert - out --from otlp-json", 3),
        ("<&-", "convert .cirron out --select name=step", 0),
    ],
)
def test_descriptors_that_are_closed(
    spool: Path, tmp_path: Path, redirections: str, words: str, expected: int
) -> None:
    code, text = closing(tmp_path, redirections, *words.split())
    ends_well(code, text, (expected,))
    if expected and "2>&-" not in redirections:
        assert len(text.splitlines()) == 1


def test_a_closed_stderr_is_not_the_file_that_is_opened_next(spool: Path, tmp_path: Path) -> None:
    """A skipped file is reported on stderr; the report must not be in the target."""
    (spool / "spool" / "odd.json").write_bytes(b"no JSON")
    assert closing(tmp_path, "2>&-", "convert", ".cirron", "out.jsonl")[0] == 1
    assert b"skipped" not in (tmp_path / "out.jsonl").read_bytes()


def limited(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("convert .cirron out.jsonl", 0),
        ("convert .cirron out.jsonl", 4_096),
        ("convert .cirron -", 4_096),
        ("convert .cirron out", 4_096),
        ("convert a.binpb out --select rank=0", 0),
        ("report a.binpb", 0),
        ("diff a.binpb a.binpb", 4_096),
    ],
)
def test_a_limit_of_the_size_of_files(
    run: Run, spool: Path, tmp_path: Path, size: int, words: str
) -> None:
    """With 0 there is no usable temporary folder; with more, the index does not fit."""
    assert in_process(["convert", str(spool), str(tmp_path / "a.binpb")]) == 0
    one_line(run(*words.split(), preexec_fn=limited(size)), 4)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("command", SPOOL_COMMANDS)
def test_commands_that_read_a_spool_need_no_file(run: Run, spool: Path, command: str) -> None:
    """They end with one line if the temporary index does not fit in memory."""
    result: Any = run(*command.split(), ".cirron", preexec_fn=limited(0))
    ends_well(result.returncode, result.stderr, (0, 4))
