"""A second server that has died is replaced, and the first one goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

from .program_server import ForkedServer


def answer(request: dict[str, Any]) -> list[int]:
    """Return the process of the second server, or end it."""
    if request["ends"]:
        os._exit(1)
    return [os.getpid()]


def test_a_dead_second_server_is_replaced() -> None:
    server = ForkedServer(answer, [])
    [first] = server.answer({"ends": False})
    assert server.answer({"ends": False}) == [first]
    assert server.answer({"ends": True}) == []
    [second] = server.answer({"ends": False})
    os.kill(second, signal.SIGKILL)  # while it waits
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
    [third] = server.answer({"ends": False})
    server.close()
    assert len({first, second, third, os.getpid()}) == 4
    server.close()


def test_a_second_server_that_cannot_start_gives_no_answer() -> None:
    server = ForkedServer(answer, ["no_such_module"])
    for _ in range(2):
        assert server.answer({"ends": False}) == []
    server.close()
