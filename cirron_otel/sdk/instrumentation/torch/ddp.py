"""Mark the times that DistributedDataParallel measures itself: its compute and communication.

All ranks end a backward pass together, so its duration does not show which rank was slow. DDP
measures in each process how long the pass computed, and how long it then waited for the other
ranks. It measures its first ten iterations, and every 100th
(`_set_ddp_runtime_logging_sample_rate`, which is not changed: at every step, DDP itself takes half
a millisecond). The times are read in the thread that trains, after a forward pass, when no backward
pass has DDP's lock.
"""

from __future__ import annotations

import functools
import weakref
from time import time_ns
from typing import Any, Final

from .... import semconv as sc
from ...session.errors import record_error
from ...tracing.buffers import local
from ...tracing.clock import now
from ...tracing.hidden_frames import strip
from ...tracing.mark import POINT
from ...tracing.state import CONTEXT, SCOPE_KEY, state
from ..patches import Patches

_FIRST: Final = 10
"""DDP measures every iteration up to this one, so they are all read."""
_EVERY_NS: Final = 1_000_000_000
"""The minimum time between later readings, ns: one takes about 10 us with its marks."""
_NEVER: Final = 2**63


def _anchor() -> int:
    """Return wall time minus monotonic time, ns: the wall clock may be set while a job runs.

    The thread may be interrupted between two readings, so the shortest of three intervals counts.
    """
    readings = [(now(), time_ns(), now()) for _ in range(3)]
    before, wall_ns, after = min(readings, key=lambda each: each[2] - each[0])
    return wall_ns - (before + after) // 2


class DdpTimes:
    """Reads the times of the process's DistributedDataParallel model."""

    def __init__(self) -> None:
        self._due = 0
        """The time of the next reading, monotonic ns."""
        self._read: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """For each model, the iteration that was read last."""
        self._model: Any = None
        """A weak reference to the model that was called last."""

    def install(self, patches: Patches) -> None:
        """Hook the end of DDP's forward. Raises AttributeError if this torch lacks it."""
        import torch  # noqa: PLC0415

        owner = torch.nn.parallel.DistributedDataParallel
        original = owner._post_forward
        _ = owner._get_ddp_logging_data
        is_compiling = torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def _post_forward(self_: Any, output: Any) -> Any:
            if not is_compiling() and now() >= self._due:
                self._mark(self_)
            try:
                return original(self_, output)
            except BaseException as error:
                strip(error)
                raise

        patches.replace(owner, "_post_forward", _post_forward)

    def _mark(self, model: Any) -> None:
        """Mark the times that are new on the innermost open scope. Raises nothing."""
        try:
            times = self._new_times(model)
            scope = CONTEXT.get().get(SCOPE_KEY) if times and state.recording else None
            if scope is None or not scope._id:
                return
            at = times.pop("at") - _anchor()
            local.b.marks.extend(
                (scope, name, value, at, POINT, {}) for name, value in times.items()
            )
        except Exception as error:
            self._due = _NEVER
            record_error("ddp", error)

    def _new_times(self, model: Any) -> dict[str, int]:
        """Return the times of an iteration by mark, and `at`, the end of its compute, Unix ns.

        Empty if no later iteration was measured. If a model is called again after another one, a
        step may have several backward passes, whose times are not distinguished: then nothing is
        read any more.
        """
        if self._model is None or self._model() is not model:
            if model in self._read:
                self._due = _NEVER
                return {}
            self._model = weakref.ref(model)
        before = self._read.setdefault(model, 0)
        logger = model.logger
        found = {} if logger is None else logger._get_ddp_logging_data().ints_map
        iteration = found.get("iteration", 0)
        self._due = now() + _EVERY_NS if iteration >= _FIRST else 0
        compute, communication = (
            found.get(f"backward_{each}_time", 0) for each in ("compute", "comm")
        )
        if iteration == before or compute <= 0 or communication <= 0:
            return {}
        self._read[model] = iteration
        overlap = found.get("backward_compute_comm_overlap_time", 0)
        return {
            "at": found["backward_compute_time_end"],
            sc.DDP_COMPUTE: compute,
            sc.DDP_COMMUNICATION: communication,
            sc.DDP_EXPOSED: max(communication - overlap, 0),
        }
