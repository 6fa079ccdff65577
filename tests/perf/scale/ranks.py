"""Simulated ranks of one job: generators of the batches that this project's SDK would seal.

The records have the form of the SDK's, and an export budget is the SDK's own. All values follow
from the seed and the rank, so every rank can be generated alone, and again. A rank has one batch in
memory.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from cirron_otel._version import SDK_VERSION
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.records.step_summaries import SUMMARISED
from cirron_otel.core.spool.owner import batch_id_of
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.translator.own.spans import overhead_mark
from cirron_otel.sdk.flush.export_budget import ExportBudget

START_NS = 1_795_000_000_000_000_000
SECOND, MS = 1_000_000_000, 1_000_000
PHASES = (("data_load", 8), ("forward", 60), ("backward", 110), ("optimizer_step", 12))
"""The phases of a usual step, and their lengths, ms."""
SLOWER = 1.6
"""The straggler's forward pass takes this times as long; the other ranks wait in `backward`."""
SPIKE = 4
"""A slow step loads its data for this times the length of a step."""
INCOMPLETE = "incomplete: the process ended before this scope did"
_EPOCH_STEPS = 1000

Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A job of `ranks` ranks that train for `seconds` seconds of their time."""

    ranks: int
    seconds: float
    seed: int = 0
    budget: float | None = None
    """The export budget of each rank, spans per second."""
    scale: int = 1
    """The factor of the lengths of all phases."""
    flush_s: int = 1
    """The time between the batches of a rank, seconds."""
    straggler: int = 0
    missing: frozenset[int] = frozenset()
    """Ranks that never send anything."""
    restarted: frozenset[int] = frozenset()
    """Ranks whose process is killed, and started again, after half of the time."""
    failing: int | None = None
    """A rank with one step that fails."""
    run_id: str = field(default="")

    @classmethod
    def of(
        cls, ranks: int, seconds: float, seed: int, budget: float | None, scale: int = 1,
        flush_s: int = 1,
    ) -> Job:  # fmt: skip
        """Return a job with a straggler, and, from 16 ranks on, missing and restarted ranks."""
        some = random.Random(f"job {seed} {ranks}").sample(range(ranks), min(ranks, 4))
        if ranks < 16:
            run_id = _id(seed, "run")
            return cls(ranks, seconds, seed, budget, scale, flush_s, some[0], run_id=run_id)
        missing, restarted, failing = frozenset({some[1]}), frozenset({some[2]}), some[3]
        return cls(
            ranks, seconds, seed, budget, scale, flush_s, some[0], missing, restarted, failing,
            _id(seed, "run"),
        )  # fmt: skip

    @property
    def present(self) -> list[int]:
        """The ranks that send data."""
        return [rank for rank in range(self.ranks) if rank not in self.missing]

    def step_ns(self, number: int) -> int:
        """Return the length of a step: all ranks have to wait for the straggler."""
        spread = 1 + 0.04 * (_share(self.seed, number) - 0.5)
        usual = sum(ms for _, ms in PHASES) + round((SLOWER - 1) * 60)
        length = round(usual * MS * self.scale * spread)
        return length * (1 + SPIKE) if self.is_slow(number) else length

    def is_slow(self, number: int) -> bool:
        """Return whether the straggler opens another shard in this step."""
        return number > 5 and _share(self.seed, "slow", number) < 0.005


def _id(*names: object) -> str:
    return hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=16).hexdigest()


def _share(*names: object) -> float:
    """Return a number from 0 to 1 that the names determine."""
    return int(_id(*names)[:12], 16) / 2**48


class RankBatch(NamedTuple):
    """A batch of a rank, as its spool contains it."""

    at_ns: int
    """The time of the job at which the batch was sealed, without the skew of the rank's clock."""
    batch: SealedBatch
    spans: int
    """The number of its span records."""
    steps: int
    """The number of steps among them."""


