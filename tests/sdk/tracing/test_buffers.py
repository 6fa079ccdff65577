"""The buffers of a thread while other threads change them."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import pytest

from cirron_otel.sdk.flush.drain import BufferDrain
from cirron_otel.sdk.tracing import buffers as buf


def test_a_thread_that_is_let_draw_again_while_it_draws_gets_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch may be imported in one thread while another one records."""
    buffers = buf.Buffers()
    monkeypatch.setattr(buf, "registry", {buffers})
    monkeypatch.setattr(buf.hooks, "first", buf.discard_ids)
    drawn = [buffers.next_id() for _ in range(5)]
    assert len(set(drawn)) == 5
    assert all(0 < each < 2**64 for each in drawn)


class PausedScope:
    """An ended scope whose drop takes as long as a busy machine may make it."""

    is_dropped = False

    def __init__(self) -> None:
        self.is_removed = threading.Event()
        self._id = "1"

    @property
    def end_ns(self) -> int:
        """The time of its end; reading it waits until the flush thread has begun."""
        before = buf.undroppable.scopes
        self.is_removed.set()
        end = time.monotonic() + 60
        while buf.undroppable.scopes is before and time.monotonic() < end:
            time.sleep(0.001)
        return 1

    _end = 1
    _above = None

    def drop(self) -> None:
        self.is_dropped, self._id = True, ""


def test_a_scope_that_is_being_removed_is_not_dropped_during_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Marks that are taken by then may refer to it."""
    scope: Any = PausedScope()
    monkeypatch.setattr(buf, "registry", set())
    monkeypatch.setattr(buf, "spared_scopes", deque())
    monkeypatch.setattr(buf.undroppable, "scopes", frozenset())
    monkeypatch.setattr(buf.limits, "scopes", 0)
    full = buf.Buffers()
    buf.registry.add(full)
    full.scopes.append(scope)
    thread = threading.Thread(target=full._relieve)
    thread.start()
    assert scope.is_removed.wait(60)
    drain = BufferDrain()
    drain.marks.append((scope, "loss", 1.0, 0, "point", None))
    late = drain.late([])
    thread.join()
    assert not scope.is_dropped
    assert list(buf.spared_scopes) == [scope]
    assert list(late) == [scope]
    assert full.is_dropping is False
