"""The command line: one module per command."""

from . import starting

starting.end_quietly()  # until the command runs: the imports below take most of the start

from .main import main  # noqa: E402

__all__ = ["main"]
