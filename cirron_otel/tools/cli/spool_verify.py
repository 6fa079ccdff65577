"""`cirron-otel spool verify`: list the problems of each file."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

import click

from ...core.records.findings import Finding
from . import output
from .parameters import json_option, spool_argument
from .text import count, printable

_MAX_IN_DOCUMENT = 10_000


@click.command(short_help="What is wrong with which file.")
@spool_argument
@json_option
def verify(directory: str, as_json: bool) -> int:
    """What is wrong with which file; exit code 1 where there are errors.

    Notes (what is unusual, but read without loss) are shown and do not fail.
    """
    from ...core.analysis.verify import verify_spool
    from ...core.spool.reader import SpoolReader

    reader = SpoolReader(directory)
    errors = notes = 0
    findings: list[Finding] = []
    for finding in verify_spool(reader):
        if finding.severity == "error":
            errors += 1
        else:
            notes += 1
        if not as_json:
            output.result(printable(str(finding)))
        elif len(findings) < _MAX_IN_DOCUMENT:
            findings.append(finding)
    path = str(reader.paths.spool)
    if as_json:
        output.document(
            {
                "path": path,
                "errors": errors,
                "notes": notes,
                "findings": [finding.to_json() for finding in findings],
                "findings_left_out": errors + notes - len(findings),
            }
        )
    else:
        output.result(f"{printable(path)}: {count(errors, 'error')}, {count(notes, 'note')}")
    return 1 if errors else 0
