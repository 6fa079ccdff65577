"""The command line: one module per command."""

import sys

from . import signals

# The imports below take half a second. Without a handler, SIGTERM would end a starting collector
# with another exit code, and the kernel would ignore it for the first process of a container.
if signals.is_service(sys.argv[1:]):
    signals.end_at_once()

from .main import main

__all__ = ["main"]
