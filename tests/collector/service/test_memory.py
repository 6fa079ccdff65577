"""The memory that large batches leave behind, given back to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from cirron_otel.collector.service.memory import KEPT, Trimmer

_PROGRAM = """
from cirron_otel.collector.service.memory import give_back
from tests.perf.load.steady import resident
import os

blocks = [bytes([n % 256]) * 60_000 for n in range(1_000)]
kept = blocks[::100]  # scattered, so that the heap cannot just end earlier
del blocks
before = resident(os.getpid())
print(before, give_back(), resident(os.getpid()))
"""


def test_free_memory_goes_back_to_the_system() -> None:
    env = {**os.environ, **KEPT}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, check=True
    )
    before, is_given, after = result.stdout.split()
    if platform.libc_ver()[0] == "glibc":
        assert is_given == "True"
        assert int(before) - int(after) > 50_000_000
    else:
        assert is_given == "False"


def test_it_is_given_back_once_a_minute() -> None:
    now = 0.0
    trimmer = Trimmer(lambda: now)
    made = []
    for _ in range(25):
        now += 10.0
        blocks = [bytes(60_000) for _ in range(100)]
        kept = blocks[-1]
        del blocks
        made.append(trimmer.trim())
        del kept
    expected = [5, 11, 17, 23] if platform.libc_ver()[0] == "glibc" else []
    assert [index for index, is_given in enumerate(made) if is_given] == expected
