"""Real processes that write the intake journal and are killed, or run out of space."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.journal.files import Position, segment_numbers
from cirron_otel.collector.receiver.journal.reader import frames
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.errors import TargetError

from .journalled import process

# Eight tasks append as fast as they can; each says what was acknowledged, and where it ends.
_APPEND = """
async def work(journal, task):
    chance = random.Random(task)
    number = 0
    while True:
        body = f"{sys.argv[2]} {task} {number} ".encode() + bytes(chance.choice((1, 900, 60_000)))
        end = await journal.append(head(), body)
        say(task, number, *end)
        number += 1

async def main():
    journal = IntakeJournal(directory, segment_bytes=300_000, max_bytes=2**40)
    await asyncio.gather(*(work(journal, task) for task in range(8)))

asyncio.run(main())
"""


def test_acknowledged_requests_survive_sigkill(tmp_path: Path) -> None:
    chance = random.Random(11)
    acknowledged: dict[tuple[int, int], list[Position]] = defaultdict(list)
    for turn in range(30):
        writer = process(_APPEND, tmp_path, turn)
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(chance.randint(1, 60))]
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        lines += writer.stdout.readlines()
        writer.stdout.close()
        for line in lines:
            task, number, *end = map(int, line.split())
            assert number == len(acknowledged[turn, task])
            acknowledged[turn, task].append(Position(*end))
    read: dict[tuple[int, int], list[Position]] = defaultdict(list)
    for frame in frames(tmp_path, None, pytest.fail):
        turn, task, number = map(int, frame.body.split()[:3])
        assert number == len(read[turn, task])
        read[turn, task].append(frame.end)
    for key, ends in acknowledged.items():
        assert read[key][: len(ends)] == ends
    # A task waits for its answer: one request more each, at most, was written and not answered.
    for key, ends in read.items():
        assert len(ends) <= len(acknowledged[key]) + 1
    assert len(segment_numbers(tmp_path)) >= 30


def test_only_one_process_has_the_journal(tmp_path: Path) -> None:
    holder = process("journal = IntakeJournal(directory)\nsay('held')\nsys.stdin.read()", tmp_path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TargetError, match="another collector stores requests"):
            IntakeJournal(tmp_path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    taken = process("asyncio.run(IntakeJournal(directory).close())\nsay('taken')", tmp_path)
    assert taken.communicate()[0] == "taken\n"


# The limit of the size of a file stands for a full disk: a write is cut short, then fails.
_LIMIT = """
kept, refused = [], []

async def work(journal, numbers):
    for number in numbers:
        body = f"{number} ".encode() + bytes(20_000)
        try:
            kept.append([number, *await journal.append(head(), body)])
        except JournalFullError as error:
            assert "File too large" in str(error), error
            refused.append(number)

async def main():
    journal = IntakeJournal(directory)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for step, limit in enumerate((150_000, 8, hard)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        numbers = iter(range(step * 100, step * 100 + 100))
        before = len(kept), len(refused)
        await asyncio.gather(*(work(journal, numbers) for _ in range(8)))
        say(json.dumps([len(kept) - before[0], len(refused) - before[1]]))
    await journal.close()
    say(json.dumps(kept))

asyncio.run(main())
"""


def test_a_write_that_is_cut_short_is_refused_and_taken_back(tmp_path: Path) -> None:
    writer = process(_LIMIT, tmp_path)
    lines = [json.loads(line) for line in writer.communicate()[0].splitlines()]
    assert writer.returncode == 0
    (some, others), none, everything, kept = lines
    assert some > 0
    assert others > 0
    assert (none, everything) == ([0, 100], [100, 0])
    found = [
        [int(frame.body.split()[0]), *frame.end] for frame in frames(tmp_path, None, pytest.fail)
    ]
    assert found == sorted(kept, key=lambda each: each[1:])


_FULL = """
async def main():
    kept, refused = [], 0

    async def append(number):
        nonlocal refused
        body = f"{number} ".encode() + bytes(50_000)
        try:
            kept.append([number, *await journal.append(head(), body)])
            return True
        except JournalFullError as error:
            assert "No space left" in str(error), error
            refused += 1
            return False

    def found():
        whole = frames(directory, None, sys.exit)
        return [[int(frame.body.split()[0]), *frame.end] for frame in whole]

    journal = IntakeJournal(directory, segment_bytes=200_000)
    number = 0
    while await append(number):
        number += 1
    for number in range(1000, 1005):
        await append(number)
    first = [refused >= 6, len(kept) > 10, found() == kept]
    remove_before(directory, journal.end)
    del kept[:]
    second = [all([await append(number) for number in range(2000, 2010)]), found()[-10:] == kept]
    await journal.close()
    say(json.dumps([*first, *second]))

asyncio.run(main())
"""


def test_a_disk_that_is_full_refuses_and_recovers(tmp_path: Path) -> None:
    under = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}" && exec "$0" "$@"'
    has_unshare = shutil.which("unshare") is not None
    if not has_unshare or subprocess.run([*under, mount, "true"], check=False).returncode != 0:
        pytest.skip("this user may not mount a small file system in a namespace of its own")
    writer = process(_FULL, tmp_path / "intake", under=[*under, mount])
    assert json.loads(writer.communicate()[0]) == [True] * 5
    assert writer.returncode == 0
