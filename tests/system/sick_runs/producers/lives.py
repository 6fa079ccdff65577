"""The processes of a run, with the units of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..case import Case
from ..plan import PAUSED
from ..records import Session


class Part(NamedTuple):
    """A segment of a unit of a rank."""

    name: str
    start: int
    end: int
    gpu: int | None


@dataclass(slots=True)
class Unit:
    """A unit of a rank."""

    place: int
    """Its place among all units of the rank."""
    number: int
    training: int
    epoch: int
    in_epoch: int
    """Its place in the epoch, from 0."""
    start: int
    end: int
    parts: list[Part]
    """The segments with a scope that take time."""
    after: list[Part]
    """The scopes that follow it."""

    @property
    def fetched(self) -> int:
        """The time at which its fetch has ended."""
        part = self.part("data_load")
        return self.start if part is None else part.end

    def part(self, name: str) -> Part | None:
        """Return a segment."""
        return next((each for each in self.parts if each.name == name), None)


@dataclass(slots=True)
class Life:
    """A process of a rank, with its units."""

    case: Case
    rank: int
    session: Session
    start: int
    end: int
    units: list[Unit]

    def epochs(self) -> Iterator[tuple[int, list[Unit]]]:
        """Yield the epochs of each training with their units."""
        some: list[Unit] = []
        for unit in self.units:
            if some and (unit.training, unit.epoch) != (some[0].training, some[0].epoch):
                yield some[0].epoch, some
                some = []
            some.append(unit)
        if some:
            yield some[0].epoch, some

    def mark(self, unit: Unit, scope: str) -> None:
        """Add the values of a unit as marks to its scope."""
        for name, values in self.case.values.items():
            value = float(values[self.rank, unit.place])
            self.session.mark(scope, name, value, unit.end)
        if self.case.has_ddp_times and (0 < unit.place <= 10 or unit.place % 100 == 0 < unit.place):
            [part] = [each for each in unit.parts if each.name == "backward"]
            own = int(self.case.times.own["backward"][self.rank, unit.place])
            waits = part.end - part.start - own
            self.session.mark(scope, "cirron.ddp.exposed_ns", waits, part.start + own)

    def peaks(self, unit: Unit) -> dict[str, int]:
        """Return the attributes of a unit with its peaks of device memory."""
        memory = self.case.memory
        if memory is None or not memory.is_device:
            return {}
        used = int(memory.used[self.rank, unit.place])
        return {
            "device": "cuda:0", "cuda.memory_peak_bytes": used - used // 20,
            "cuda.memory_reserved_peak_bytes": used,
        }  # fmt: skip

    def sample(self, unit: Unit, scope: str) -> None:
        """Add a sample of memory to a scope, as the sampler does."""
        memory = self.case.memory
        if memory is None:
            return
        used = int(memory.used[self.rank, unit.place])
        if memory.is_device:
            attrs = {
                "backend": "cuda", "device_id": 0, "allocator_reserved_bytes": used,
                "device_used_bytes": used, "device_total_bytes": memory.capacity,
            }  # fmt: skip
        else:
            attrs = {
                "backend": "cpu", "device_id": -1, "process_rss_bytes": used,
                "host_used_bytes": used, "host_total_bytes": memory.capacity,
            }  # fmt: skip
        self.session.mark(scope, "memory", used, unit.end, attrs=json.dumps(attrs))


def lives_of(case: Case, version: str, has_run: bool) -> Iterator[Life]:
    plan, times = case.plan, case.times
    lives = int(plan.lives.max()) + 1
    for rank in range(plan.ranks):
        units = list(_units(case, rank))
        for number in range(lives):
            of_life = [each for each in units if plan.lives[each.place] == number]
            if not of_life:
                continue
            session = Session(
                number * plan.ranks + rank, rank, f"host-{rank // 4}", version, has_run,
                case.world_size or plan.ranks, int(plan.skew[rank]),
            )  # fmt: skip
            start, end = int(times.first[rank]), int(times.last[rank])
            if number:
                start = int(times.end[PAUSED][rank, of_life[0].place])
            if number < lives - 1:
                end = max([of_life[-1].end, *(each.end for each in of_life[-1].after)])
                if case.first_death is not None:
                    session.cut, session.error = end, case.first_death
                    end += 1
            elif rank in case.deaths:
                session.cut, session.error = case.deaths[rank].at, case.deaths[rank].error
                end = max(end, session.cut + 1)  # it was open when the process died
            yield Life(case, rank, session, start, end, of_life)


def _units(case: Case, rank: int) -> Iterator[Unit]:
    plan, times = case.plan, case.times
    count = int(plan.counts[rank])
    starts = {name: times.start[name][rank].tolist() for name in times.start}
    ends = {name: times.end[name][rank].tolist() for name in times.start}
    device = {name: times.device[name][rank].tolist() for name in times.device}
    inside = [name for name in plan.order if not name.startswith("~")]
    units = times.unit_start[rank].tolist(), times.unit_end[rank].tolist()
    epochs, numbers = plan.epochs.tolist(), plan.numbers.tolist()
    training = [0] * plan.units if plan.training is None else plan.training.tolist()
    firsts: dict[tuple[int, int], int] = {}
    for *key, number in zip(training, epochs, numbers, strict=True):
        firsts[*key] = min(number, firsts.get((*key,), number))
    for place in range(count):
        parts = [
            Part(name, starts[name][place], ends[name][place],
                 device[name][place] if name in device else None)
            for name in inside
            if ends[name][place] > starts[name][place]
        ]  # fmt: skip
        after = [
            Part(name, starts[name][place], ends[name][place], None)
            for name in plan.after
            if ends[name][place] > starts[name][place]
        ]
        in_epoch = numbers[place] - firsts[training[place], epochs[place]]
        yield Unit(place, numbers[place], training[place], epochs[place], in_epoch,
                   units[0][place], units[1][place], parts, after)  # fmt: skip
