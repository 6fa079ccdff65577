"""What clients can make a gRPC receiver take: its memory is watched from outside."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
import zstandard

from cirron_otel.collector.receiver.grpc.http2_headers import ENCODING
from tests.kit.servers.servers import traces

from .grpc_clients import OPTIONS, TRACES, Refusal
from .measure_hostile import (
    IN_SCOPE,
    IN_SPAN,
    MIB,
    VALUE,
    nested,
)

MOST_MIB = 300
"""Over what the process takes at rest."""


@dataclass
class Program:
    """The receiver of grpc_program.py in its process."""

    pid: int
    port: int

    def memory_kib(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise LookupError(name)

    def send(self, *bodies: bytes, channels: int = 4, at_once: int = 64) -> Counter[str]:
        """Send them all over several connections; how often each code came back."""
        return asyncio.run(self._send(bodies, channels, at_once))

    async def _send(self, bodies: tuple[bytes, ...], count: int, at_once: int) -> Counter[str]:
        codes: Counter[str] = Counter()
        address = f"127.0.0.1:{self.port}"
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        channels = [grpc.aio.insecure_channel(address, options) for _ in range(count)]
        waiting = iter(enumerate(bodies))

        async def work() -> None:
            for number, body in waiting:
                try:
                    await channels[number % count].unary_unary(TRACES)(
                        body, metadata=encoding_of(body)
                    )
                    codes["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    refusal = Refusal.of(error)
                    codes[refusal.code] += 1
                    assert (refusal.retry_after_s is not None) == (refusal.code == "UNAVAILABLE")

        await asyncio.gather(*(work() for _ in range(at_once)))
        for channel in channels:
            await channel.close()
        return codes


def encoding_of(body: bytes) -> list[tuple[str, str]]:
    """The header of a body that is compressed, under the name that the receiver gives it."""
    starts = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
    return [(ENCODING, name) for start, name in starts.items() if body.startswith(start)]


@pytest.fixture
def program() -> Iterator[Program]:
    command = (sys.executable, "-m", "tests.collector.receiver.grpc_program")
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        program = Program(process.pid, int(process.stdout.readline()))
        assert program.send(traces(10), traces(10)) == {"OK": 2}
        base = program.memory_kib("VmRSS")
        yield program
        assert program.send(traces(10)) == {"OK": 1}
        assert program.memory_kib("VmHWM") - base < MOST_MIB * 1024
        process.stdin.close()
    assert process.returncode == 0


def test_bombs(program: Program) -> None:
    """A GiB of zeros in a MiB each, 24 at once."""
    gzipped = zlib.compressobj(9, wbits=31)
    zeros = bytes(16 * MIB)
    bomb = b"".join(gzipped.compress(zeros) for _ in range(62)) + gzipped.flush()
    assert 900_000 < len(bomb) < 4 * MIB
    codes = program.send(*[bomb] * 24)
    # Those that find the others' bytes in flight are told to come again.
    assert codes["RESOURCE_EXHAUSTED"] > 0
    assert codes["RESOURCE_EXHAUSTED"] + codes["UNAVAILABLE"] == 24
    assert program.send(gzip.compress(bomb)) == {"INVALID_ARGUMENT": 1}  # inside, still a bomb
    frames = zstandard.compress(bytes(1024 * MIB))
    codes = program.send(*[frames * 20] * 8)
    assert codes["RESOURCE_EXHAUSTED"] > 0
    assert codes["RESOURCE_EXHAUSTED"] + codes["UNAVAILABLE"] == 8


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (IN_SCOPE(b"\x12\x00" * (2 * MIB - 10)), "RESOURCE_EXHAUSTED"),
        (gzip.compress(IN_SPAN(b"\x4a\x00" * 2_000_000)), "RESOURCE_EXHAUSTED"),
        (gzip.compress(IN_SPAN(b"\x4a\x00" * 10_000_000)), "RESOURCE_EXHAUSTED"),
        (VALUE(nested(10_000)), "INVALID_ARGUMENT"),
    ],
    ids=["empty spans", "2 M attributes", "10 M attributes", "deep"],
)
def test_hostile_requests(program: Program, body: bytes, code: str) -> None:
    codes = program.send(*[body] * 16)
    assert set(codes) <= {code, "UNAVAILABLE"}
    assert codes[code] > 0


def test_more_bodies_than_there_is_room_for(program: Program) -> None:
    """1.2 GB, from senders that are faster than the receiver."""
    body = traces(1) + IN_SPAN(b"\x2a" + b"\xff\xff\xfe\x01" + b"a" * 4_177_919)
    assert 4 * MIB - 100_000 < len(body) <= 4 * MIB
    codes = program.send(*[body] * 300, at_once=128)
    assert set(codes) <= {"OK", "UNAVAILABLE"}
    assert codes["OK"] > 0
