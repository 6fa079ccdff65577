"""Seeded plans of programs that record and end, and the check of the spool that each one leaves."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.recovery import recover

PROGRAM = Path(__file__).parent / "program.py"
WAYS = (
    "shutdown", "shutdown", "shutdown", "shutdown", "shutdown", "shutdown", "shutdown", "end",
    "sys.exit in a thread", "sys.exit in a thread", "sigterm", "sigint", "os._exit", "sigkill",
    "fork", "fork", "two sessions", "two sessions", "two sessions", "kernel",
)  # fmt: skip
UNANNOUNCED = ("os._exit", "sigkill")
LIMITS = (None, None, 0.0, 0.0, 0.05, 0.1, 0.3, 1.0, 5.0, 30.0)
SHUTDOWNS = (0.0, 0.0, 0.01, 0.02, 0.03, 0.05, 0.05, 0.1, 0.1, 0.2, 0.3, 1.0, 30.0)
_OPENED, _MARKED, _FLUSHED, _SLOTS = 0, 16, 32, 64
_FOREIGN_EVERY, _TRAINING_SCOPES, _TRAINING_MARKS = 50, 32, 30
"""The maximum numbers of records that the program does not number: one span of another library for
each 50 scopes, and in each session, if there are tensors, the scopes and marks of the training."""


@dataclass(frozen=True)
class Spec:
    """A program: how it records, and how it ends."""

    seed: int
    end: str
    limit: float | None
    """The option `exit_timeout`."""
    shutdown: float | None
    """The argument of `shutdown()`; None: it is not called."""
    threads: int
    scopes: int
    """Scopes that each thread opens in a row; there are a third more inside them."""
    joins: bool
    """Whether the threads have ended before the program ends."""
    marks: bool
    foreign: bool
    snapshots: bool
    digests: bool
    overhead: int
    interval: float
    scale: int = 1
    """By how much the program is smaller, and so are the sizes of batches and buffers."""


def spec_of(seed: int) -> Spec:
    """Draw a plan."""
    draw = random.Random(seed)
    end = draw.choice(WAYS)
    threads = draw.choice((1, 1, 2, 4, 8))
    total = draw.choice((300, 10_000, 30_000, 60_000, 100_000, 100_000))
    has_tensors = draw.random() < 0.12
    calls = end in ("shutdown", "two sessions", "fork", "sys.exit in a thread", "kernel")
    return Spec(
        seed, end, draw.choice(LIMITS), draw.choice(SHUTDOWNS) if calls else None, threads,
        total // threads, draw.random() < 0.8 or end in ("two sessions", "fork"),
        draw.random() < 0.7, draw.random() < 0.3, has_tensors,
        has_tensors and draw.random() < 0.5, draw.choice((0, 1, 1)),
        draw.choice((60.0, 60.0, 1.0, 0.05)),
    )  # fmt: skip


def smaller(spec: Spec, scale: int = 5) -> Spec:
    """Return a plan with fewer records, and with as much less time for its end.

    The program divides the sizes of batches and buffers, too: there are as many batches.
    """
    limit = None if spec.limit is None else spec.limit / scale
    shutdown = None if spec.shutdown is None else spec.shutdown / scale
    return replace(
        spec, scopes=spec.scopes // scale, limit=limit, shutdown=shutdown, scale=scale
    )  # fmt: skip


@dataclass
class Outcome:
    """The result of a program: its exit code, its counts, and how long its end took."""

    spec: Spec
    code: int
    stderr: str
    facts: dict[str, Any]
    took: float
    """Seconds from the last instruction of the program to the end of its process."""
    handled: float
    """Seconds from that instruction to the end of the last `atexit` handler, or of the process."""
    opened: list[int]
    marked: list[int]
    flushed: int

    @property
    def is_refused(self) -> bool:
        """Whether `shutdown` returned False."""
        return self.facts.get("done") is False


def run(spec: Spec, directory: Path) -> Outcome:
    """Run the program of a plan in an empty directory."""
    directory.mkdir(parents=True, exist_ok=True)
    arguments = [str(directory), json.dumps(asdict(spec))]
    code, err = (_in_kernel if spec.end == "kernel" else _in_process)(arguments, directory)
    ended = time.time()
    facts: dict[str, Any] = {}
    for line in (directory / "facts").read_text().splitlines():
        facts |= json.loads(line)
    numbers = struct.unpack(f"{_SLOTS}q", (directory / "counters").read_bytes())
    return Outcome(
        spec, code, err, facts, ended - facts["ends"],
        min(facts.get("left", ended), ended) - facts["ends"],
        list(numbers[_OPENED : _OPENED + spec.threads]),
        list(numbers[_MARKED : _MARKED + spec.threads]), numbers[_FLUSHED],
    )  # fmt: skip


def _in_process(arguments: list[str], directory: Path) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, PROGRAM, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory,
    )  # fmt: skip
    try:
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, err


def _in_kernel(arguments: list[str], directory: Path) -> tuple[int, str]:
    """Run the program in a cell of a notebook's kernel, and shut the kernel down."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(directory), stderr=subprocess.DEVNULL)
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=120)
        code = f"import runpy, sys; sys.argv = {['program', *arguments]!r}"
        code += f"; runpy.run_path({str(PROGRAM)!r}); None"
        reply = client.execute_interactive(code, timeout=300)
        client.stop_channels()
        # The manager kills a kernel that takes longer: wait as long as a user would.
        manager.shutdown_wait_time = 120.0
        manager.shutdown_kernel()
    finally:
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
    content = reply["content"]
    return (0, "") if content["status"] == "ok" else (1, "\n".join(content["traceback"]))


