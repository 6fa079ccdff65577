"""A session of this process around a test, with files, that leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cirron_otel as ci
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.scope import NO_SESSION
from cirron_otel.sdk.tracing.state import state

from .spool_trees import Spool, read_spool


@contextmanager
def opened(directory: Path, **options: Any) -> Iterator[ci.Profiler]:
    """`profile()` into `directory`; the session is over behind it."""
    given: dict[str, Any] = {"join": "none", "handle_signals": False, "frameworks": []}
    profiler = ci.profile(output_dir=str(directory), **(given | options))
    try:
        assert profiler.enabled == options.get("enabled", True)
        yield profiler
    finally:
        ci.shutdown()
        buffers.reset_after_fork()
        assert state.session is NO_SESSION
        state.recording = True


def recorded(directory: Path, act: Callable[[], object], **options: Any) -> Spool:
    """What the spool says after `act` in a session."""
    with opened(directory, **options):
        act()
    return read_spool(directory)


def in_threads(count: int, act: Callable[[int], object]) -> None:
    """Run `act` in so many threads, which all live at the same time."""
    together = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        together.wait()
        try:
            act(number)
        except BaseException as error:
            failures.append(error)
        together.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
