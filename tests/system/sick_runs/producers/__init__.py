"""Writes the spool of a case as each producer records a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ..case import Case
from ..records import OURS, THEIRS, Files
from . import cirron_sdk, others, ours
from .lives import Life, lives_of


def write(case: Case) -> Files:
    """Return the files of the spool of a case."""
    record, version, has_run = PRODUCERS[case.producer]
    files: Files = []
    for life in lives_of(case, version, has_run):
        id_ = life.session.new_id()
        record(life, id_)
        files += life.session.files(id_)
    return files


class Producer(NamedTuple):
    """A producer: how it records, its version, and whether its batches name the run."""

    record: Callable[[Life, str], None]
    sdk_version: str = OURS
    has_run: bool = True


PRODUCERS: Final[Mapping[str, Producer]] = {
    "cirron-otel": Producer(ours.record),
    "hooks": Producer(cirron_sdk.hooks, THEIRS, has_run=False),
    "batches": Producer(cirron_sdk.batches, THEIRS, has_run=False),
    "manual": Producer(cirron_sdk.manual, THEIRS, has_run=False),
    "trainer": Producer(cirron_sdk.trainer, THEIRS, has_run=False),
    "inference": Producer(others.requests(), THEIRS, has_run=False),
    "requests": Producer(others.requests()),
    "traceml": Producer(others.traceml),
    "stormlog": Producer(others.stormlog),
    "dgrr": Producer(others.dgrr),
    "foreign": Producer(others.foreign, has_run=False),
}
"""cirron-otel, cirron-sdk's five shapes (hooks to inference), and other producers."""
