"""Writers that are killed, and writers that are at it together: real processes, real files."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cirron_otel.core.records.check import check_batch
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import TargetError
from tests.kit.spools.made import encoded, made

# Writes batches of 200 kB as fast as it can; says so when it has begun.
_WRITE_ON = """
import itertools, sys
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.spools.made import encoded, made
directory, first, cap = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = SpoolWriter(directory, max_bytes=cap or None)
for number in itertools.count(first):
    writer.write(encoded(made(number, padding=200_000)))
    if number == first:
        print("begun", flush=True)
"""

# Writes the given numbers; prints which were new and which were refused.
_WRITE_ALL = """
import json, sys
from cirron_otel.errors import TargetError
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.spools.made import encoded, made
directory, mine = sys.argv[1], sys.argv[2]
writer = SpoolWriter(directory, max_bytes=None)
new, refused = [], []
for number in range(150):
    own = number % 3 == 0
    try:
        batch = made(number, padding=20_000, **({"by": mine} if own else {}))
        if writer.write(encoded(batch)).is_new:
            new.append(number)
    except TargetError:
        refused.append(number)
print(json.dumps([new, refused]))
"""


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    )


def assert_all_whole(spool: Path) -> int:
    """Every `*.json` in the directory is a whole batch; returns how many there are."""
    count = 0
    for path in spool.glob("*.json"):
        assert check_batch(path.read_bytes()) is None, path.name
        count += 1
    return count


def test_killed_writer_leaves_only_complete_batches(tmp_path: Path) -> None:
    chance = random.Random(7)
    written = 0
    for round_number in range(15):
        writer = python(_WRITE_ON, str(tmp_path), str(round_number * 100_000), "0")
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        time.sleep(chance.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        count = assert_all_whole(tmp_path / "spool")
        assert count > written
        written = count
    left = sorted((tmp_path / "spool").glob("*.json.tmp"))
    for path in left:
        # An empty one that is younger than 2 s may be a living writer's.
        os.utime(path, (0, 0))
    reader = SpoolReader(tmp_path)
    assert len(list(reader)) == written
    assert {finding.code for finding in reader.findings} <= {"torn"}
    # What the killed ones left halfway does not stop the next one.
    torn = [finding.name for finding in reader.findings]
    assert [path.name for path in left] == sorted(torn)
    for path in left:
        number = int(path.name.removesuffix(".json.tmp").split("-")[1], 16)
        assert SpoolWriter(tmp_path).write(encoded(made(number, padding=200_000))).is_new
    assert not list((tmp_path / "spool").glob("*.json.tmp"))


def test_reader_sees_only_complete_batches_during_eviction(tmp_path: Path) -> None:
    writer = python(_WRITE_ON, str(tmp_path), "0", str(4_000_000))
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "begun\n"
        reader = SpoolReader(tmp_path)
        seen: set[str] = set()
        while len(seen) < 50:
            assert writer.poll() is None
            names = [batch.name for batch in reader]
            assert names == sorted(names)
            # What is being written is no torn file.
            assert reader.findings == []
            seen.update(names)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    # The cap holds 19 of them.
    assert len(names) < 25


def test_two_processes_write_the_same_names_at_once(tmp_path: Path) -> None:
    """Of two batches of one name, one is written and the other refused, or they are the same."""
    writers = [python(_WRITE_ALL, str(tmp_path), mine) for mine in "ab"]
    results = [json.loads(writer.communicate()[0]) for writer in writers]
    new, refused = zip(*results, strict=True)
    assert sorted(new[0] + new[1]) == list(range(150))
    assert sorted(refused[0] + refused[1]) == list(range(0, 150, 3))
    assert assert_all_whole(tmp_path / "spool") == 150
    assert not list((tmp_path / "spool").glob("*.tmp"))
    for batch in SpoolReader(tmp_path):
        content = json.loads(batch.data)
        number = int(content["batch_id"], 16)
        if number % 3 == 0:
            assert number in new["ab".index(content["by"])]


def test_a_locked_name_is_waited_for_but_not_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    from cirron_otel.core.spool import writer as module

    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    writer = SpoolWriter(tmp_path)
    path = writer.write(encoded(made(1))).path
    path.unlink()
    tmp = path.with_name(path.name + ".tmp")
    tmp.touch()
    with tmp.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TargetError, match="is locked by another process"):
            writer.write(encoded(made(1)))
        assert SpoolReader(tmp_path).findings == []
    assert writer.write(encoded(made(1))).is_new
    assert sorted(os.listdir(tmp_path / "spool")) == [path.name]  # noqa: PTH208
