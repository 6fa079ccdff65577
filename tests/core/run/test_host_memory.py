"""The memory of processes on their hosts, from the sampler's marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.records.memory_marks import memory_mark
from cirron_otel.core.records.rows import IndexedMark, IndexedSpan
from cirron_otel.core.run.figures.host_memory import HostMemory, host_memory
from cirron_otel.core.run.figures.memory import MemorySample
from cirron_otel.core.run.opening import open_run
from tests.kit.spools.made import encoded, made, mark, span

from .spools import written

_GIB = 2**30


def _sample(no: int, at: int, value: int, device_id: int = -1, **attributes: Any) -> MemorySample:
    backend = "cpu" if device_id < 0 else "cuda"
    attributes |= {"device_id": device_id, "backend": backend}
    of_memory = IndexedMark(name="memory", value=value, ts_ns=at, attrs=attributes)
    memory = memory_mark(of_memory.name, value, attributes)
    assert memory is not None
    return MemorySample(no, of_memory, memory, IndexedSpan(name="step", rank=0, pid=1))


def _one(samples: list[MemorySample]) -> HostMemory:
    (found,) = host_memory(samples, 400, {1})
    return found


def test_samples_of_devices_have_the_memory_of_the_process_once() -> None:
    samples = [
        _sample(no, at, 5, device, process_rss_bytes=at * _GIB)
        for no, (at, device) in enumerate(((2, 0), (2, 1), (1, 0), (1, 1)))
    ]
    found = _one(samples)
    assert [(each.begin_ns, each.middle) for each in found.points] == [(1, _GIB), (2, 2 * _GIB)]
    assert (found.rank, found.peak_bytes) == (0, 2 * _GIB)


def test_samples_of_other_recorders_have_the_memory_as_their_value() -> None:
    found = _one([_sample(0, 1, 3 * _GIB)])
    assert (found.peak_bytes, found.limit_bytes, found.used_bytes) == (3 * _GIB, None, None)


@pytest.mark.parametrize(
    ("host", "group", "expected"),
    [
        ((90, 100), (20, 24), (24, 20)),
        ((98, 100), (20, 24), (100, 98)),
        ((90, 100), (20, None), (100, 90)),
        (None, (20, 24), (24, 20)),
    ],
)
def test_limit_with_the_least_memory_left_counts(
    host: tuple[int, int] | None, group: tuple[int, int | None], expected: tuple[int, int]
) -> None:
    attributes = {"cgroup_used_bytes": group[0]}
    if group[1] is not None:
        attributes["cgroup_limit_bytes"] = group[1]
    if host is not None:
        attributes |= {"host_used_bytes": host[0], "host_total_bytes": host[1]}
    found = _one([_sample(0, 1, 5, process_rss_bytes=5, **attributes)])
    assert (found.limit_bytes, found.used_bytes) == expected


def _of(pid: int | None, sizes: list[int], rank: int | None = None) -> list[MemorySample]:
    """Return samples at odd times in a process with an odd id, and at even times in the others.

    `pid` is None for samples on a scope that is not recorded.
    """
    scope = None if pid is None else IndexedSpan(name="step", rank=rank, pid=pid)
    first = (pid or 0) % 2
    return [_sample(no, 2 * no + first, 5, process_rss_bytes=each)._replace(scope=scope)
            for no, each in enumerate(sizes)]  # fmt: skip


@pytest.mark.parametrize(
    ("of_units", "expected"),
    [
        ({1}, [[5, 6, 7]]),  # a child, or the worker of a loader, has no units
        ({1, 2}, [[5, 6, 7], [1, 1, 1]]),
        (set(), [[5, 6, 7], [1, 1, 1]]),
        ({9}, [[5, 6, 7], [1, 1, 1]]),
    ],
)
@pytest.mark.parametrize("rank", [None, 0])
def test_processes_of_a_rank_are_apart(
    of_units: set[int], expected: list[list[int]], rank: int | None
) -> None:
    samples = _of(1, [5, 6, 7], rank) + _of(2, [1, 1, 1], rank) + _of(None, [3])
    found = list(host_memory(samples, 400, of_units))
    assert [[point.middle for point in each.points] for each in found] == expected
    assert [each.rank for each in found] == [rank] * len(expected)


@pytest.mark.parametrize(("pids", "sizes"), [([1], [3, 5, 3, 6]), ([], [3, 3])])
def test_samples_on_scopes_without_a_record_belong_to_the_only_process(
    pids: list[int], sizes: list[int]
) -> None:
    samples = [each for pid in pids for each in _of(pid, [5, 6])]
    (found,) = host_memory(samples + _of(None, [3, 3]), 400, pids)
    assert [each.middle for each in found.points] == sizes


def test_a_child_with_a_session_does_not_change_the_memory_of_the_training(tmp_path: Path) -> None:
    spans, marks = [], []
    for number in range(20):
        pid = 1 + number % 2
        place = 10 + number
        attrs = {
            "process_rss_bytes": (number if pid == 1 else 500) * _GIB,
            "device_id": -1,
            "backend": "cpu",
        }
        marks.append(mark(100 + number, place, name="memory", value=5, value_type="int",
                          attrs=attrs))  # fmt: skip
        spans.append(span(place, pid, name="step" if pid == 1 else "work", pid=pid,
                          mark_ids=[marks[-1]["id"]]))  # fmt: skip
    spans += [span(pid, name="cirron.session", pid=pid) for pid in (1, 2)]
    batch = made(1, spans=spans, marks=marks)
    name = f"{batch['created_ns']:020d}-{batch['batch_id']}.json"
    reader = written(tmp_path, [(name, encoded(batch))])
    for in_columns in (False, True):
        with open_run(reader, reader, in_columns=in_columns) as run:
            (found,) = run.host_memory(400)
        assert [each.middle for each in found.points] == [2 * no * _GIB for no in range(10)]
