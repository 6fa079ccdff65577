"""Generated captures: threads, ranks, equal times, mismatched exits, and odd JSON types."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

EVENT_TYPES = (
    "sample", "sample", "allocation", "peak", "warning", "critical", "error", "start", "stop",
    "collector_degraded", "collector_recovered", "cleanup",
)  # fmt: skip
CAPABILITIES = {
    "backend": "cpu",
    "telemetry_collector": "stormlog.cpu_tracker",
    "sampling_source": "legacy",
    "supports_allocator_allocated": True,
    "supports_allocator_reserved": True,
    "supports_allocator_active": True,
    "supports_allocator_inactive": True,
    "supports_device_used": True,
    "supports_device_free": True,
    "supports_device_total": True,
    "supports_native_allocator_history": False,
    "supports_fragmentation_analysis": False,
    "supports_allocator_attribution": True,
    "supports_bounded_profiling": False,
}
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**70, -(2**70), 1.0, 1.5, "", " ", "x", "5", [], ["x"], {},
    {"a": None}, "é", "\ud800",
)  # fmt: skip


def record(random_: random.Random, version: int = 3, **fields: Any) -> dict[str, Any]:
    """Return a valid record of schema version 2, 3 or 4."""
    allocated = random_.randrange(10)
    values: dict[str, Any] = {
        "schema_version": version,
        "session_id": random_.choice("AB"),
        "timestamp_ns": random_.randrange(12),
        "event_type": random_.choice(EVENT_TYPES),
        "collector": "stormlog.cpu_tracker",
        "sampling_interval_ms": 50,
        "pid": random_.randrange(3),
        "host": random_.choice(("h1", "h2")),
        "job_id": random_.choice((None, "job")),
        "rank": random_.randrange(2),
        "local_rank": 0,
        "world_size": 2,
        "device_id": random_.choice((-1, 0)),
        "allocator_allocated_bytes": allocated,
        "allocator_reserved_bytes": allocated,
        "allocator_active_bytes": random_.choice((None, 3)),
        "allocator_inactive_bytes": None,
        "allocator_change_bytes": random_.randrange(-3, 3),
        "device_used_bytes": allocated,
        "device_free_bytes": None,
        "device_total_bytes": random_.choice((None, 100)),
        "context": random_.choice((None, "", "text")),
        "metadata": dict(random_.choice(({}, {"oom_reason": "x"}, {"oom_dump_path": 1}))),
    }
    if random_.random() < 0.3:
        values["metadata"]["origin_thread_id"] = random_.choice((1, 2, 3, "1", None, True))
    if random_.random() < 0.3:
        scope = f"{values['session_id']}:{random_.randrange(5)}"
        values["metadata"]["origin_phase_scope_id"] = random_.choice((scope, scope, 5, None))
    if version == 4:
        values["metadata"]["memory_capabilities"] = dict(CAPABILITIES)
    values.update(fields)
    if version == 2:
        del values["session_id"]
    return values


def boundary(random_: random.Random, version: int = 3) -> dict[str, Any]:
    """Return a record of a phase's enter or exit, which matches another one or does not."""
    number = random_.randrange(5)
    thread = random_.choice((1, 1, 2, 3))
    action = random_.choice(("enter", "exit"))
    result = record(random_, version, event_type=f"phase_{action}")
    path = random_.choice((["a"], ["a", "b"], ["io"], ["a", "b", "c"]))
    result["metadata"]["phase_scope"] = {
        "action": action,
        "name": path[-1],
        "path": path,
        "depth": len(path),
        "scope_id": f"{result.get('session_id', 'S')}:{number}",
        "parent_scope_id": None,
        "thread_id": thread,
        "thread_name": f"t{thread}",
        "sequence": random_.randrange(8),
    }
    if random_.random() < 0.1:
        name = random_.choice(tuple(result["metadata"]["phase_scope"]))
        result["metadata"]["phase_scope"][name] = random_.choice(ODD_VALUES[:-1])
    return result


def capture(random_: random.Random, version: int = 3) -> list[dict[str, Any]]:
    """Return the valid records of a capture."""
    return [
        boundary(random_, version) if random_.random() < 0.5 else record(random_, version)
        for _ in range(random_.randrange(1, 25))
    ]


