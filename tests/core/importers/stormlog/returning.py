"""Recordings of Stormlog as trees of files, and their way through a spool and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cirron_otel import exactjson
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.report import Report

from .conftest import RECORDINGS

ROLLUPS = "rollups.json"

PLACES = (
    "v039/cli_track",
    "v039/cli_track/sink",
    "v039/cli_track/track.json",
    "v039/diagnose/bundle",
    "v039/legacy_records.json",
    "v039/sim_gpu",
    "v039/sim_gpu/oom_dumps/oom_dump_20261120T180518Z_19411_cuda_1",
    "v039/sim_gpu/oom_dumps/oom_dump_20261120T180518Z_19411_cuda_1/events.json",
    "v039/sim_gpu/sink",
    "v039/sim_gpu/sink/segment-000001.jsonl",
    "v039/v2_records.json",
    "v043/distributed",
    "v043/distributed/sink_rank1",
)
"""The recordings below `RECORDINGS`, alone and together."""


def recorded(place: str) -> Path:
    """A recording of the testdata."""
    return RECORDINGS / place


def files_of(path: Path) -> dict[str, bytes]:
    """The files of a recording by name, except those that Stormlog derives."""
    if path.is_file():
        return {path.suffix: path.read_bytes()}
    found = (each for each in path.rglob("*") if each.is_file() and each.name != ROLLUPS)
    return {str(each.relative_to(path)): each.read_bytes() for each in found}


def target_for(path: Path, folder: Path) -> Path:
    """A target of the same form as a recording."""
    return folder / f"written{path.suffix if path.is_file() else ''}"


def imported(path: Path, folder: Path) -> tuple[Path, Report]:
    """A spool with the recording, in which every batch is valid."""
    spool = folder / "imported"
    report = convert(ConvertRequest(f"stormlog:{path}", str(spool)))
    for file in (spool / "spool").glob("*.json"):
        errors = [f for f in validate_batch(file.read_bytes(), file.name) if f.severity == "error"]
        assert not errors
    return spool, report


def written(source: Path, path: Path, folder: Path) -> dict[str, bytes]:
    """The files that a spool or an OTLP file becomes."""
    target = target_for(path, folder)
    report = convert(ConvertRequest(str(source), f"stormlog:{target}"))
    assert report.exit_code == 0
    return files_of(target)


def batches_in(spool: Path) -> list[dict[str, Any]]:
    """The batches of a spool in order."""
    files = sorted((spool / "spool").glob("*.json"))
    return [exactjson.loads(file.read_bytes()) for file in files]


def records_in(spool: Path, key: str) -> list[dict[str, Any]]:
    """All spans, or all marks, of a spool."""
    return [record for batch in batches_in(spool) for record in batch[key]]


def lines(*records: dict[str, Any]) -> bytes:
    """Records as Stormlog writes them into a segment."""
    return b"".join(json.dumps(each, sort_keys=True).encode() + b"\n" for each in records)
