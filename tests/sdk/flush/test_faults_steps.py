"""The flush thread is killed at each of its steps: every record is sealed once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.spool.journal import OwnerJournal
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.sdk.flush import assembly, patience, pipeline
from cirron_otel.sdk.flush.assembly import BatchAssembly
from cirron_otel.sdk.flush.batch_otel import BatchOtel
from cirron_otel.sdk.flush.drain import BufferDrain
from cirron_otel.sdk.flush.flush_builder import FlushBuilder
from cirron_otel.sdk.flush.ownership import FlushOwnership
from cirron_otel.sdk.flush.pipeline import Pipeline
from cirron_otel.sdk.flush.sealer import Sealer
from tests.kit.sessions.opened import opened
from tests.kit.sessions.whole import whole

STEPS: list[tuple[Any, str]] = [
    (Pipeline, "_wait"), (Pipeline, "_serve"), (Pipeline, "_tick"), (Pipeline, "_seal_all"),
    (Pipeline, "_collect"), (Pipeline, "_show"),
    (FlushOwnership, "take"), (FlushOwnership, "give"), (FlushOwnership, "lend"),
    (FlushOwnership, "checkpoint"), (FlushOwnership, "check"),
    (FlushBuilder, "resume"), (FlushBuilder, "collect"), (FlushBuilder, "_take"),
    (FlushBuilder, "_unchanged"), (FlushBuilder, "_assemble"), (FlushBuilder, "_foreign_rows"),
    (FlushBuilder, "_around"), (FlushBuilder, "_add_open"), (FlushBuilder, "_note"),
    (BufferDrain, "take_scopes"), (BufferDrain, "take_others"), (BufferDrain, "late"),
    (BufferDrain, "clear"), (BatchOtel, "of_flush"), (BatchAssembly, "assemble"),
    (BatchAssembly, "_add_all"), (assembly, "ids_of"), (assembly, "scope_rows"),
    (assembly, "mark_rows"), (assembly, "batch_text"),
    (Sealer, "seal"), (Sealer, "_write_journal"), (Sealer, "_write"), (Sealer, "_is_proved"),
    (Sealer, "finish"), (OwnerJournal, "write"), (SpoolWriter, "write"),
]  # fmt: skip


class Kill:
    """Raises SystemExit in the flush thread, once, before or after a step."""

    def __init__(self, owner: Any, name: str, *, is_after: bool) -> None:
        self.real, self.is_after, self.is_armed = getattr(owner, name), is_after, False

    def function(self) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            if not self.is_after:
                self._strike()
            result = self.real(*arguments, **options)
            if self.is_after:
                self._strike()
            return result

        return step

    def _strike(self) -> None:
        if self.is_armed and threading.current_thread().name == "cirron-otel-flush":
            self.is_armed = False
            raise SystemExit


def record(first: int, count: int) -> None:
    for number in range(first, first + count):
        with ci.scope("step", index=number):
            ci.mark("number", number)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("ends", [False, True], ids=["continues", "is replaced"])
@pytest.mark.parametrize("is_last", [False, True], ids=["flush", "last flush"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_every_record_is_sealed_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    is_after: bool,
    is_last: bool,
    ends: bool,
) -> None:
    kill = Kill(owner, name, is_after=is_after)
    monkeypatch.setattr(owner, name, kill.function())
    monkeypatch.setattr(pipeline, "_BACKOFF_S", (0.0, 0.02, 0.1))
    monkeypatch.setattr(patience, "_LOOK_S", 0.01)  # an ended thread is replaced at the next look
    if ends:
        real = Pipeline._died

        def die(dead: Pipeline, why: str) -> None:
            real(dead, why)
            if threading.current_thread().name == "cirron-otel-flush":
                raise SystemExit  # the thread ends, and is replaced

        monkeypatch.setattr(Pipeline, "_died", die)
    with opened(tmp_path, flush_interval=600, overhead_marks=0) as profiler:
        with ci.scope("epoch", index=0):
            record(0, 5)
            assert profiler.flush(60)
            record(5, 5)
            if not is_last:
                kill.is_armed = True
                profiler.flush(60)
            record(10, 5)
        kill.is_armed |= is_last
        ci.shutdown(60)
        assert not any(profiler.health()["drops"].values())
        assert profiler.runtime is not None
        assert not profiler.runtime.pipeline._asked  # no request is left without an answer
    found = whole(tmp_path)
    assert found.numbers() == list(range(15))
    assert found.names() == {"epoch": 1, "step": 15}
    assert len(found.sessions) == 1
