"""Killed at any moment, under load, with clients that try again: nothing acknowledged is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.perf.load.kills import killed

KILLS = int(os.environ.get("KILLS", "6"))


@pytest.mark.slow
def test_acknowledged_is_stored_once(tmp_path: Path) -> None:
    """In the spool, in SQLite and in a directory; an OTLP endpoint has all of it, too."""
    found = killed(tmp_path, KILLS)
    print(found)
    found.see()
