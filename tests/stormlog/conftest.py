"""The command, and the recordings of the real Stormlog."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import run  # noqa: F401 - a fixture

RECORDINGS = Path(__file__).parents[1] / "testdata" / "stormlog"
"""Recordings of Stormlog 0.3.9 and 0.4.3, with the answers of 0.3.9."""
SIMULATED = RECORDINGS / "v039" / "sim_gpu"
ANSWERS = RECORDINGS / "v039" / "answers"
SEGMENT = "segment-000001.jsonl"
EVENTS = (SIMULATED / "sink" / SEGMENT).read_bytes().splitlines(keepends=True)
"""The lines of a segment."""
