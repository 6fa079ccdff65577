"""Files with the steps of a recording, as targets of `convert` (docs/dataframes.md)."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ...core.analysis.run_selection import select_runs
from ...core.columns.extra import require
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import SpoolReader
from ...core.temporary import temporary_folder, writing_temporary_files
from ...errors import TargetError
from ..convert.formats import SPOOL, PathSpec
from ..convert.messages import SizeLimits
from ..convert.report import Report
from ..convert.targets import TargetWriter, open_spool, open_stream
from ..present.formatting import printable
from .content import RecordingContent

if TYPE_CHECKING:
    from ...core.run.step_table import StepTable

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The beginnings of formulas, also in their full-width forms."""
_BOOLS = {True: "true", False: "false"}


def open_csv(
    place: PathSpec, report: Report, limits: SizeLimits
) -> contextlib.AbstractContextManager[TargetWriter]:
    """Open a CSV file for the steps of the batches that are written."""
    return _open(place, report, limits, write_csv)


def open_parquet(
    place: PathSpec, report: Report, limits: SizeLimits
) -> contextlib.AbstractContextManager[TargetWriter]:
    """Open a Parquet file for the steps of the batches that are written.

    Raises MissingExtraError without pyarrow.
    """
    require()
    return _open(place, report, limits, write_parquet)


@contextlib.contextmanager
def _open(
    place: PathSpec,
    report: Report,
    limits: SizeLimits,
    write: Callable[[BinaryIO, StepTable], None],
) -> Iterator[TargetWriter]:
    collected = Report()
    with temporary_folder() as folder:
        place_of_spool = PathSpec(str(folder), SPOOL)
        with open_spool(place_of_spool, collected, limits, is_temporary=True) as target:
            yield target
        report.add_problems(collected)
        with writing_temporary_files():
            (folder / "spool").mkdir(exist_ok=True)
        reader = SpoolReader(folder)
        findings: list[ReadingProblem] = []
        content = RecordingContent(reader, select_runs(reader, None), findings, place.path)
        with content.step_table() as steps:
            if steps.count:
                with writing_temporary_files(), (folder / "steps").open("wb") as file:
                    write(file, steps)
                    report.bytes_written += file.tell()
                _copy(folder / "steps", place)
                report.written += 1
            else:
                what = f"no step: {place.path} is unchanged"
                report.skip(ReadingProblem(place.path, "no-steps", what))
        for finding in findings:
            report.skip(finding)


def _copy(path: Path, place: PathSpec) -> None:
    with path.open("rb") as file, open_stream(place) as stream:
        try:
            shutil.copyfileobj(file, stream)
        except OSError as error:
            raise TargetError(f"cannot write: {error.strerror or error}") from error


def write_csv(stream: BinaryIO, steps: StepTable) -> None:
    """Write steps as CSV in UTF-8, with a line of column names. A missing value is empty.

    Texts are changed if a spreadsheet or a terminal might execute them (`_harmless`).
    """
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_harmless(column.name) for column in steps.columns)
    for row in steps.rows():
        writer.writerow(_cell(value) for value in row)
    text.flush()
    text.detach()


def _cell(value: Any) -> Any:
    if type(value) is bool:
        return _BOOLS[value]
    return _harmless(value) if isinstance(value, str) else value


def _harmless(text: str) -> str:
    """Return a text that neither a spreadsheet nor a terminal executes.

    Any client of a collector chooses names and values of marks. A spreadsheet evaluates a cell that
    begins like a formula even if it is quoted, so an apostrophe precedes it (OWASP, "CSV
    Injection"). Control characters except line feeds and tabs are escaped.
    """
    if not text.isprintable():
        text = "".join(each if each in "\n\t" else printable(each) for each in text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_parquet(stream: BinaryIO, steps: StepTable) -> None:
    """Write steps as Parquet, compressed with Zstandard, with a checksum of each page."""
    from pyarrow import parquet  # noqa: PLC0415

    from .arrow_rows import chunks_of, schema_of_columns  # noqa: PLC0415 - pyarrow

    schema = schema_of_columns(steps.columns)
    options = {"compression": "zstd", "write_page_checksum": True}
    with parquet.ParquetWriter(stream, schema, **options) as writer:
        for chunk in chunks_of(steps.columns, steps.rows()):
            writer.write_batch(chunk)
