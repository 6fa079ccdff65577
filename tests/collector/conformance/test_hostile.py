"""What hostile clients can make a whole collector take, while another one goes on sending.

All at the same time, over both transports; the memory of both processes is watched from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.collector.receiver.measure_hostile import (
    IN_SCOPE,
    IN_SPAN,
    MIB,
    VALUE,
    nested,
)
from tests.kit.servers.otlp_clients import (
    JSON,
    PROTOBUF,
    TRACES,
    call,
    post,
    spans,
)
from tests.kit.servers.serving import Serving, serving, spans_of

MOST_MIB = 1024
"""That both processes take together, at their worst."""
ROUNDS = 2
SLOW = 6


def bomb() -> bytes:
    """A GiB of zeros in a MiB."""
    packer = zlib.compressobj(9, wbits=31)
    zeros = bytes(16 * MIB)
    return b"".join(packer.compress(zeros) for _ in range(64)) + packer.flush()


def spans_of_json(items: bytes) -> bytes:
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + items + b"]}]}]}"


def packed(body: bytes) -> bytes:
    return gzip.compress(body, 1)


@cache
def binary() -> dict[str, bytes]:
    """Return the hostile requests as protobuf; they are large."""
    return {
        "bomb": bomb(),
        "deep": packed(VALUE(nested(10_000))),
        "10 M attributes": packed(IN_SPAN(b"\x4a\x00" * 10_000_000)),
        "10 M values": packed(IN_SPAN(b"\x4a\x00" * 199_990 + b"\x78\x00" * 9_000_000)),
        "a million empty spans": packed(IN_SCOPE(b"\x12\x00" * 1_000_000)),
        "as many empty spans as are taken": packed(IN_SCOPE(b"\x12\x00" * 199_990)),
    }


@cache
def text() -> dict[str, bytes]:
    """Return the hostile requests as JSON."""
    return {
        "bomb": binary()["bomb"],
        "deep": packed(b'{"resourceSpans":' + b"[" * 10_000_000),
        "deep values": packed(
            spans_of_json(b'{"attributes":[{"value":' + b'{"arrayValue":{"values":[' * 300_000)
        ),
        "10 M attributes": packed(spans_of_json(b'{"attributes":[' + b"{}," * 9_999_999 + b"{}]}")),
        "10 M attributes, read the slow way": packed(
            spans_of_json(b'{"name":-0,"attributes":[' + b"{}," * 9_999_999 + b"{}]}")
        ),
        "10 M unknown": packed(b'{"resourceSpans":[],"x":[' + b"[]," * 9_999_999 + b"[]]}"),
        "a million empty spans": packed(spans_of_json(b"{}," * 999_999 + b"{}")),
        "as many empty spans as are taken": packed(spans_of_json(b"{}," * 199_989 + b"{}")),
        "a batch of 10 M spans, looked at closely": packed(
            b'{"schema_version":1,"schema_version":1,"spans":[' + b"{}," * 9_999_999 + b"{}]}"
        ),
        "a batch of one number": packed(
            b'{"schema_version":1,"schema_version":1,"spans":[],"x":1.' + b"7" * 3_000_000 + b"}"
        ),
    }


AGAIN = {429, 503, "UNAVAILABLE"}
"""Else what is sent would not be looked at."""
FINAL = {"200", "400", "413", "OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}


class Normal(threading.Thread):
    """A client that sends on, over both transports, and sends again what is to be sent again."""

    def __init__(self, here: Serving) -> None:
        super().__init__(daemon=True)
        self._here = here
        self.acknowledged: list[str] = []
        self.others: Counter[object] = Counter()
        self.is_over = False

    def run(self) -> None:
        number = 0
        while not self.is_over:
            name = f"normal {number}"
            body = spans(5, name)
            with contextlib.suppress(OSError):
                self._count(post(self._here, body).status, 200, f"{name} h", (429, 503))
            self._count(call(self._here, spans(5, f"{name} g")).code, "OK", f"{name} g",
                        ("UNAVAILABLE",))  # fmt: skip
            number += 1

    def _count(self, found: object, good: object, name: str, again: tuple[object, ...]) -> None:
        if found == good:
            self.acknowledged.append(name.removesuffix(" h"))
        elif found not in again:
            self.others[found] += 1


def over_http(here: Serving, found: Counter[str]) -> None:
    for _ in range(ROUNDS):
        for kind, bodies in ((PROTOBUF, binary()), (JSON, text())):
            for name, body in bodies.items():
                while (status := post(here, body, kind, Content_Encoding="gzip").status) in AGAIN:
                    time.sleep(0.05)
                found[f"{kind} {name}: {status}"] += 1


def over_grpc(here: Serving, found: Counter[str]) -> None:
    for _ in range(ROUNDS):
        for name, body in binary().items():
            while (code := call(here, body).code) in AGAIN:
                time.sleep(0.05)
            found[f"grpc {name}: {code}"] += 1


@contextlib.contextmanager
def slow_http(here: Serving) -> Iterator[None]:
    """Senders that announce the largest body, send a part of it, and no more."""
    host, _, port = here.http.removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(SLOW):
            sender = held.enter_context(socket.create_connection((host.strip("[]"), int(port)), 60))
            head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
            size = 64 * MIB
            sender.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + bytes(MIB))
        yield


async def slow_grpc(here: Serving, until: threading.Event) -> None:
    """Calls that are open, and send nothing."""

    async def nothing() -> AsyncIterator[bytes]:
        while not until.is_set():
            await asyncio.sleep(0.05)
        for body in ():
            yield body

    async with grpc.aio.insecure_channel(here.grpc) as channel:
        calls = [channel.stream_unary(TRACES)(nothing()) for _ in range(SLOW)]
        await asyncio.gather(*calls, return_exceptions=True)


def peak_mib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise LookupError(pid)


@pytest.mark.slow
def test_memory_is_bounded_and_others_are_served(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    text()  # is made ahead of the threads
    found: Counter[str] = Counter()
    over = threading.Event()
    with serving(folder) as here, slow_http(here):
        translator = here.translator()
        assert translator is not None
        normal = Normal(here)
        normal.start()
        hostile = [
            threading.Thread(target=over_http, args=(here, found)),
            threading.Thread(target=over_grpc, args=(here, found)),
        ]
        slow = threading.Thread(target=lambda: asyncio.run(slow_grpc(here, over)))
        for thread in (*hostile, slow):
            thread.start()
        for thread in hostile:
            thread.join()
        during = len(normal.acknowledged)
        over.set()
        slow.join()
        while len(normal.acknowledged) < during + 10:  # it goes on as if nothing had been
            time.sleep(0.02)
        normal.is_over = True
        normal.join()
        assert here.translator() == translator, "the second process has died"
        peaks = [peak_mib(here.process.pid), peak_mib(translator)]
        assert here.end() == 0
    assert sum(peaks) < MOST_MIB, peaks
    assert not normal.others
    assert during > 0
    assert sum(found.values()) == ROUNDS * (2 * len(binary()) + len(text()))
    assert {each.rpartition(": ")[2] for each in found} <= FINAL
    taken = {each.rpartition(":")[0] for each in found if each.endswith((" 200", " OK"))}
    assert {each.partition(" ")[2] for each in taken} <= {"as many empty spans as are taken"}
    names = {span["name"] for span in spans_of(folder)}
    assert names >= set(normal.acknowledged)
