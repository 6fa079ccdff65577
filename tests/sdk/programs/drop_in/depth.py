"""Seventy scopes inside each other in a thread, and marks at the bottom."""

import contextlib
import threading

import cirron as ci


def nest() -> None:
    with contextlib.ExitStack() as stack:
        for level in range(70):
            stack.enter_context(ci.scope("level", index=level))
        ci.mark("at_the_bottom", 1)
    with ci.scope("after"):
        ci.mark("at_the_top", 2)


ci.profile(frameworks=[], snapshots=None)
thread = threading.Thread(target=nest)
thread.start()
thread.join()
ci.shutdown()
