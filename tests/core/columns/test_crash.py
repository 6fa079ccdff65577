"""Writers that are killed, at every step and at any time: real processes, real files."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cirron_otel.core.columns.reading import committed_groups

from .helpers import (
    TINY,
    add,
    assert_stored,
    of_run,
    stored,
    visible,
)

pytestmark = pytest.mark.timeout(1800)

BATCHES = 2

# For each time that a file is about to be written, synced or renamed: a process that is killed.
_KILLED_AT_EACH_STEP = """
import json, os, signal, sys
from pathlib import Path
from cirron_otel.core import atomic_files
from cirron_otel.core.columns import writing
from tests.core.columns.helpers import add
from tests.core.columns.test_crash import files
step, last = 0, -1
def counted(function):
    def call(*arguments, **keywords):
        global step
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        step += 1
        return function(*arguments, **keywords)
    return call
for module, name in (
    (atomic_files, "sync_file"), (atomic_files, "publish"), (writing, "write_table"),
):
    setattr(module, name, counted(getattr(module, name)))
results = []
while True:
    last += 1
    child = os.fork()
    if not child:
        add(Path(sys.argv[1]) / str(last), files())
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    results.append(status)
    if status != -signal.SIGKILL:
        break
print(json.dumps(results))
"""

# Adds the batches one after the other; says so at each.
_ADD_ALL = """
import sys
import time
from pathlib import Path
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.packed import arrow_rows
from cirron_otel.core.columns.writing import ColumnsWriter
from tests.core.columns.helpers import TINY
from tests.core.columns.test_crash import many
with ColumnsWriter(Path(sys.argv[1]), TINY) as writer:
    for number, file in enumerate(many()):
        print(number, flush=True)
        writer.add(arrow_rows(rows_of(*file)))
"""


# Converts with worker processes, whose ids it prints when they have done something.
_WITH_WORKERS = """
import multiprocessing, sys
from cirron_otel.tools.convert import workers
from cirron_otel.tools.convert.convert import ConvertRequest, convert
workers._POOL_FROM_BYTES, workers.CHUNK_BYTES = 0, 1
encode_in_pool = workers._encode_in_pool
def until_first(*arguments):
    chunks = encode_in_pool(*arguments)
    yield next(chunks)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    sys.stdin.read()
workers._encode_in_pool = until_first
if __name__ == "__main__":
    convert(ConvertRequest(sys.argv[1], "parquet:" + sys.argv[2], jobs=2))
"""


def files() -> list[tuple[str, bytes]]:
    """Batches of two runs and two days."""
    return [of_run(number, str(number), batch_id=f"{number:032x}") for number in range(BATCHES)]


def many() -> list[tuple[str, bytes]]:
    return [of_run(number, batch_id=f"{number:032x}") for number in range(60)]


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_no_half_file(directory: Path, of: list[tuple[str, bytes]]) -> None:
    """Each visible file is complete, and what counts are complete batches."""
    for path in visible(directory):
        assert path.suffix == ".parquet"
        pq.ParquetFile(path).read()
    if any(committed_groups(directory)):
        assert set(stored(directory)) <= set(of)


def test_a_writer_that_is_killed_at_any_step(tmp_path: Path) -> None:
    done = python(_KILLED_AT_EACH_STEP, str(tmp_path))
    results = json.loads(done.communicate()[0])
    assert results[-1] == 0
    assert results[:-1] == [-signal.SIGKILL] * (len(results) - 1)
    assert len(results) > 40
    for step in range(len(results)):
        directory = tmp_path / str(step)
        assert_no_half_file(directory, files())
        directory.mkdir(exist_ok=True)
        add(directory, files())
        assert_stored(directory, files())
        assert [path.name for path in (directory / "_writing").iterdir()] == ["lock"]
        groups = {group.path for group in committed_groups(directory)}
        for path in visible(directory):
            assert path.relative_to(directory).as_posix().partition("/")[2] in groups


def test_a_writer_that_is_killed_at_any_time(tmp_path: Path) -> None:
    chance = random.Random(7)
    for _ in range(4):
        writer = python(_ADD_ALL, str(tmp_path))
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 55)):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert_no_half_file(tmp_path, many())
    add(tmp_path, many(), TINY)
    assert_stored(tmp_path, many())


def test_worker_processes_end_with_a_killed_writer(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    for name, data in many():
        (tmp_path / "spool" / name).write_bytes(data)
    writer = python(_WITH_WORKERS, str(tmp_path), str(tmp_path / "tables"))
    assert writer.stdout is not None
    pids = [int(pid) for pid in writer.stdout.readline().split()]
    assert len(pids) == 2
    writer.send_signal(signal.SIGKILL)
    writer.wait()  # the workers have its output open, too
    deadline = time.monotonic() + 300
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie, whose status no process has read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
