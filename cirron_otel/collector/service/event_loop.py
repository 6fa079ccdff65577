"""The event loop of the process that receives."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, if it is installed: a request takes about an eighth less CPU than with asyncio's.

    The extra `collector` brings it where it is built for.
    """
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
