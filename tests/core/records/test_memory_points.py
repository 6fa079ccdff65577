"""The points of a mark: a vector for each rule of docs/metrics.md, "Memory"; generated marks."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.records.memory_marks import memory_mark
from cirron_otel.core.records.memory_points import INSTRUMENTS, MemoryPoint, memory_points
from cirron_otel.exactjson import Raw
from tests.kit.spools.metric_recordings import (
    RECORDINGS,
    is_healthy,
    mark_of,
    records_of,
    required,
)

AT = 1_795_197_916_403_947_776
GPU = {"hw.id": "cuda:0"}
READINGS = {
    "allocator_reserved_bytes": 600,
    "allocator_active_bytes": 450,
    "allocator_inactive_bytes": 150,
    "device_used_bytes": 700,
    "device_free_bytes": 300,
    "device_total_bytes": 1000,
}
ALL = [
    ("hw.gpu.memory.usage", GPU, 700),
    ("hw.gpu.memory.limit", GPU, 1000),
    ("cirron.memory.allocator", GPU | {"cirron.memory.kind": "allocated"}, 400),
    ("cirron.memory.allocator", GPU | {"cirron.memory.kind": "reserved"}, 600),
    ("cirron.memory.allocator", GPU | {"cirron.memory.kind": "active"}, 450),
    ("cirron.memory.allocator", GPU | {"cirron.memory.kind": "inactive"}, 150),
    ("cirron.memory.gap", GPU | {"cirron.memory.kind": "device"}, 100),
    ("cirron.memory.gap", GPU | {"cirron.memory.kind": "allocator"}, 200),
]
CUDA = {"collector": "stormlog.cuda_tracker", "device_id": 0}
Plain = list[tuple[str, dict[str, str], float]]


def plain(points: list[MemoryPoint]) -> Plain:
    assert {point.time_ns for point in points} <= {AT}
    return [(point.instrument.name, dict(point.attributes), point.value) for point in points]


def mark(name: str, value: Any, **attrs: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "attrs": attrs, "ts_ns": AT}


def of_stormlog(event_type: str = "sample", value: Any = 400, **attrs: Any) -> Plain:
    return plain(memory_points(mark(f"stormlog.{event_type}", value, **attrs)))


def without(*fields: str) -> dict[str, int]:
    return {key: value for key, value in READINGS.items() if key not in fields}


def health(status: str, *fields: str, is_partial: bool = True) -> dict[str, Any]:
    return {
        "collector_health_status": status,
        "telemetry_partial": is_partial,
        "collector_partial_fields": list(fields),
    }


class TestStormlog:
    def test_a_sample_has_all_readings(self) -> None:
        assert of_stormlog(**CUDA, **READINGS) == ALL

    @pytest.mark.parametrize(
        "event_type",
        ["start", "stop", "peak", "warning", "critical", "error", "cleanup", "phase_enter",
         "phase_exit", "collector_degraded", "collector_recovered", "other"],
    )  # fmt: skip
    def test_other_event_types_yield_no_points(self, event_type: str) -> None:
        assert of_stormlog(event_type, **CUDA, **READINGS, allocator_change_bytes=8) == []

    @pytest.mark.parametrize(("event_type", "change"), [("allocation", 64), ("deallocation", -64)])
    def test_allocator_change_is_counted_on_allocation_and_deallocation(
        self, event_type: str, change: int
    ) -> None:
        points = of_stormlog(event_type, **CUDA, **READINGS, allocator_change_bytes=change)
        assert points == [("cirron.memory.allocator.change", GPU, change)]

    def test_the_change_that_a_sample_repeats_is_not_counted(self) -> None:
        assert of_stormlog(**CUDA, **READINGS, allocator_change_bytes=64) == ALL

    def test_null_reading_yields_no_point(self) -> None:
        attrs = CUDA | READINGS | {"device_total_bytes": None, "allocator_active_bytes": None}
        assert of_stormlog(**attrs) == [each for each in ALL if each[2] not in (1000, 450)]

    @pytest.mark.parametrize("missing", list(READINGS))
    def test_absent_reading_yields_no_point(self, missing: str) -> None:
        names = [each[0] for each in of_stormlog(**CUDA, **without(missing))]
        expected = [each[0] for each in ALL]
        lost = {
            "allocator_reserved_bytes": [3, 6, 7], "allocator_active_bytes": [4],
            "allocator_inactive_bytes": [5], "device_used_bytes": [0, 6],
            "device_free_bytes": [], "device_total_bytes": [1],
        }[missing]  # fmt: skip
        assert names == [name for at, name in enumerate(expected) if at not in lost]

    def test_a_zero_is_a_reading(self) -> None:
        zeros = dict.fromkeys(READINGS, 0)
        assert of_stormlog(value=0, **CUDA, **zeros) == [(*each[:2], 0) for each in ALL]

    def test_without_a_value(self) -> None:
        names = [each[:2] for each in ALL if each[2] not in (400, 200)]
        assert [each[:2] for each in of_stormlog(value=None, **CUDA, **READINGS)] == names

    @pytest.mark.parametrize("bad", [True, "12", math.nan, math.inf, [1], Raw("-0")])
    def test_only_numbers_are_readings(self, bad: Any) -> None:
        assert of_stormlog(value=bad, **CUDA) == []

    def test_the_fields_that_a_healthy_collector_cannot_read(self) -> None:
        metadata = health("healthy", "device_total_bytes", "device_free_bytes")
        points = of_stormlog(**CUDA, **READINGS, metadata=metadata)
        assert points == [each for each in ALL if each[0] != "hw.gpu.memory.limit"]
        metadata = health("healthy", "allocator_allocated_bytes")
        points = of_stormlog(**CUDA, **READINGS, metadata=metadata)
        assert points == [each for each in ALL if each[2] not in (400, 200)]

    @pytest.mark.parametrize(
        "metadata",
        [health("unhealthy"), health("unhealthy", "device_free_bytes"), health("degraded"),
         health("degraded", "device_free_bytes"), health("degraded", is_partial=False),
         health("healthy"), {"telemetry_partial": True}, {"collector_health_status": "lost"}],
    )  # fmt: skip
    @pytest.mark.parametrize("event_type", ["sample", "allocation"])
    def test_a_degraded_collector_and_one_that_reads_nothing(
        self, event_type: str, metadata: dict[str, Any]
    ) -> None:
        attrs = CUDA | READINGS | {"allocator_change_bytes": 1, "metadata": metadata}
        assert of_stormlog(event_type, **attrs) == []

    def test_a_healthy_collector(self) -> None:
        metadata = health("healthy", is_partial=False)
        assert of_stormlog(**CUDA, **READINGS, metadata=metadata) == ALL

    @pytest.mark.parametrize(
        "collector", ["stormlog.cpu_tracker", "stormlog.tensorflow.memory_tracker"]
    )
    def test_the_cpu_has_the_resident_set_and_no_allocator(self, collector: str) -> None:
        attrs = {"collector": collector, "device_id": -1, "allocator_reserved_bytes": 400}
        assert of_stormlog(**attrs, device_used_bytes=400) == [("process.memory.usage", {}, 400)]
        change = of_stormlog("allocation", **attrs, allocator_change_bytes=8)
        assert change == [("cirron.memory.allocator.change", {}, 8)]

    @pytest.mark.parametrize(
        ("collector", "hw_id"),
        [("stormlog.cuda_tracker", "cuda:3"), ("stormlog.rocm_tracker", "cuda:3"),
         ("stormlog.mps_tracker", "mps:3"), ("stormlog.tensorflow.memory_tracker", "gpu:3"),
         ("legacy.unknown", "gpu:3")],
    )  # fmt: skip
    def test_the_name_of_the_device(self, collector: str, hw_id: str) -> None:
        points = of_stormlog(collector=collector, device_id=3, device_used_bytes=1)
        assert points[0] == ("hw.gpu.memory.usage", {"hw.id": hw_id}, 1)

    @pytest.mark.parametrize("collector", ["cuda", "rocm", "mps", "tensorflow.memory"])
    def test_points_and_reports_name_the_device_identically(self, collector: str) -> None:
        attrs = {"collector": f"stormlog.{collector}_tracker", "device_id": 3}
        points = of_stormlog(**attrs, **READINGS)
        in_report = memory_mark("stormlog.sample", 400, attrs)
        assert in_report is not None
        assert {attributes["hw.id"] for _, attributes, _ in points} == {in_report.device}

    def test_an_unknown_device(self) -> None:
        points = of_stormlog(collector="legacy.unknown", device_id=-1, device_used_bytes=400)
        assert points == [("cirron.memory.allocator", {"cirron.memory.kind": "allocated"}, 400)]


class TestSampler:
    def test_a_device(self) -> None:
        attrs = {"backend": "cuda", "device_id": 0, "process_rss_bytes": 50, "host_used_bytes": 9}
        points = plain(memory_points(mark("memory", 400, **attrs, **READINGS)))
        assert points == [*ALL, ("process.memory.usage", {}, 50)]

    @pytest.mark.parametrize("resident", [{}, {"process_rss_bytes": 400}])
    def test_the_cpu(self, resident: dict[str, int]) -> None:
        attrs = {"backend": "cpu", "device_id": -1, "cgroup_used_bytes": 5} | resident
        points = plain(memory_points(mark("memory", 400, **attrs)))
        assert points == [("process.memory.usage", {}, 400)]

    def test_the_other_marks(self) -> None:
        assert plain(memory_points(mark("process.cpu.utilization", 0.5))) == [
            ("process.cpu.utilization", {}, 0.5)
        ]
        for name, more in (
            ("hw.gpu.utilization", {}),
            ("hw.temperature", {"hw.type": "gpu"}),
            ("hw.power", {"hw.type": "gpu"}),
        ):
            points = plain(memory_points(mark(name, 41, **{"hw.id": "cuda:1"})))
            assert points == [(name, {"hw.id": "cuda:1"} | more, 41)]

    @pytest.mark.parametrize(
        "other",
        [mark("memory", 5), mark("memory", 5, backend=7), mark("hw.power", 5),
         mark("hw.power", None, **{"hw.id": "cuda:0"}), mark("memory.warning", 5, limit="host"),
         mark("loss", 0.5), mark("stormlog.", 5), {"name": "memory"}, {},
         mark("memory", 5, backend="cpu") | {"ts_ns": "now"},
         mark("memory", 5, backend="cpu") | {"ts_ns": -1}, {"name": "memory", "attrs": None}],
    )  # fmt: skip
    def test_other_marks_yield_no_memory_points(self, other: dict[str, Any]) -> None:
        assert memory_points(other) == []


def test_names_are_unique() -> None:
    assert len({instrument.name for instrument in INSTRUMENTS}) == len(INSTRUMENTS)


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings(name: str) -> None:
    records = records_of(RECORDINGS[name])
    points = [
        (record["session_id"].replace("-", ""), point)
        for record in records
        for point in memory_points(mark_of(record))
    ]
    expected = required(records)
    found: dict[Any, list[Any]] = {}
    for session, point in points:
        key = session, point.instrument.name, tuple(sorted(point.attributes))
        found.setdefault(key, []).append((point.time_ns, point.value))
    assert found == expected
    assert all(len({time for time, _ in series}) == len(series) for series in found.values())
    samples = sum(record["event_type"] == "sample" and is_healthy(record) for record in records)
    assert samples
    for metric in ("hw.gpu.memory.usage", "process.memory.usage"):
        counts = [len(series) for (_, each, _), series in found.items() if each == metric]
        assert sum(counts) in (0, samples)


numbers = st.one_of(st.none(), st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.text())


@given(
    st.sampled_from(["sample", "allocation", "deallocation", "peak", "start"]),
    numbers,
    st.dictionaries(st.sampled_from([*READINGS, "allocator_change_bytes"]), numbers),
    st.sampled_from([0, 3, -1, None]),
    st.sets(st.sampled_from([*READINGS, "allocator_allocated_bytes"])),
    st.sampled_from([None, "healthy", "degraded", "unhealthy"]),
)
def test_every_point_is_a_reading_of_its_mark(
    event: str, value: Any, readings: dict[str, Any], device: int | None, partial: set[str],
    status: str | None,
) -> None:  # fmt: skip
    partial = set() if status is None else partial
    metadata = {} if status is None else health(status, *partial, is_partial=bool(partial))
    attrs = {"collector": "stormlog.cuda_tracker", "device_id": device, "metadata": metadata}
    points = memory_points(mark(f"stormlog.{event}", value, **readings, **attrs))
    known = {
        field: number
        for field, number in {"allocator_allocated_bytes": value, **readings}.items()
        if type(number) in (int, float) and math.isfinite(number) and field not in partial
    }
    allowed = set(known.values())
    for whole, part in (
        ("device_used_bytes", "allocator_reserved_bytes"),
        ("allocator_reserved_bytes", "allocator_allocated_bytes"),
    ):
        if whole in known and part in known:
            allowed.add(known[whole] - known[part])
    assert all(point.time_ns == AT and point.value in allowed for point in points)
    assert len({point[:3] for point in points}) == len(points)
    is_read = status in (None, "healthy")
    if event in ("peak", "start") or not is_read:
        assert points == []
    if event == "sample" and is_read:
        allocator = [each for each in points if each.instrument.name == "cirron.memory.allocator"]
        fields = [field for field in known if field.startswith("allocator_")]
        assert len(allocator) == len(set(fields) - {"allocator_change_bytes"})
