"""Frames as TraceML 0.5.0 sends them, and connections that send them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cirron_otel.core.importers.traceml.framing import frame_of
from cirron_otel.core.importers.traceml.reading import TraceMLImport

NONCE = "0123456789abcdef0123456789abcdef"
_AT_S = 1_790_000_000.0
_PHASES = {"dataloader_next": 1.0, "forward_time": 2.0, "backward_time": 3.0, "optimizer_step": 0.5}


def meta(rank: int, at_s: float, pid: int = 4000) -> dict[str, Any]:
    """Return the fields about the sender."""
    return {
        "rank": rank, "global_rank": rank, "local_rank": rank, "world_size": 2,
        "local_world_size": 2, "node_rank": 0, "hostname": "worker", "pid": pid + rank,
        "sampler": "StepTimeSampler", "timestamp": at_s, "session_id": "job", "run_nonce": NONCE,
        "session_source": "explicit",
    }  # fmt: skip


def row(step: int, rank: int) -> dict[str, Any]:
    """Return the row of a step that takes 10 ms."""
    events = {
        f"_traceml_internal:{name}": {"cpu": _duration(ms + rank)} for name, ms in _PHASES.items()
    }
    events["_traceml_internal:step_time"] = {"cpu": _duration(8.0 + 3 * rank)}
    return {"seq": step, "timestamp": _AT_S + step * 0.02, "step": step, "events": events}


def _duration(ms: float) -> dict[str, Any]:
    return {"is_gpu": False, "duration_ms": ms, "cpu_ms": ms, "gpu_ms": None, "n_calls": 1}


def payload(first: int, last: int, rank: int = 0, padding: int = 0) -> bytes:
    """Return a payload with the steps `first` to `last`, both included."""
    tables: dict[str, Any] = {"StepTimeTable": [row(step, rank) for step in range(first, last + 1)]}
    if padding:
        tables["PaddingTable"] = [{"ts": _AT_S + last * 0.02, "text": "x" * padding}]
    envelope = {"meta": meta(rank, _AT_S + last * 0.02), "body": {"tables": tables}}
    return msgspec.msgpack.encode([envelope])


def steps(first: int, last: int, rank: int = 0, each: int = 10, padding: int = 0) -> bytes:
    """Return the frames of the steps `first` to `last`, `each` steps to a frame."""
    return b"".join(
        frame_of(payload(at, min(at + each - 1, last), rank, padding))
        for at in range(first, last + 1, each)
    )


def finished(rank: int = 0) -> bytes:
    """Return the frame that ends a rank."""
    message = {"_traceml_control": "rank_finished", **meta(rank, _AT_S + 1000)}
    return frame_of(msgspec.msgpack.encode([message]))


def stream(count: int, rank: int = 0, each: int = 10) -> bytes:
    """Return the bytes of a process with `count` steps."""
    return steps(1, count, rank, each) + finished(rank)


def connect(address: str | None) -> socket.socket:
    """Connect to a receiver."""
    assert address is not None
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def send(address: str | None, data: bytes, chunk: int | None = None) -> None:
    """Send `data` over a connection of its own, in pieces of `chunk` bytes."""
    with connect(address) as connection:
        for piece in _pieces(data, chunk or len(data) or 1):
            connection.sendall(piece)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def is_closed(connection: socket.socket) -> bool:
    """Wait until the receiver closes the connection; return False if that takes 2 minutes."""
    connection.settimeout(120)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def imported(folder: Path, *streams: bytes) -> dict[str, bytes]:
    """Return the batches of the import of these connections, by name."""
    folder.mkdir()
    for number, data in enumerate(streams):
        (folder / f"{number}.frames").write_bytes(data)
    batches = TraceMLImport(folder, on_finding=lambda _: None).batches()
    return {batch.name: batch.data for batch in batches}


def stored(folder: Path) -> dict[str, bytes]:
    """Return the batches in the spool of a collector, by name."""
    return {path.name: path.read_bytes() for path in (folder / "spool").glob("*.json")}


def stored_steps(folder: Path) -> list[tuple[int, int]]:
    """Return the rank and the number of each step in the spool of a collector."""
    return sorted(
        (span["rank"], span["index"])
        for data in stored(folder).values()
        for span in msgspec.json.decode(data)["spans"]
        if span["name"] == "step"
    )
