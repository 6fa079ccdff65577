"""`health()`: the state of the SDK in numbers, with cirron-sdk's keys and additional ones."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from ..flight_recorder.recorder import OomCounts
from ..flush.pipeline import STOPPED
from ..tracing import buffers as buf
from ..tracing.scope import drops
from .errors import errors
from .runtime import Runtime

_QUEUE = ("scopes", "marks", "snapshots", "batches")
_DROPS = (
    "scopes_buffer_full", "scopes_too_deep", "scopes_without_record", "foreign_spans",
    "marks_buffer_full", "marks_without_value_or_scope", "spans_spool_unwritable",
    "marks_spool_unwritable", "snapshots_without_record", "snapshots_spool_unwritable",
    "scopes_left_at_exit", "marks_left_at_exit", "snapshots_left_at_exit", "batches_set_aside",
    "snapshot_files", "batches_evicted", "scopes_thinned",
)  # fmt: skip
_SCOPE_DROPS = (
    "scopes_buffer_full", "scopes_too_deep", "scopes_without_record", "foreign_spans",
    "spans_spool_unwritable", "scopes_left_at_exit",
)  # fmt: skip
_MARK_DROPS = (
    "marks_buffer_full", "marks_without_value_or_scope", "marks_spool_unwritable",
    "marks_left_at_exit",
)  # fmt: skip
_RECORDED = ("spans", "marks", "snapshots", "batches")
_SAMPLING: dict[str, Any] = {
    "interval": None, "is_alive": False, "samples": 0, "cpu_ns": 0, "failures": 0, "degraded": [],
    "restarts": 0,
}  # fmt: skip
_SNAPSHOTS = {"count": 0, "seconds": 0.0, "longest_seconds": 0.0, "files": 0, "file_bytes": 0}


def disabled_health() -> dict[str, Any]:
    """Return the result of `health()` when there is no session; the keys are the same."""
    return {
        "enabled": False,
        "scope_drop_count": drops.too_deep,
        "mark_drop_count": 0,
        "spool_drop_count": 0,
        "swallowed_error_count": sum(errors.counts.values()),
        "swallowed_errors": dict(errors.counts),
        "last_errors": dict(errors.last),
        "spool_dir": None,
        "spool_bytes": 0,
        "flush_mode": STOPPED,
        "flush_restart_count": 0,
        "transport": None,
        "installed_hooks": [],
        "hooks": {},
        "platform_context": {},
        "session_id": None,
        "queue": dict.fromkeys(_QUEUE, 0),
        "drops": dict.fromkeys(_DROPS, 0) | {"scopes_too_deep": drops.too_deep},
        "recorded": dict.fromkeys(_RECORDED, 0),
        "flush": {"count": 0, "last_ns": 0, "seconds": 0.0, "longest_seconds": 0.0,
                  "is_alive": False},
        "snapshots": dict(_SNAPSHOTS),
        "digests": dict(_SNAPSHOTS),
        "sampling": dict(_SAMPLING),
        "out_of_memory": OomCounts().stats(),
        "overhead_ns": 0,
        "uptime_seconds": 0.0,
        "targets": [],
        "export_budget": None,
        "metrics": None,
    }  # fmt: skip


def health_of(runtime: Runtime) -> dict[str, Any]:
    """Return the health of an open or closed session: times in wall-clock ns, sizes in bytes."""
    pipeline = runtime.pipeline
    sealer, collector = pipeline.sealer, pipeline.collector
    lost = runtime.drops.by_reason()
    snapshots, digests = runtime.snapshots, runtime.digests
    targets = [exporter.stats() for exporter in pipeline.exporters]
    last = {cause: errors.last[cause] for cause in list(errors.counts)}
    return {
        "enabled": not runtime.is_over,
        "scope_drop_count": sum(lost[reason] for reason in _SCOPE_DROPS),
        "mark_drop_count": sum(lost[reason] for reason in _MARK_DROPS),
        "spool_drop_count": lost["batches_evicted"],
        "swallowed_error_count": sum(errors.counts.values()),
        "swallowed_errors": dict(errors.counts),
        "last_errors": last,
        "spool_dir": str(runtime.paths.spool),
        "spool_bytes": _size(runtime),
        "flush_mode": pipeline.mode,
        "flush_restart_count": pipeline.restarts,
        "transport": [target.get("target") for target in targets] or sealer.kind,
        "installed_hooks": [],
        "hooks": {},
        "platform_context": runtime.config.platform_context,
        "session_id": runtime.origin.session_id,
        "queue": {
            "scopes": sum(len(b.scopes) for b in tuple(buf.registry)),
            "marks": sum(len(b.marks) for b in tuple(buf.registry)),
            "snapshots": snapshots.waiting if snapshots is not None else 0,
            "batches": sealer.waiting,
        },
        "drops": lost,
        "recorded": {
            "spans": collector.spans,
            "marks": collector.marks,
            "snapshots": collector.snapshots,
            "batches": sealer.batches,
        },
        "flush": {
            "count": pipeline.flushes,
            "last_ns": pipeline.last_flush_ns,
            "seconds": pipeline.flush_seconds,
            "longest_seconds": pipeline.longest_flush,
            "is_alive": pipeline.is_alive,
        },
        "snapshots": snapshots.stats() if snapshots is not None else dict(_SNAPSHOTS),
        "digests": digests.stats() if digests is not None else dict(_SNAPSHOTS),
        "sampling": runtime.sampler.stats(),
        "out_of_memory": runtime.flight_recorder.counts.stats(),
        "overhead_ns": collector.overhead_ns,
        "uptime_seconds": time.monotonic() - runtime.started,
        "targets": targets,
        "export_budget": runtime.budget.stats() if runtime.budget is not None else None,
        "metrics": pipeline.metrics.stats() if pipeline.metrics is not None else None,
    }


def _size(runtime: Runtime) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(runtime.paths.spool) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # evicted in the meantime
                total += entry.stat(follow_symlinks=False).st_size
    return total