def problems(outcome: Outcome, directory: Path) -> list[str]:
    """Recover the spool, and return what is wrong: each record must be there once, or counted."""
    spec = outcome.spec
    found: list[str] = []
    expected = {"sigterm": -15, "sigint": 0, "sigkill": -9}.get(spec.end, 0)
    if outcome.code != expected:
        found.append(f"exit code {outcome.code}: {outcome.stderr[-500:]}")
    for done in recover(target_spool(directory)):
        if done.problem:
            found.append(done.problem)
    spans: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    numbers: Counter[tuple[str, int]] = Counter()
    values: Counter[tuple[str, int]] = Counter()
    lost: Counter[str] = Counter()
    for path in sorted((directory / "spool").glob("*")):
        if path.suffix != ".json":
            found.append(f"{path.name} is left")
            continue
        batch = json.loads(path.read_bytes())
        spans.update(span["id"] for span in batch["spans"])
        marks.update(mark["id"] for mark in batch["marks"])
        numbers.update((s["name"], s["index"]) for s in batch["spans"] if _is_ours(s["name"]))
        values.update((m["name"], m["value"]) for m in batch["marks"] if _is_ours(m["name"]))
        for span in batch["spans"]:
            if span["name"] == "cirron.session":
                lost.update({k: n for k, n in span["attrs"].items() if k.startswith("drops.")})
    repeated = [sum(1 for n in each.values() if n > 1) for each in (spans, marks, numbers, values)]
    if any(repeated):
        found.append(f"{repeated} spans, marks, numbers and values are there twice")
    found += _missing(outcome, numbers, values, lost)
    left = {path.name.partition("-")[0] for path in (directory / "state").iterdir()}
    if left - {"cursor", "lease"}:
        found.append(f"left in state/ after recovery: {left}")
    return found


def _is_ours(name: str) -> bool:
    return name[0] == "t" and name[1:].isdigit()


def _missing(
    outcome: Outcome,
    numbers: Counter[tuple[str, int]],
    values: Counter[tuple[str, int]],
    lost: Counter[str],
) -> list[str]:
    """Compare the numbers of scopes and marks with those that the program counted."""
    spec = outcome.spec
    scopes_lost = sum(n for key, n in lost.items() if "scopes" in key or "spans" in key)
    marks_lost = sum(n for key, n in lost.items() if "marks" in key)
    opened, marked = sum(outcome.opened), sum(outcome.marked)
    scopes, marks = len(numbers), len(values)
    if spec.end in UNANNOUNCED:
        if not outcome.flushed <= scopes <= opened:
            return [f"{scopes:,} of {opened:,} scopes; {outcome.flushed:,} were flushed"]
        return []
    if not spec.joins:  # threads record while the process ends
        # A thread counts a scope just before it opens it.
        before = sum(outcome.facts["opened"]) - spec.threads
        if not before <= scopes + scopes_lost or scopes > opened:
            return [f"{scopes:,} scopes and {scopes_lost:,} lost, of {before:,} to {opened:,}"]
        return []
    found = []
    # Records without numbers may be among the lost ones.
    trainings = (1 + (spec.end == "two sessions")) * (spec.snapshots or spec.digests)
    others = opened // _FOREIGN_EVERY * spec.foreign + _TRAINING_SCOPES * trainings
    if not opened <= scopes + scopes_lost <= opened + others * bool(scopes_lost):
        found.append(f"{scopes:,} scopes and {scopes_lost:,} lost, of {opened:,}")
    others = _TRAINING_MARKS * trainings
    if not marked <= marks + marks_lost <= marked + others * bool(marks_lost):
        found.append(f"{marks:,} marks and {marks_lost:,} lost, of {marked:,}")
    return found
