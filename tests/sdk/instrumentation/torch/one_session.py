"""A program that is recorded in a session of this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cirron_otel as ci
from tests.kit.sessions.spool_trees import Spool, read_spool


def recorded(directory: Path, program: Callable[[], Any], **options: Any) -> Spool:
    """Run a program in a session with options, and return its spool. No error may be counted."""
    profiler = ci.profile(
        output_dir=directory, exporters="none", join="none", handle_signals=False, **options
    )
    try:
        program()
    finally:
        ci.shutdown()
    assert not any(profiler.health()["swallowed_errors"].values())
    return read_spool(directory)
