"""Strict validation of recordings: every record, and the sessions of manifests."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...records.problems import ReadingProblem
from .events import LEGACY, validate_telemetry_record
from .legacy import TelemetryRecordError
from .reading import StormlogReader, StormlogRecord

_SYNTHESIZED = ("oom", "diagnose")
"""Bundles, in which Stormlog itself writes records without a schema version."""


def verify_recording(path: str | os.PathLike[str]) -> Iterator[ReadingProblem]:
    """Yield the findings on the recordings at `path`; a torn last line is a note.

    Raises InputError if there is no recording.
    """
    found: list[ReadingProblem] = []
    reader = StormlogReader(path, on_finding=found.append)
    for record in reader.all_pieces():
        if (finding := _strict(record)) is not None:
            found.append(finding)
        yield from found
        found.clear()
    yield from found


def _strict(record: StormlogRecord) -> ReadingProblem | None:
    """Return the finding on a record that the reader accepts, if there is one."""
    if record.event is None or record.data is None:
        if any(problem.code == "torn" for problem in record.problems):
            return ReadingProblem(
                record.file.name, "torn", "the last line is incomplete", "note", record.path
            )
        return None
    if record.version == LEGACY:
        if record.artifact.kind in _SYNTHESIZED:
            return None
        message = "schema_version is missing: expected 2, 3 or 4"
        return ReadingProblem(record.file.name, "legacy", message, path=record.path)
    try:
        validate_telemetry_record(record.data)
    except TelemetryRecordError as error:
        return ReadingProblem(record.file.name, "invalid", str(error), path=record.path)
    return None
