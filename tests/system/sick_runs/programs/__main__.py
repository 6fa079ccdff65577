"""Runs one program: `python -m tests.system.sick_runs.programs NAME sick|twin FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from . import PROGRAMS
from .job import Job, rank_of_process


def run(name: str, twin: str, folder: str) -> None:
    """Prepare the job of a program, and train."""
    job = Job(twin == "sick", Path(folder), rank_of_process())
    PROGRAMS[name].set_up(job)
    from .loop import train

    train(job)


if __name__ == "__main__":
    run(*sys.argv[1:])