def legacy_record(random_: random.Random) -> dict[str, Any]:
    """Return a record without a schema version, which may be invalid."""
    fields = {
        "timestamp": (1.5, 2, 1700000000.25, True, "1", None),
        "timestamp_ns": (5, 5.0, -1, None),
        "pid": ODD_VALUES[:6], "host": ODD_VALUES[:14], "device": ("cuda:3", "cpu", "/GPU:1",
            "/GPU:x", "mps", "CPU:7", 3, None, "a:b:4", "cuda:3x", "/gpu"),
        "device_id": ODD_VALUES[:6], "memory_mb": (1.5, -1, "1", True, 3),
        "memory_allocated": (5, 5.0, -5, None), "memory_reserved": (7, None),
        "memory_change": (3, None, -3), "allocator_allocated_bytes": (9, None),
        "allocator_reserved_bytes": (8, None), "allocator_active_bytes": (3, None, -1, "x"),
        "allocator_change_bytes": (1, None), "active_memory": (3,), "device_used": (4,),
        "device_total": (50, None), "total_memory": (60, None, 1.0),
        "device_total_bytes": (40, None, -1), "device_used_bytes": (10, 90, None),
        "device_free_bytes": (7, None), "type": ("peak", None, 5), "event_type": ("x", None, "", 5),
        "sampling_interval_ms": (5, None, -1), "collector": ("c", None, "", 5),
        "backend": ("rocm", "mps", "cuda", "cpu", "zz", 5, "ROCM"), "job_id": ("j", "", 5, None),
        "rank": (0, 1, "1", None), "local_rank": (0, 1, None), "world_size": (1, 2, 0, None),
        "metadata": ({}, None, [], {"total_memory": 50}, {"pid": 5}, {"pid": "x"}, {"host": "h"},
            {"backend": "rocm"}, {"rank": 1, "world_size": 3}, {"session_id": "s"},
            {"device_total": 30}, {"job_id": "k", "local_rank": 1}),
        "metadata_note": (1, "x"), "metadata_rank": (0, 1), "metadata_world_size": (2,),
        "context": ("c", None, 5), "message": ("m", 5), "session_id": ("s", "", 5, None),
        "unknown": (1,),
    }  # fmt: skip
    result: dict[str, Any] = {"timestamp": 1.5} if random_.random() < 0.8 else {}
    for name in random_.sample(sorted(fields), random_.randrange(6)):
        result[name] = random_.choice(fields[name])
    return result


def odd_record(random_: random.Random, version: int) -> dict[str, Any]:
    """Return a record of a schema version that may break a rule of the schema."""
    result = record(random_, version)
    for _ in range(random_.randrange(3)):
        name = random_.choice((*result, "unknown"))
        if random_.random() < 0.2:
            result.pop(name, None)
        else:
            result[name] = copy.deepcopy(random_.choice(ODD_VALUES))
    if version == 4 and random_.random() < 0.5 and isinstance(result.get("metadata"), dict):
        capabilities = dict(CAPABILITIES)
        name = random_.choice((*capabilities, "unknown"))
        if random_.random() < 0.2:
            capabilities.pop(name, None)
        else:
            capabilities[name] = random_.choice((True, False, None, "x", 1))
        result["metadata"]["memory_capabilities"] = random_.choice((capabilities, None, []))
    return result


def summary(random_: random.Random, session_id: str) -> dict[str, Any]:
    """Return a session of a manifest; some lack a key."""
    result = {
        "session_id": session_id,
        "status": random_.choice(("running", "completed", "interrupted", "incomplete")),
        "started_at_ns": random_.randrange(10),
        "ended_at_ns": random_.choice((None, random_.randrange(10))),
        "host": "h1",
        "pid": 5,
        "job_id": random_.choice((None, "job")),
        "rank": 0,
        "local_rank": 0,
        "world_size": 2,
        "source": "stormlog.tracker",
    }
    if random_.random() < 0.2:
        del result[random_.choice(tuple(result))]
    return result


def write_array(path: Path, records: list[dict[str, Any]], random_: random.Random) -> Path:
    """Write records as a JSON export."""
    content: Any = records if random_.random() < 0.5 else {"events": records}
    path.write_text(json.dumps(content, indent=random_.choice((None, 2))))
    return path


def write_sink(path: Path, records: list[dict[str, Any]], random_: random.Random) -> Path:
    """Write records as a sink of one to three segments, with a manifest or without one."""
    path.mkdir()
    count = random_.randrange(1, 4)
    segments = []
    for number in range(count):
        name = f"segment-{number + 1:06}.jsonl"
        lines = "".join(json.dumps(each) + "\n" for each in records[number::count])
        if random_.random() < 0.3 and lines:
            lines += json.dumps(records[0])[: random_.randrange(1, 200)]
        (path / name).write_text(lines)
        segments.append({"filename": name, "event_count": 1, "size_bytes": 1, "closed": True,
                         "session_id": random_.choice("AB")})  # fmt: skip
    if random_.random() < 0.8:
        sessions = [summary(random_, name) for name in random_.choices("ABCD", k=3)]
        random_.shuffle(segments)
        manifest = {
            "schema_version": 2,
            "format": "stormlog.append_only_telemetry_sink",
            "sessions": sessions,
            "segments": segments[: random_.randrange(4)],
        }
        (path / "manifest.json").write_text(json.dumps(manifest, indent=2))
    return path
