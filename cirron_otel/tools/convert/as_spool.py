"""Any source as a spool, for analyses, which read spools."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .progress import Progress
from .report import Report
from .sources import SourceContext, open_source


@contextlib.contextmanager
def opened_as_spool(
    source: str,
    source_format: str | None,
    progress: Progress | None = None,
    run: str | None = None,
) -> Iterator[tuple[str, Report]]:
    """Yield the directory of a spool with the batches of a source, and a report of its problems.

    If the source is not a spool itself, the spool is temporary: it exists inside the block. If
    `run` is given, batches of other runs may be missing. Raises the errors of `convert`:
    UsageError, InputError, TargetError, EndpointError.
    """
    report = Report()
    with contextlib.ExitStack() as stack:
        context = SourceContext(stack, report, progress, run=run)
        _, opened = open_source(source, source_format, context)
        yield opened.directory(context), report
