"""The memory of processes on their hosts, from the sampler's marks."""

from __future__ import annotations

from typing import Any

import pytest

from cirron_otel.core.records.memory_marks import memory_mark
from cirron_otel.core.records.rows import IndexedMark, IndexedSpan
from cirron_otel.core.run.figures.host_memory import HostMemory, host_memory
from cirron_otel.core.run.figures.memory import MemorySample

_GIB = 2**30


def _sample(no: int, at: int, value: int, device_id: int = -1, **attributes: Any) -> MemorySample:
    backend = "cpu" if device_id < 0 else "cuda"
    attributes |= {"device_id": device_id, "backend": backend}
    mark = IndexedMark(name="memory", value=value, ts_ns=at, attrs=attributes)
    memory = memory_mark(mark.name, value, attributes)
    assert memory is not None
    return MemorySample(no, mark, memory, IndexedSpan(name="step", rank=0))


def _one(samples: list[MemorySample]) -> HostMemory:
    (found,) = host_memory(samples, 400)
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
