"""The figures of a run that engines compute, as documents: report, comparison and diagnosis."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cirron_otel.core.analysis.breakdown import Breakdown
from cirron_otel.core.analysis.verdicts.diagnosis import diagnose
from cirron_otel.core.analysis.verdicts.run_window import diagnose_batches, step_window
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.source import Connect, OpenedRun, opened_tables
from cirron_otel.core.engines.unsupported import NeedsPythonError
from cirron_otel.core.run.costs import costs_of
from cirron_otel.core.run.engines.opening import engine_run
from cirron_otel.core.run.engines.recording import EngineRecording
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import Texts
from cirron_otel.core.run.run import Run
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import InputError
from cirron_otel.tools.present.conclude import document_of_run
from tests.kit.environments import SITE_PACKAGES, Environment
from tests.kit.examples import is_drawn

from . import relations

Files = list[tuple[str, bytes]]
SLOWEST = 5
LIMITS = thresholds_of("run", ("warmup.steps=2", "memory.steps=2", "window.steps=100"))
"""Verdicts are given for the few steps of the generated recordings."""
CHDB = Environment(
    "engines/chdb", pins=Path(__file__).parent / "pins" / "chdb.txt", paths=(SITE_PACKAGES,)
)
"""`import chdb`, whose library is 560 MB."""
FROM_INPUT = "-"
"""The tables are those that the standard input names, one directory on a line."""
ALL = ("report", "comparison", "diagnosis")
EACH_QUERY = ("report", "diagnosis")
"""The documents with every query: a comparison needs those of a report."""


def some(name: str) -> tuple[str, ...]:
    """The document of this name, since each takes seconds; `make fuzz` computes all."""
    return ALL if is_drawn() else (name,)


def of_postgres(number: int) -> tuple[str, ...]:
    """The document of a numbered recording that PostgreSQL computes."""
    return (ALL[number % len(ALL)],)


def of_duckdb(number: int) -> tuple[str, ...]:
    """The other documents: each recording has all of them by one of the two engines."""
    return tuple(name for name in ALL if name not in of_postgres(number))


def in_python(files: Files, folder: Path, names: tuple[str, ...] = ALL) -> dict[str, Any]:
    """Write the files into a spool, and return its documents."""
    (folder / "spool").mkdir(parents=True)
    for name, data in files:
        (folder / "spool" / name).write_bytes(data)
    reader = SpoolReader(folder)
    documents: dict[str, Any] = {}
    for name in names:
        with open_run(reader, reader, slowest=SLOWEST) as run:
            if name == "report":
                documents[name] = document_of_run("", run).to_json()
            elif name == "comparison":
                documents[name] = compared(run)
            else:
                documents[name] = diagnose_batches(reader, LIMITS).to_json()
    return documents


def in_engine(
    folder: Path,
    connect: Connect | None = None,
    names: tuple[str, ...] = ALL,
    *,
    is_shared: bool = False,
) -> dict[str, Any]:
    """Return the documents of columnar tables; `RELATIONS` is the one of `relations`.

    DuckDB opens the tables anew for each. Another engine, which the same code calls and whose
    queries take longer, opens them once. If `is_shared`, a report and the relations are those of
    one recording, whose blocks are large.
    """
    documents: dict[str, Any] = {}
    with opened_tables(ColumnarBatches(folder), connect=connect) as tables:
        if is_shared:
            with tables.run(*tables.choose("all")) as run:
                return with_relations(engine_run(run, SLOWEST))
        for group in [(name,) for name in names] if connect is None else [names]:
            with tables.run(*tables.choose("all")) as run:
                opened = engine_run(run, SLOWEST)
                documents |= {name: _document(name, run, opened) for name in group}
    return documents


def with_relations(run: Run) -> dict[str, Any]:
    """Return the report and the relations of a run."""
    report = document_of_run("", run).to_json()
    return {"report": report, relations.RELATIONS: relations.document_of(run.recording)}


def _document(name: str, run: OpenedRun, opened: Run) -> Any:
    if name == "report":
        return document_of_run("", opened).to_json()
    if name == "comparison":
        return compared(opened)
    if name == relations.RELATIONS:
        return relations.document_of(EngineRecording(run, Texts(), relations.FEW))
    return diagnose(step_window(opened, LIMITS, run.chosen.world_size), LIMITS).to_json()


def compared(run: Run) -> dict[str, Any]:
    """The figures of a run by which `diff` compares it."""
    costs = costs_of(run.ledger)
    return {
        "costs": None if costs is None else asdict(costs),
        "steps": _figures(run.together),
        "marks": [(each.title, each.rank, each.last) for each in run.marks[0]],
        "dropped_marks": run.dropped_marks,
    }


def _figures(steps: Breakdown) -> list[tuple[Any, ...]]:
    every = steps.steps, *steps.phases, steps.unattributed
    return [(each.name, each.times, each.total_ns, *each.spread().values()) for each in every]


def print_documents(wanted: Iterable[str], connect: Connect) -> None:
    """Print documents of tables, those of each directory on one line, as JSON.

    `wanted` has for each directory the names of its documents: `report,relations:DIR`. If it is
    `FROM_INPUT`, the lines of the standard input have them, and each pair of a report and relations
    is that of one recording. For tables that cannot be read, the line is `{"error": MESSAGE}`.
    """
    is_shared = list(wanted) == [FROM_INPUT]
    for each in map(str.strip, sys.stdin) if is_shared else wanted:
        listed, _, directory = each.partition(":")
        names = tuple(listed.split(","))
        try:
            found = in_engine(Path(directory), connect, names, is_shared=is_shared)
            if relations.RELATIONS in found:
                found[relations.RELATIONS] = relations.plain(found[relations.RELATIONS])
        except InputError as error:
            found = {"error": str(error)}
        except NeedsPythonError as reason:
            found = {"needs_python": str(reason)}
        except Exception:
            if not is_shared:
                raise
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), flush=True)
