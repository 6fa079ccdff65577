"""The CPU time of receiving and sealing TraceML's steps, beside TraceML's own aggregator.

Both get the same bytes over two connections: the collector until all batches are in its spool, the
aggregator of 0.5.0 (`traceml serve`) until all rows are in its history.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cirron_otel.core.importers.traceml.framing import FrameDecoder, frame_of
from tests.core.importers.traceml.jobs import free_port, variables_of
from tests.core.importers.traceml.peers import TRACEML_050
from tests.core.importers.traceml.sending import (
    NONCE,
    connect,
    send,
    stream,
)
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.servers.serving import PROGRAM, serving

BAR = 1.0
RANKS = 2
_RECORDED = (
    Path(__file__).parents[2]
    / "testdata"
    / "traceml"
    / "v050"
    / "ddp2_residual_straggler"
    / "frames"
)
_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 20_000
    """The steps of each rank."""
    blocks: int = 5
    settle_s: float = 2.0
    """How long both wait after their start, so that its CPU time does not count."""


TINY = Sizes(100, 1, settle_s=0.0)
"""Enough to see that everything runs."""


def section(sizes: Sizes = Sizes()) -> None:
    """Print the costs."""
    print("TraceML's frames -> spool, CPU time of one step")
    try:
        TRACEML_050.make()
    except EnvironmentUnavailableError as error:
        print(f"  {error}")
        return
    shapes: dict[str, Callable[[int], bytes]] = {
        "a frame for 50 steps": lambda rank: stream(sizes.steps, rank, each=50),
        "a frame for each step": lambda rank: stream(sizes.steps // 2, rank, each=1),
        "recorded by 0.5.0": lambda rank: _recorded(rank, sizes.steps // 2),
    }
    for label, make in shapes.items():
        streams = [make(rank) for rank in range(RANKS)]
        _compare(label, streams, sizes)


def _recorded(rank: int, steps: int) -> bytes:
    """Return the frames of a recording, repeated as those of one process of this run."""
    (path,) = _RECORDED.glob(f"rank{rank}_*.frames")
    messages = [msgspec.msgpack.decode(each) for each in FrameDecoder().feed(path.read_bytes())]
    usual = [message for message in messages if "_traceml_control" not in message[0]]
    rows = sum(map(_rows, usual))
    pieces: list[bytes] = []
    for turn in range(-(-steps // rows)):
        for message in usual:
            for part in message:
                part["meta"] |= {"session_id": "job", "run_nonce": NONCE}
                for row in part["body"]["tables"].get("StepTimeTable", ()):
                    row["step"] += rows if turn else 0
            pieces.append(frame_of(msgspec.msgpack.encode(message)))
    return b"".join(pieces)


def _rows(message: list[dict[str, Any]]) -> int:
    return sum(len(part["body"]["tables"].get("StepTimeTable", ())) for part in message)


def _compare(label: str, streams: list[bytes], sizes: Sizes) -> None:
    steps = sum(
        _rows(message)
        for data in streams
        for payload in FrameDecoder().feed(data)
        if "body" in (message := msgspec.msgpack.decode(payload))[0]
    )
    ours, theirs = [], []
    for _ in range(sizes.blocks):
        theirs.append(_aggregator(streams, steps, sizes.settle_s) / steps * 1e6)
        ours.append(_collector(streams, sizes.settle_s) / steps * 1e6)
    # The kernel counts CPU time in ticks; a process may take less than one at small sizes.
    tick = 1e6 / _TICKS / steps
    ratio = statistics.median(a / max(b, tick) for a, b in zip(ours, theirs, strict=True))
    above = ", ABOVE" if ratio > BAR else ""
    print(f"  {label:<24} ours {statistics.median(ours):6.1f} µs, its aggregator "
          f"{statistics.median(theirs):6.1f} µs: {ratio:5.2f} x it (bar: {BAR:g}{above})",
          flush=True)  # fmt: skip


def _collector(streams: list[bytes], settle_s: float) -> float:
    """Return the CPU time of both processes of a collector, seconds."""
    options = ("--traceml", "127.0.0.1:0")
    with _folder() as folder, serving(folder / "data", *options, program=PROGRAM) as here:
        translator = here.translator()
        assert translator is not None
        time.sleep(settle_s)
        seen: set[Path] = set()
        ended = 0

        def is_done() -> bool:
            nonlocal ended
            for path in set((folder / "data" / "spool").glob("*.json")) - seen:
                seen.add(path)
                ended += b'"end":true' in path.read_bytes()
            return ended == len(streams)

        return _spent([here.process.pid, translator], here.traceml, streams, is_done)


def _aggregator(streams: list[bytes], steps: int, settle_s: float) -> float:
    """Return the CPU time of TraceML's aggregator, seconds."""
    with _folder() as folder:
        port = free_port()
        command = [
            TRACEML_050.make().with_name("traceml"), "serve", "--run-name", "job",
            "--logs-dir", folder / "logs", "--aggregator-port", str(port),
            "--nproc-per-node", str(RANKS),
        ]  # fmt: skip
        with (folder / "output.txt").open("w") as log:
            process = subprocess.Popen(
                list(map(str, command)), cwd=folder, stdout=log, stderr=log,
                env=variables_of(folder, {"TRACEML_RUN_NONCE": NONCE}),
            )  # fmt: skip
        try:
            address = f"127.0.0.1:{port}"
            _wait(lambda: _listens(address))
            time.sleep(settle_s)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            pids = [process.pid, *map(int, children.split())]
            return _spent(pids, address, streams, lambda: _history(folder) >= steps)
        finally:
            process.terminate()
            process.wait(120)


def _spent(
    pids: list[int], address: str | None, streams: list[bytes], is_done: Callable[[], bool]
) -> float:
    """Send the streams, wait until all is done, and return the CPU time of the processes."""
    before = sum(map(_cpu_s, pids))
    threads = [threading.Thread(target=send, args=(address, data, 65536)) for data in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _wait(is_done)
    return sum(map(_cpu_s, pids)) - before


def _history(folder: Path) -> int:
    """Return the number of steps in the aggregator's history."""
    for path in folder.rglob("telemetry"):
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database,
        ):
            (count,) = database.execute("SELECT count(*) FROM step_time_samples").fetchone()
            return int(count)
    return 0


def _listens(address: str) -> bool:
    try:
        connect(address).close()
    except OSError:
        return False
    return True


def _wait(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + _LONGEST_S
    while not is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"not done after {_LONGEST_S:g} s")
        time.sleep(0.2)


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        yield Path(folder)
