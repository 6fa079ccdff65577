"""`conclusion.json` beside a recording: the last conclusion on each run, without its figures."""

# ruff: noqa: PLC0415 - imports in functions, so that commands start faster

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from ...core.analysis.metrics import LossMetric
    from ...core.spool.paths import SpoolPaths
    from .document import Document

NAME: Final = "conclusion.json"
_MOST_RUNS: Final = 1000
_MOST_BYTES: Final = 16 << 20
_MOST_FINDINGS: Final = 100
_MOST_LOSSES: Final = 100


def conclusion_path(paths: SpoolPaths) -> Path | None:
    """Return the path of a spool's conclusions; None if it may not be written.

    It is written beside the spools of this project only, which have a folder of their state.
    """
    if paths.root == paths.spool or not paths.state.is_dir():
        return None
    return paths.root / NAME


def write_conclusion(paths: SpoolPaths, document: Document, batches: Collection[str]) -> None:
    """Add the conclusion on a run with these batches to the file; errors are ignored.

    The file is private. The conclusions on at most 1,000 runs are kept, the last ones.
    """
    from ...core.atomic_files import replace_file

    path = conclusion_path(paths)
    if path is None or document.run.id is None or not batches:
        return
    runs = _read(path)
    runs.pop(document.run.id, None)
    head = document.head()
    del head["source"], head["ignored"], head["price"]
    head["findings"] = head["findings"][:_MOST_FINDINGS]
    runs[document.run.id] = {
        "last_batch": max(batches),
        "batches": len(batches),
        **head,
        "units": None if document.units is None else document.units.count,
        "losses": [asdict(each) for each in document.figures.metrics[:_MOST_LOSSES]],
    }
    kept = dict(list(runs.items())[-_MOST_RUNS:])
    data = json.dumps({"runs": kept}).encode("ascii")
    if len(data) <= _MOST_BYTES:
        with contextlib.suppress(OSError):
            replace_file(path, data + b"\n", is_durable=False)


def read_conclusions(paths: SpoolPaths) -> dict[str, dict[str, Any]]:
    """Return the stored conclusions by the ids of the runs; empty if there is no valid file."""
    path = conclusion_path(paths)
    return {} if path is None else _read(path)


def losses_in(conclusion: dict[str, Any]) -> list[LossMetric] | None:
    """Return the losses of a run from its conclusion; None if it has none of the right form."""
    import msgspec

    from ...core.analysis.metrics import LossMetric

    try:
        return msgspec.convert(conclusion.get("losses"), list[LossMetric])
    except msgspec.ValidationError:
        return None


def is_current(conclusion: dict[str, Any], batches: Collection[str]) -> bool:
    """Return whether a conclusion is on a run with exactly these batches, by number and last."""
    return bool(batches) and (conclusion.get("last_batch"), conclusion.get("batches")) == (
        max(batches),
        len(batches),
    )


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        value = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    runs = value.get("runs") if isinstance(value, dict) else None
    if not isinstance(runs, dict):
        return {}
    return {
        id_: each
        for id_, each in runs.items()
        if isinstance(each, dict)
        and isinstance(each.get("status"), str)
        and isinstance(each.get("headline"), str)
    }
