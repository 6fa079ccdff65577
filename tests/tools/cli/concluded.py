"""Runs with known findings, and the documents of their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.core.analysis.verdicts.records import Rank, write_spool
from tests.tools.conftest import Run

STEP = {"data_load": 1.0, "forward": 3.0, "backward": 4.0, "optimizer_step": 1.0}


def document(run: Run, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("report", *words, "--json").stdout)
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def straggling(folder: Path, *hosts: str | None) -> Path:
    """A run of a rank for each host, the last of which is slow; None for an unknown host."""
    ranks = []
    for number, host in enumerate(hosts):
        named = {} if host is None else {"host_name": host}
        rank = Rank(number, pid=number + 1, **named)
        is_slow = number == len(hosts) - 1
        for step in range(60):
            wait = 2.0 * (not is_slow)
            rank.step(step, STEP | {"forward": 5.0 - wait, "backward": 4.0 + wait})
        ranks.append(rank)
    return write_spool(folder, ranks, run="ab" * 16)


def slow(folder: Path, **phases: float) -> Path:
    """A run of one rank of 200 steps that have some phases beside those of `STEP`, in ms."""
    rank = Rank(0, pid=1, host_name="node-a")
    for step in range(200):
        rank.step(step, STEP | phases)
    return write_spool(folder, [rank], run="cd" * 16)
