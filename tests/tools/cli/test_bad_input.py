"""Bad input of every kind: one line, the right exit code, no half-written target."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel import exactjson
from tests.tools.conftest import (
    COMMAND,
    RECORDED,
    Run,
    environment,
    one_line,
)

DEEP = b'{"resourceSpans":' + b"[" * 200 + b"]" * 200 + b"}"


def assert_untouched(folder: Path, *names: str) -> None:
    """Check that `folder` contains only `names`: no target, and no temporary file of one."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("name", "content", "more"),
    [
        ("random.jsonl", bytes(range(256)) * 40, ()),
        ("random.json", bytes(range(256)) * 40, ()),
        ("text.binpb", b"this is no protobuf at all\n" * 10, ()),
        ("plain.jsonl.gz", b'{"resourceSpans":[]}\n', ()),
        ("plain.binpb.zst", b'{"resourceSpans":[]}\n', ()),
        ("packed.jsonl", gzip.compress(b'{"resourceSpans":[]}\n', mtime=0), ()),
        ("nothing.json", b"", ("--from", "batch")),
        ("list.json", b"[1, 2]", ("--from", "batch")),
        ("v2.json", b'{"schema_version":2,"spans":[],"marks":[],"snapshots":[]}', ()),
        ("v2.json", b'{"schema_version":2,"spans":[]}', ("--from", "batch")),
        ("deep.json", b"[" * 200 + b"]" * 200, ("--from", "batch")),
        ("binary.json", b"\x00\xff\xfe" * 99, ("--from", "batch")),
    ],
)
@pytest.mark.parametrize("to", ["out.binpb", "out"])
def test_file_that_does_not_match_its_format_is_refused(
    run: Run,
    tmp_path: Path,
    target: Path,
    name: str,
    content: bytes,
    more: tuple[str, ...],
    to: str,
) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("convert", name, target / to, *more)
    assert name in one_line(result, 3)
    assert result.stdout == ""
    assert_untouched(target)


