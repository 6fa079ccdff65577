"""The reason why an engine cannot report a run."""

from __future__ import annotations


class NeedsPythonError(Exception):
    """A run has records that only the analyses in Python read. The message names them."""
