"""Any source as a spool, for analyses, which read spools."""

from __future__ import annotations

from pathlib import Path

from ...core.temporary import writing_temporary_files
from .convert import ConvertRequest, convert
from .formats import SPOOL
from .report import Report
from .sources import Progress


def convert_to_spool(
    source: str, source_format: str | None, folder: Path, progress: Progress | None = None
) -> Report:
    """Convert a source into a spool in an empty folder; the report lists skipped items.

    Raises the errors of `convert`: UsageError, InputError, TargetError, EndpointError.
    """
    request = ConvertRequest(
        source=source, target=str(folder), source_format=source_format, target_format=SPOOL
    )
    report = convert(request, progress=progress)
    with writing_temporary_files():
        (folder / "spool").mkdir(exist_ok=True)
    return report
