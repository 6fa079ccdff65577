"""Intake journals made by hand, and real processes that write them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cirron_otel.collector.receiver.consumer import BodyEncoding, ReceivedSignal
from cirron_otel.collector.receiver.journal.files import (
    HEADER_BYTES,
    Damage,
    Head,
    Position,
    checksum,
    encode_head,
    encode_header,
    encode_prefix,
    segment_path,
)
from cirron_otel.collector.receiver.journal.reader import frames


def head(**headers: str) -> Head:
    return Head(ReceivedSignal.TRACES, BodyEncoding.PROTOBUF, 1_700_000_000_000_000_123, headers)


def segment(number: int, bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """A segment's bytes, and where its frames end."""
    data = encode_header(number)
    ends = []
    for body in bodies:
        text = encode_head(head())
        data += encode_prefix(number, text, body, checksum(text, body)) + text + body
        ends.append(len(data))
    return data, ends


def put(directory: Path, segments: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Write segments 1, 2, …; returns where their frames end."""
    all_ends = []
    for number, bodies in enumerate(segments, 1):
        data, ends = segment(number, bodies)
        segment_path(directory, number).write_bytes(data)
        all_ends.append(ends)
    return all_ends


def read(directory: Path, after: Position | None = None) -> tuple[list[bytes], list[Damage]]:
    """The bodies that are read, each checked against its head, and what is reported."""
    damages: list[Damage] = []
    bodies = []
    last = after or Position(0, 0)
    for frame in frames(directory, after, damages.append):
        assert frame.head == head(**frame.head.headers)
        assert frame.sha256 == hashlib.sha256(frame.body).hexdigest()
        assert last <= frame.start < frame.end
        assert frame.start.offset >= HEADER_BYTES
        last = frame.end
        bodies.append(frame.body)
    return bodies, damages


_BEFORE = """
import asyncio, json, os, random, resource, sys
from pathlib import Path
from cirron_otel.collector.receiver.journal.writer import IntakeJournal, JournalFullError
from cirron_otel.collector.receiver.journal.files import remove_before
from cirron_otel.collector.receiver.journal.reader import frames
from tests.collector.receiver.journalled import head
directory = Path(sys.argv[1])

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def process(script: str, *arguments: object, under: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A Python process that runs `script` with what it needs of the journal."""
    command = [*under, sys.executable, "-c", _BEFORE + script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
