"""A process that is killed at one of the writes of its spool. Arguments: directory, which, when.

The first flush writes the open scopes to the journal; it has no batch to write. The first batch is
held up until everything is recorded, so that one flush seals the rest in several batches: children
ahead of their parent. The sizes of batches and portions are a twentieth of the usual ones, so that
few records make several batches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import cirron_otel as ci
from cirron_otel.core.spool.journal import OwnerJournal
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.sdk.flush import assembly, drain, pipeline, remainder
from cirron_otel.sdk.tracing import buffers

directory, number, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
may_go_on = threading.Event()
writes = {"batch": 0, "journal": 0}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watched(what: str, real: Any) -> Any:
    def write(*arguments: Any, **options: Any) -> Any:
        writes[what] += 1
        if what == "batch" and writes[what] == 1:
            may_go_on.wait(300)
        is_at = writes[what] == number
        if is_at and when == f"before the {what}":
            die()
        done = real(*arguments, **options)
        if is_at and when == f"after the {what}":
            die()
        return done

    return write


for module in (assembly, remainder):
    module.MAX_SPANS = 400
for module in (drain, pipeline):
    module.PORTION = 800
assembly.MAX_MARKS, buffers.EARLY_FLUSH = 1_600, 200
SpoolWriter.write = watched("batch", SpoolWriter.write)
OwnerJournal.write = watched("journal", OwnerJournal.write)
ci.profile(frameworks=[], output_dir=directory, flush_interval=3600)
with ci.scope("epoch"):
    with ci.scope("seen open"):
        ci.flush()
    with ci.scope("outer"):
        for step in range(2_000):
            with ci.scope("step", index=step):
                pass
may_go_on.set()
ci.flush()
ci.shutdown()
