"""Writers that are killed, and writers of the same batches: real processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

from cirron_otel import exactjson
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.made import (
    made,
    mark,
    span,
    span_id,
)

from .helpers import column, sealed, stored

# Writes groups of batches as fast as it can; says so when it has begun.
_WRITE_ON = """
import itertools, sys
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.test_crash import group
with Storage.open(sys.argv[1]) as storage:
    for number in itertools.count(int(sys.argv[2])):
        print(number, flush=True)
        storage.write(group(number))
"""
# Writes all groups; prints how many batches were new.
_WRITE_ALL = """
import json, sys
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.test_crash import GROUPS, group
chance = __import__("random").Random(int(sys.argv[2]))
with Storage.open(sys.argv[1]) as storage:
    print("ready", flush=True)
    sys.stdin.readline()
    numbers = chance.sample(range(GROUPS), GROUPS)
    print(json.dumps([storage.write(group(number)).new for number in numbers]))
"""
BATCHES, GROUPS, SPANS = 3, 25, 40


def group(number: int) -> list:
    """Batches that go into one transaction; they share a session with those of other groups."""
    first = number * 10_000
    return [
        sealed(
            made(
                number * BATCHES + n,
                spans=[span(first + n * 1000 + k, 1 + number % 3) for k in range(10, 10 + SPANS)],
                marks=[mark(first + n * 1000 + k, 1) for k in range(5)],
            )
        )
        for n in range(BATCHES)
    ]


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_writer_leaves_all_of_a_group_or_nothing(url: str) -> None:
    Storage.open(url).close()
    chance = random.Random(11)
    done = begun = 0
    for round_number in range(5):
        writer = python(_WRITE_ON, url, str(round_number * 1000))
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 6)):
            last = int(writer.stdout.readline())
        time.sleep(chance.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].split()
        begun += int(rest[-1] if rest else last) % 1000 + 1
        done += int(rest[-1] if rest else last) % 1000  # all but the last had ended
    with Storage.open(url) as storage:
        batches = stored(storage)
        assert done * BATCHES <= len(batches) <= begun * BATCHES
        assert len(batches) % BATCHES == 0
        assert all(len(value["spans"]) == SPANS for _, value in batches)
        assert all(len(value["marks"]) == 5 for _, value in batches)
        for table, size in (("TraceSpan", SPANS), ("TraceMark", 5)):
            [count] = column(storage, f'SELECT COUNT(*) FROM "{table}"')
            assert count == len(batches) * size
        written = {exactjson.dumps(value) for _, value in batches}
        everything = [
            batch for n in range(5) for k in range(begun) for batch in group(n * 1000 + k)
        ]
        assert written <= {batch.data for batch in everything}
        # What was not stored is stored when it is sent again, and only that.
        assert storage.write(everything).new == len(everything) - len(batches)


def test_two_writers_of_the_same_batches(url: str) -> None:
    Storage.open(url).close()
    writers = [python(_WRITE_ALL, url, str(seed)) for seed in (1, 2)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    new = [json.loads(writer.communicate()[0]) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert sum(new[0]) + sum(new[1]) == GROUPS * BATCHES
    with Storage.open(url) as storage:
        everything = [batch for number in range(GROUPS) for batch in group(number)]
        assert storage.write(everything).new == 0
        assert len(stored(storage)) == len(everything)
        assert column(storage, 'SELECT COUNT(*) FROM "TraceSpan"') == [len(everything) * SPANS]
        assert set(column(storage, 'SELECT "traceId" FROM "TraceSpan"')) == set(
            map(span_id, (1, 2, 3))
        )