@pytest.mark.parametrize("name", ["missing.jsonl", "missing", "empty"])
def test_a_source_that_holds_nothing(run: Run, tmp_path: Path, target: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    assert name in one_line(run("convert", name, target / "out.jsonl"), 3)
    assert name in one_line(run("spool", "ls", name), 3)
    assert name in one_line(run("spool", "show", name), 3)
    assert name in one_line(run("spool", "verify", name), 3)
    assert name in one_line(run("spool", "prune", name, "--max-bytes", "1"), 3)
    assert_untouched(target)


@pytest.mark.parametrize("prefix", ["", "traceml:", "stormlog:", "dgrr:"])
def test_an_empty_path_is_not_the_current_directory(
    run: Run, spool: Path, tmp_path: Path, prefix: str
) -> None:
    before = sorted(tmp_path.iterdir())
    readers = (
        [*command.split(), prefix] for command in ("report", "diagnose", "export", "runs report")
    )
    for arguments in (
        *readers, ["diff", prefix, spool], ["convert", prefix, "out"], ["convert", spool, prefix]
    ):  # fmt: skip
        line = one_line(run(*arguments), 2)
        assert f"{prefix!r} has an empty path" in line
        assert f"the current directory is {prefix}." in line
    assert sorted(tmp_path.iterdir()) == before


def test_standard_input_in_a_format_that_needs_files(run: Run, tmp_path: Path) -> None:
    line = one_line(run("convert", "traceml:-", "out"), 2)
    assert "traceml:-: standard input cannot be read as traceml: name a path" in line
    assert_untouched(tmp_path)


@pytest.mark.parametrize("suffix", ["jsonl.gz", "binpb.zst"])
def test_truncated_compression(run: Run, spool: Path, target: Path, suffix: str) -> None:
    whole = spool.parent / f"whole.{suffix}"
    assert run("convert", ".cirron", whole).returncode == 0
    cut = spool.parent / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert cut.name in one_line(run("convert", cut, target / "out.jsonl"), 3)
    assert_untouched(target)


def test_a_batch_of_another_schema_version_is_skipped(run: Run, spool: Path) -> None:
    victim = min((spool / "spool").iterdir())
    victim.write_bytes(victim.read_bytes().replace(b'"schema_version":1', b'"schema_version":2'))
    result = run("convert", ".cirron", "out.jsonl")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"skipped: {victim.name}: " in result.stderr


def test_deep_nesting(run: Run, spool: Path, tmp_path: Path) -> None:
    """200 levels are legal in a batch, whose attributes may hold anything, but not in OTLP/JSON."""
    deep = b'{"a":' * 200 + b"1" + b"}" * 200
    victim = min((spool / "spool").iterdir())
    content = victim.read_bytes().replace(b'"attrs":{', b'"attrs":{"deep":' + deep + b",", 1)
    content = content.replace(b",}", b"}")
    victim.write_bytes(content)
    there = run("convert", ".cirron", "out.jsonl")
    assert (there.returncode, there.stderr) == (0, "")
    assert run("convert", "out.jsonl", "back").returncode == 0
    returned = (tmp_path / "back" / "spool" / victim.name).read_bytes()
    assert exactjson.equal(exactjson.loads(returned), exactjson.loads(content))
    (tmp_path / "deep.jsonl").write_bytes(DEEP)
    result = run("convert", "deep.jsonl", "other.binpb")
    assert result.returncode in (1, 3)
    assert len([line for line in result.stderr.splitlines() if "deep.jsonl" in line]) == 1


@pytest.mark.parametrize("to", ["a-file/out.jsonl", "a-file/spool", "no/such/folder/out.jsonl"])
def test_a_target_that_cannot_be_written(run: Run, spool: Path, tmp_path: Path, to: str) -> None:
    (tmp_path / "a-file").write_text("kept")
    assert "cannot" in one_line(run("convert", ".cirron", to), 4)
    assert (tmp_path / "a-file").read_text() == "kept"


def test_a_read_only_target(run: Run, spool: Path, target: Path) -> None:
    target.chmod(0o500)
    if os.geteuid() != 0:
        assert "ermission denied" in one_line(run("convert", ".cirron", target / "out.jsonl"), 4)
    else:  # root may write everywhere but on a read-only file system
        subprocess.run(["mount", "--bind", target, target], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", target, target], check=True)
            assert "ead-only" in one_line(run("convert", ".cirron", target / "out.jsonl"), 4)
        finally:
            subprocess.run(["umount", target], check=True)
    assert_untouched(target)


def test_a_line_of_300_megabytes(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "long.jsonl").open("wb") as file:
        for _ in range(300):
            file.write(b" " * 1_000_000)
    assert "longer than" in one_line(run("convert", "long.jsonl", "out.binpb"), 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 64 kB; None if this user may not mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        yield None
        return
    if done.returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("name", ["out.jsonl", "out.binpb", "restored"])
def test_a_full_disk(
    run: Run, spool: Path, tmp_path: Path, small_disk: Path | None, name: str
) -> None:
    """A full small file system, if one can be mounted; otherwise a limit on the size of files."""
    place = small_disk or tmp_path / "small"
    limit = None if small_disk else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65_536,) * 2)
    source = ".cirron"
    if name == "restored":
        source = "whole.jsonl"
        assert run("convert", ".cirron", source).returncode == 0
    result = run("convert", source, place / name, preexec_fn=limit)
    assert "writ" in one_line(result, 4)
    assert not (place / name).is_file()
    assert not [path for path in place.rglob("*") if path.name.endswith(".tmp")]


def test_a_limit_on_the_size_of_files(run: Run, spool: Path, target: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    result = run("convert", ".cirron", target / "out.jsonl", preexec_fn=limit)
    assert "writ" in one_line(result, 4)
    assert_untouched(target)


def wait_for(condition: object, process: subprocess.Popen[bytes]) -> None:
    """Wait until `condition()` holds; fail if the process ends earlier."""
    deadline = time.monotonic() + 180
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_halfway(run: Run, spool: Path, target: Path, number: signal.Signals) -> None:
    """The source is a pipe that stays open, so that the end is certainly not reached."""
    lines = run("convert", ".cirron", "-").stdout.encode()
    (target / "out.binpb").write_text("what stood there")
    command = [COMMAND, "convert", "-", str(target / "out.binpb"), "--from", "otlp-json"]
    process = subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(lines)
    process.stdin.flush()
    wait_for(lambda: len(list(target.iterdir())) == 2, process)
    process.send_signal(number)
    process.wait(timeout=60)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, b"cirron-otel: interrupted\n")
    assert_untouched(target, "out.binpb")
    assert (target / "out.binpb").read_text() == "what stood there"


def living(group: int) -> list[str]:
    """Return the processes of a group that have not ended, without those that wait to be reaped."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [row[2] for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_interrupted_with_workers(tmp_path: Path, target: Path, jobs: str) -> None:
    """Ctrl-C goes to the complete process group; no worker remains, and none prints anything."""
    large = tmp_path / "large" / "spool"
    large.mkdir(parents=True)
    batch = max((RECORDED / "spool").iterdir()).read_bytes()
    first = large / f"{0:020d}-{0:032x}.json"
    first.write_bytes(batch)
    for number in range(1, 1_500):  # it is far from the end when the signal comes
        os.link(first, large / f"{number:020d}-{number:032x}.json")
    process = subprocess.Popen(
        [COMMAND, "convert", str(large), str(target / "out.jsonl"), "--jobs", jobs],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(lambda: any(p.stat().st_size for p in target.iterdir()), process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"cirron-otel: interrupted\n")
    assert_untouched(target)
    deadline = time.monotonic() + 180
    while running := living(process.pid):
        assert time.monotonic() < deadline, running
        time.sleep(0.05)
