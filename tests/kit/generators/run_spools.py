"""Spools of seeded runs: of this SDK, of cirron-sdk and of other producers, and odd ones.

A run has one to four ranks. Some runs are restarted, some are killed, and some spools contain
files that no reader expects. The same seed gives the same files.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cirron_otel.core.records.step_summaries import INSIDE, inside_rows, text_of
from tests.kit.generators.trees import random_spool
from tests.kit.spools.made import EPOCH_NS, encoded, made, mark, span, span_id

Files = list[tuple[str, bytes]]
_PER_PROCESS = 1 << 32
"""The distance between the first ids of two processes."""
_US = 1_000
_OURS, _THEIRS = "0.3.0+cirron-otel.0.1.0", "0.3.0"
_ERROR = {"status": {"code": 2, "message": "ValueError: planted"}}


@dataclass
class _Process:
    """A process of a run: its clock, and the records that it has made."""

    chance: random.Random
    number: int
    rank: int | None
    now: int
    sdk_version: str
    name: str | None = None
    """The name of the run, of a session of this SDK."""
    spans: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    last: int = 0

    def new_id(self) -> int:
        self.last += 1
        return self.number * _PER_PROCESS + self.last

    def spend(self, least_us: int, most_us: int) -> None:
        """Let time pass."""
        self.now += self.chance.randint(least_us, most_us) * _US

    @contextlib.contextmanager
    def scope(self, name: str, parent: int | None, **changes: Any) -> Iterator[int]:
        """A scope, recorded when it ends, as both SDKs do."""
        number, begun = self.new_id(), self.now
        record = span(number, parent, name=name, index=None, start_ns=begun, rank=self.rank,
                      pid=100 + self.number, thread_id=7 + self.number)  # fmt: skip
        yield number
        self.spans.append(record | {"end_ns": self.now} | changes)

    def phase(self, name: str, parent: int, least_us: int, most_us: int, **changes: Any) -> int:
        """A scope without children."""
        with self.scope(name, parent, **changes) as number:
            self.spend(least_us, most_us)
        return number

    def mark(self, owner: int, name: str, value: Any, **changes: Any) -> None:
        kind = "int" if isinstance(value, int) else "float"
        record = mark(self.new_id(), owner, name=name, value=value, value_type=kind,
                      ts_ns=self.now, **changes)  # fmt: skip
        self.marks.append(record)

    def files(self) -> Files:
        """Return the batch files, each with some of the records in their order."""
        count = self.chance.randint(1, 4)
        size = len(self.spans) // count + 1
        marks_of: dict[str, list[dict[str, Any]]] = {}
        for each in self.marks:
            marks_of.setdefault(each["span_id"], []).append(each)
        files, end_ns = [], self.now
        for part in range(count):
            spans = self.spans[part * size : (part + 1) * size]
            marks = [mark for each in spans for mark in marks_of.pop(each["id"], ())]
            if part == count - 1:  # those of a scope that was never recorded
                marks += [mark for some in marks_of.values() for mark in some]
            for each in spans:
                each["mark_ids"] = [m["id"] for m in marks if m["span_id"] == each["id"]]
            end_ns = spans[-1]["end_ns"] if spans else end_ns
            batch = made(self.number * 10 + part, spans=spans, marks=marks,
                         sdk_version=self.sdk_version, created_ns=end_ns)  # fmt: skip
            files.append((_file_name(batch), encoded(batch | self._session())))
        return files

    def _session(self) -> dict[str, Any]:
        if self.name is None:
            return {}
        attributes = {
            "host.name": f"host-{self.number % 2}", "service.name": "training",
            "cirron.run.id": f"{len(self.name):032x}", "cirron.run.name": self.name,
            "cirron.data_loader.workers": self.number % 3, "cirron.cpu.limit": 2.0,
            "cirron.model.compiled": bool(self.number % 2), "cirron.optimizer.name": "AdamW",
            "cirron.data_loader.batch_size": [None, 8, "8", [8], {"of": 8}][self.number % 5],
        }  # fmt: skip
        session = span_id(self.number * _PER_PROCESS + 1)
        resource = {"attributes": attributes}
        return {"otel": {"session": session, "trace_id": session, "resource": resource}}


def _file_name(batch: dict[str, Any]) -> str:
    return f"{batch['created_ns']:020d}-{batch['batch_id']}.json"


# Processes, one kind for each producer and way to record.


def _ours(process: _Process, *, is_killed: bool = False, first_step: int = 0) -> None:
    """Sessions of this SDK: epochs, steps with phases and micro steps, evaluations, checkpoints."""
    chance, with_device = process.chance, process.chance.random() < 0.4
    number = first_step
    with process.scope("cirron.session", None) as session:
        process.spend(100, 5000)
        for epoch in range(chance.randint(1, 3)):
            with process.scope("epoch", session, index=epoch) as of_epoch:
                for index in range(chance.randint(1, 12)):
                    attrs = {"epoch": epoch, "global_step": number}
                    _step(process, of_epoch, index, attrs, with_device=with_device)
                    number += 1
                if chance.random() < 0.4:
                    with process.scope("evaluation", of_epoch) as evaluation:
                        process.phase("data_load", evaluation, 10, 100)
                        process.phase("forward", evaluation, 100, 900)
                        process.mark(evaluation, "eval_loss", chance.random())
                if chance.random() < 0.3:
                    process.phase("save_checkpoint", of_epoch, 500, 9000)
                _overhead(process, of_epoch)
        _overhead(process, session)
    last = process.spans[-1]
    if is_killed:
        process.spans = process.spans[: chance.randint(1, len(process.spans) - 1)]
    elif chance.random() < 0.15:
        last["otel"] = _ERROR


def _step(
    process: _Process, epoch: int, index: int, attrs: dict[str, Any], *, with_device: bool
) -> None:
    chance = process.chance
    slow = 20 if chance.random() < 0.05 else 1
    peak = chance.randrange(10**9) if with_device else None
    with process.scope("step", epoch, index=index, attrs=attrs, memory_peak_bytes=peak) as step:
        process.phase("data_load", step, 50, 400 * slow)
        if chance.random() < 0.3:
            process.phase("h2d", step, 10, 40)
        micro = chance.choice([1, 1, 1, 2])
        for part in range(micro):
            with contextlib.ExitStack() as stack:
                above = step
                if micro > 1:
                    above = stack.enter_context(process.scope("micro_step", step, index=part))
                gpu = {"gpu_ns": chance.randrange(900) * _US} if with_device else {}
                forward = process.phase("forward", above, 100, 700, attrs={"mode": "train"}, **gpu)
                process.spend(0, 60)
                process.phase("backward", above, 100, 900, **gpu)
                if chance.random() < 0.2:
                    process.mark(forward, "cirron.overhead_ns", chance.randrange(9000),
                                 kind="summary")  # fmt: skip
        if chance.random() < 0.2:
            process.phase("mine", step, 10, 500, attrs={"kind": "own"})
        process.phase("optimizer_step", step, 50, 300)
        process.mark(step, "loss", chance.random())
        if chance.random() < 0.01:
            process.marks[-1] |= {"value": None, "value_nonfinite": "nan"}
        if chance.random() < 0.2:
            _sample(process, step)
        _overhead(process, step)
    process.spend(0, 80)


def _overhead(process: _Process, scope: int) -> None:
    """The time of tracing in some of the scopes, which are inside each other."""
    own = random.Random(scope)  # the seeds of other records stay the same
    if own.random() < 0.4:
        process.mark(scope, "cirron.overhead_ns", own.randrange(9000), kind="summary")


def _sample(process: _Process, scope: int) -> None:
    """Marks of the sampler on a scope."""
    chance = process.chance
    process.mark(scope, "process.cpu.utilization", chance.random())
    process.mark(scope, "hw.temperature", chance.randrange(30, 90), attrs={"hw.id": "cuda:0"})
    reserved = chance.randrange(10**9)
    sizes = {"allocator_reserved_bytes": reserved, "device_used_bytes": reserved + 10**6,
             "device_total_bytes": 2 * 10**9}  # fmt: skip
    device = chance.choice([{"backend": "cuda", "device_id": 0, **sizes}, {"device_id": -1}])
    process.mark(scope, "memory", chance.randrange(reserved + 1), attrs=device)
    if chance.random() < 0.1:
        limit = {"limit": "cuda:0", "limit_bytes": 2 * 10**9, "share": 0.9, "threshold": 0.85}
        process.mark(scope, "memory.warning", reserved, attrs=limit)


def _summarised(process: _Process) -> None:
    """A sampled session of this SDK: most steps are summaries of what was inside."""
    _ours(process)
    steps = [each for each in process.spans if each["name"] == "step"]
    for step in steps:
        if process.chance.random() < 0.7:
            inside = [each for each in process.spans if each["parent_id"] == step["id"]]
            below = {each["id"] for each in inside}
            process.spans = [
                each for each in process.spans
                if each["parent_id"] not in below and each["id"] not in below
            ]  # fmt: skip
            kept = {each["id"] for each in process.spans}
            process.marks = [each for each in process.marks if each["span_id"] in kept]
            step["attrs"] = step["attrs"] | {INSIDE: text_of(inside_rows(step, inside))}


def _hooks(process: _Process) -> None:
    """cirron-sdk's hooks: loading is an attribute; an epoch without optimizer evaluates."""
    for epoch in range(process.chance.randint(2, 6)):
        trains = epoch % 2 == 0
        with process.scope("epoch", None, index=epoch // 2) as of_epoch:
            for index in range(process.chance.randint(1, 8) if trains else 1):
                begun = process.now
                process.spend(100, 4000)
                with process.scope("step", of_epoch, index=index) as step:
                    took = {"data_load_ns": process.now - begun}
                    process.phase("data_load", step, 0, 10, attrs=took)
                    process.phase("forward", step, 50, 500, attrs={"mode": "train"})
                    if trains:
                        process.phase("backward", step, 50, 500)
                        process.phase("optimizer_step", step, 10, 90)
                        process.mark(step, "loss", process.chance.random())


def _batches(process: _Process) -> None:
    """cirron-sdk's `ci.batches`: each step is nested in the previous step, and has a `batch`."""
    above, scopes = None, contextlib.ExitStack()
    with scopes:
        for index in range(process.chance.randint(2, 30)):
            above = scopes.enter_context(process.scope("step", above, index=index))
            attrs = {"data_load_ns": process.chance.randrange(50_000)}
            with process.scope("batch", above, index=index, attrs=attrs) as batch:
                for name in ("forward", "backward", "optimizer_step"):
                    process.phase(name, batch, 20, 300)
                process.mark(batch, "loss", process.chance.random())


def _manual(process: _Process) -> None:
    """cirron-sdk with manual scopes: phases in `batch`, and validations, or other units."""
    unit = process.chance.choice(["batch", "train_step", "request"])
    for index in range(process.chance.randint(1, 20)):
        with process.scope(unit, None, index=index) as batch:
            for name in ("data_load", "forward", "backward", "optimizer_step"):
                if unit != "request" or name == "forward":
                    process.phase(name, batch, 20, 300)
        if process.chance.random() < 0.1:
            process.phase("validation", batch, 100, 3000)


def _foreign(process: _Process) -> None:
    """A service's spans: a repeated scope with children below a root, with overlaps."""
    with process.scope("pipeline", None) as root:
        for index in range(process.chance.randint(1, 25)):
            with process.scope(f"item {index % 3}", root, attrs={"item": index}) as item:
                process.phase("fetch", item, 10, 900)
                process.phase("transform", item, 10, 500, attrs={"rows": index * 10})
            if process.chance.random() < 0.3:
                process.now -= 200 * _US  # the next one overlaps


_PRODUCERS: tuple[tuple[str, Callable[[_Process], None], str], ...] = (
    ("ours", _ours, _OURS),
    ("hooks", _hooks, _THEIRS),
    ("ours", _summarised, _OURS),
    ("batches", _batches, _THEIRS),
    ("ours", _ours, _OURS),
    ("manual", _manual, _THEIRS),
    ("foreign", _foreign, "otlp"),
)


def run_spool(seed: int) -> Files:
    """Return the files of a spool. One seed in eight gives a random tree instead of a run."""
    chance = random.Random(seed)
    kind = seed % (len(_PRODUCERS) + 1)
    if kind == len(_PRODUCERS):
        return random_spool(seed)
    name, record, version = _PRODUCERS[kind]
    files: Files = []
    ranks = chance.choice([1, 1, 2, 4])
    restarts = chance.choice([0, 0, 1])
    for rank in range(ranks):
        now = EPOCH_NS + chance.randrange(5000) * _US
        for life in range(restarts + 1):
            number = 1 + rank + life * ranks
            process = _Process(chance, number, rank if ranks > 1 or chance.random() < 0.8 else None,
                               now, version, "run" if name == "ours" else None)  # fmt: skip
            if record is _ours:
                _ours(process, is_killed=life < restarts or chance.random() < 0.1,
                      first_step=3 * life)  # fmt: skip
            else:
                record(process)
            files += process.files()
            now = process.now + chance.randrange(1, 9) * 10**9
    return _with_odd_files(chance, files) if chance.random() < 0.2 else files


def _with_odd_files(chance: random.Random, files: Files) -> Files:
    """Damage a file, lose one, repeat one, or add one of another version."""
    at = chance.randrange(len(files))
    name, data = files[at]
    kind = chance.choice(["torn", "lost", "twice", "version", "unfinished", "foreign"])
    if kind == "torn":
        return [*files[:at], (name, data[: len(data) // 2]), *files[at + 1 :]]
    if kind == "lost" and len(files) > 1:
        return [*files[:at], *files[at + 1 :]]
    if kind == "twice":
        batch = json.loads(data)
        batch["batch_id"] = f"{1 << 120:032x}"
        return [*files, (_file_name(batch), encoded(batch))]
    if kind == "version":
        batch = json.loads(data) | {"schema_version": 99}
        return [*files[:at], (name, encoded(batch)), *files[at + 1 :]]
    if kind == "unfinished":
        return [*files, (f"{name}.tmp", data[:100])]
    return [*files, ("notes.json", b'{"a": 1}')]
