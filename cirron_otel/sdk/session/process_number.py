"""The rank of a process that neither a launcher nor a framework has given one.

The processes of a run that train at the same time need different ranks, so that reports do not add
them up. A process of `multiprocessing` takes its place among the processes that its parent has
started, from 0. That is the index of `torch.multiprocessing.spawn` if the parent has started no
other process before. If the parent trains, it has 0, and the places are from 1. Any other process
takes 0. If another process of the run that writes to the same spool has this number, it takes the
next free one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from multiprocessing.process import current_process, parent_process
from typing import Final

from ...core.spool.lease import Lease, claim, is_claimed
from ...core.spool.paths import SpoolPaths
from .errors import record_error

JOB_PROCESS: Final = "CIRRON_OTEL_JOB_PID"
"""The variable with the id of the `cirron-otel run` process, which it sets for its job."""


class ProcessNumber:
    """The number of this process in its run, which it keeps until it ends."""

    def __init__(self, paths: SpoolPaths, run_id: str) -> None:
        """Take no number yet."""
        self._paths, self._run_id = paths, run_id
        self._leases: list[Lease] = []
        self._is_taken = False

    def take(self, *, trains: bool) -> int | None:
        """Take a number and return it; None at later calls. Raises nothing: it is 0 then.

        If a process `trains`, the numbers of its children are from 1.
        """
        is_taken, self._is_taken = self._is_taken, True
        try:
            place = place_of_process()
            if trains and place is None:
                self._claim("parent")
            if is_taken:
                return None
            if place is None:
                place = 0
            elif is_claimed(self._paths, self._name("parent")):
                place += 1
            return next(number for number in count(place) if self._claim(str(number)))
        except Exception as error:
            record_error("rank", error)
        return 0

    def _claim(self, what: str) -> bool:
        lease = claim(self._paths, self._name(what))
        if lease is not None:
            self._leases.append(lease)
        return lease is not None

    def _name(self, what: str) -> str:
        return f"rank {self._run_id} {what}"

    def release(self) -> None:
        """Leave the number to another process."""
        for lease in self._leases:
            lease.release()

    def abandon(self) -> None:
        """In a forked child: the number belongs to the parent."""
        for lease in self._leases:
            lease.abandon()


def is_started_below_job(environ: Mapping[str, str]) -> bool:
    """Return whether a process of a job has started this one, without `multiprocessing`."""
    job = environ.get(JOB_PROCESS, "")
    return job not in ("", str(os.getppid())) and parent_process() is None


def place_of_process() -> int | None:
    """Return the place of this process among those that its parent has started, from 0.

    It is None for a process that `multiprocessing` has not started.
    """
    identity = getattr(current_process(), "_identity", ())
    return max(identity[-1] - 1, 0) if identity and parent_process() is not None else None