class SimulatedRank:
    """One rank of a job."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.skew_ns = round((_share(job.seed, "skew", rank) - 0.5) * 100 * MS)
        self.budget = ExportBudget(job.budget, 2.0, job.flush_s) if job.budget else None

    def batches(self) -> Iterator[RankBatch]:
        """Yield the batches in the order of time."""
        ends_ns = round(self.job.seconds * SECOND)
        if self.rank not in self.job.restarted:
            yield from self._session(0, 0, 0, ends_ns, is_killed=False)
            return
        number, at_ns = yield from self._session(0, 0, 0, ends_ns // 2, is_killed=True)
        # The others would wait for it in reality; here it joins them at a later step.
        at_ns += self.job.step_ns(number)
        yield from self._session(1, number + 1, at_ns, ends_ns, is_killed=False)

    def _session(
        self, turn: int, number: int, at_ns: int, ends_ns: int, *, is_killed: bool
    ) -> Generator[RankBatch, None, tuple[int, int]]:
        """Yield the batches of one process; return its next step and the time."""
        session = _Session(self, turn, at_ns)
        flush_ns = self.job.flush_s * SECOND
        sealed = at_ns // flush_ns
        while at_ns < ends_ns:
            session.step(number, at_ns)
            at_ns += self.job.step_ns(number)
            number += 1
            if at_ns // flush_ns > sealed:
                sealed = at_ns // flush_ns
                yield session.seal(at_ns)
        if is_killed:
            session.recover(at_ns)
        else:
            session.close(at_ns)
        yield session.seal(at_ns)
        return number, at_ns


class _Session:
    """The recording of one process."""

    def __init__(self, rank: SimulatedRank, turn: int, at_ns: int) -> None:
        self._rank, self._job = rank, rank.job
        self._key = f"{rank.job.seed}/{rank.rank}/{turn}"
        self._pid = 1000 + 2 * rank.rank + turn
        self._id = _id(self._key)
        self._begun_ns = self._epoch_ns = at_ns
        self._number, self._epoch = 0, -1
        self._spans: list[Record] = []
        self._marks: list[Record] = []
        self._steps = self._batches = 0
        self._running: list[Record] = [self._open("cirron.session", self._id, None, at_ns)]

    def _wall(self, at_ns: int) -> int:
        return START_NS + self._rank.skew_ns + at_ns

    def _new_id(self) -> str:
        self._number += 1
        return _id(self._key, self._number)[:16] + self._id[16:]

    def _open(self, name: str, id_: str, parent_id: str | None, at_ns: int) -> Record:
        index = self._epoch if name == "epoch" else None
        return {
            "id": id_, "name": name, "index": index, "start_ns": self._wall(at_ns),
            "parent_id": parent_id,
        }  # fmt: skip

    def _span(
        self, name: str, id_: str, parent_id: str | None, at_ns: int, end_ns: int,
        index: int | None = None,
    ) -> Record:  # fmt: skip
        record: Record = {
            "id": id_, "name": name, "parent_id": parent_id, "index": index,
            "start_ns": self._wall(at_ns), "end_ns": self._wall(end_ns), "cpu_ns": None,
            "gpu_ns": None, "memory_peak_bytes": None, "thread_id": 140_000 + self._pid,
            "pid": self._pid, "rank": self._rank.rank, "attrs": {}, "mark_ids": [],
        }  # fmt: skip
        self._spans.append(record)
        return record

    def step(self, number: int, at_ns: int) -> None:
        """Record a step that begins now, and the epoch that it begins, if it does."""
        if number // _EPOCH_STEPS != self._epoch:
            self._end_epoch(at_ns)
            self._epoch, self._epoch_ns = number // _EPOCH_STEPS, at_ns
            self._epoch_id = self._new_id()
            self._running.append(self._open("epoch", self._epoch_id, self._id, at_ns))
        job, step_id = self._job, self._new_id()
        end_ns = at_ns + job.step_ns(number)
        is_straggler = self._rank.rank == job.straggler
        lengths = {name: ms * MS * job.scale for name, ms in PHASES}
        if is_straggler:
            lengths["forward"] = round(lengths["forward"] * SLOWER)
            if job.is_slow(number):
                lengths["data_load"] += (end_ns - at_ns) * SPIKE // (SPIKE + 1)
        lengths["forward"] = round(lengths["forward"] * (0.99 + 0.02 * _share(step_id)))
        lengths["backward"] = (
            end_ns - at_ns - sum(length for name, length in lengths.items() if name != "backward")
        )
        phase_ns = at_ns
        for name, length in lengths.items():
            self._span(name, self._new_id(), step_id, phase_ns, phase_ns + length)
            phase_ns += length
        step = self._span("step", step_id, self._epoch_id, at_ns, end_ns, number % _EPOCH_STEPS)
        if self._rank.rank == job.failing and number == 20:
            step["otel"] = {"status": {"code": 2, "message": "loss is nan"}}
        loss = {
            "id": self._new_id(), "span_id": step_id, "name": "loss", "value_type": "float",
            "value": 2 + _share(self._id, number) / (1 + number), "attrs": {},
            "ts_ns": step["end_ns"] - 1, "kind": "point",
        }  # fmt: skip
        self._marks += [loss, overhead_mark(step_id, step["end_ns"], 12_000)]
        step["mark_ids"] = [mark["id"] for mark in self._marks[-2:]]
        self._steps += 1

    def _end_epoch(self, at_ns: int) -> None:
        if self._epoch >= 0:
            self._span("epoch", self._epoch_id, self._id, self._epoch_ns, at_ns, self._epoch)

    def close(self, at_ns: int) -> None:
        """End the epoch and the session."""
        self._end_epoch(at_ns)
        self._span("cirron.session", self._id, None, self._begun_ns, at_ns)

    def recover(self, at_ns: int) -> None:
        """Close the open scopes as the next process does; the unsealed records are lost."""
        self._spans, self._marks, self._steps = [], [], 0
        self.close(at_ns)
        for span in self._spans:
            span["attrs"] = {"incomplete": True}
            span["otel"] = {"status": {"code": 2, "message": INCOMPLETE}}

    def seal(self, at_ns: int) -> RankBatch:
        """Return a batch of all records since the last one."""
        self._batches += 1
        number = hashlib.blake2b(f"{self._key}/b{self._batches}".encode(), digest_size=10).digest()
        batch_id = batch_id_of(_id(self._key, "owner")[:12], number)
        created_ns = self._wall(at_ns) + 1_000_000
        otel: Record = {
            "session": self._id, "trace_id": self._id,
            "resource": {"attributes": {
                "service.name": "train", "cirron.run.id": self._job.run_id,
                "cirron.run.name": "simulated", "cirron.rank": self._rank.rank,
                "cirron.world_size": self._job.ranks, "process.pid": self._pid,
            }},
        }  # fmt: skip
        if self._running:
            otel["running"] = self._running
        batch = {
            "schema_version": 1, "sdk_version": SDK_VERSION, "batch_id": batch_id,
            "created_ns": created_ns,
            "spans": sorted(self._spans, key=lambda span: (span["end_ns"], span["id"])),
            "marks": sorted(self._marks, key=lambda mark: (mark["ts_ns"], mark["id"])),
            "snapshots": [], "otel": otel,
        }  # fmt: skip
        data = msgspec.json.encode(batch)
        if self._rank.budget is not None:
            stated = self._rank.budget.decide(data, created_ns)
            if stated:
                otel[SUMMARISED] = stated
                data = msgspec.json.encode(batch)
        sealed = SealedBatch(file_name(created_ns, batch_id), data)
        result = RankBatch(at_ns, sealed, len(self._spans), self._steps)
        self._spans, self._marks, self._running, self._steps = [], [], [], 0
        return result
