"""What a thread draws its ids from, while others meddle with it."""

from __future__ import annotations

import pytest

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
