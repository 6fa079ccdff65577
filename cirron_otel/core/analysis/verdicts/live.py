"""The diagnosis of a run that is still being recorded, from a bounded part of its batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from ...run.followed_run import FollowedRun
from ...spool.reader import SpoolReader
from .diagnosis import Diagnosis, diagnose
from .run_window import step_window
from .thresholds import Thresholds
from .verdict import Verdict

Change = Literal["appeared", "changed", "gone"]


class LiveRun:
    """The verdicts on a followed run."""

    def __init__(self, reader: SpoolReader, wanted: str | None, limits: Thresholds) -> None:
        """Follow the run `wanted`, or else the last one; a run may begin later."""
        self.followed = FollowedRun(reader, wanted, round(limits["window.steps"]))
        self._limits = limits

    def poll(self, now_ns: int) -> Diagnosis | None:
        """Read the new batches; return the diagnosis, or None if the run has no batch yet.

        Raises UsageError if the wanted name or id is ambiguous, InputError if the spool cannot be
        read, and TargetError if there is no disk space.
        """
        followed = self.followed
        if not followed.read_new() or followed.run is None:
            return None
        with followed.opened() as run:
            followed.note_progress(run, now_ns)
            window = step_window(
                run, self._limits, followed.run.world_size, followed.stalls(now_ns)
            )
            return diagnose(window, self._limits)


def changes_of(
    before: Iterable[Verdict], after: Iterable[Verdict]
) -> Iterator[tuple[Change, Verdict]]:
    """Yield the differences of two diagnoses by kind of verdict: first those that are gone."""
    old, new = ({each.kind: each for each in verdicts} for verdicts in (before, after))
    for kind, verdict in old.items():
        if kind not in new:
            yield "gone", verdict
    for kind, verdict in new.items():
        previous = old.get(kind)
        if previous is None:
            yield "appeared", verdict
        elif _identity(previous) != _identity(verdict):
            yield "changed", verdict


def _identity(verdict: Verdict) -> tuple[str, list[int], str | None]:
    return verdict.severity, sorted(verdict.ranks), verdict.phase
