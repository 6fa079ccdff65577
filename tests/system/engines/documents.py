"""The figures of a run that engines compute, as documents: report, comparison and diagnosis."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cirron_otel.core.analysis.breakdown import Breakdown
from cirron_otel.core.analysis.verdicts.diagnosis import diagnose
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.source import Connect, opened_tables
from cirron_otel.core.run.compared_run import ComparedRun, compared_run
from cirron_otel.core.run.engines.opening import engine_run
from cirron_otel.core.run.opening import diagnose_batches, open_run
from cirron_otel.core.run.report import report_of
from cirron_otel.core.spool.reader import SpoolReader
from tests.kit.examples import is_drawn

Files = list[tuple[str, bytes]]
SLOWEST = 5
LIMITS = thresholds_of("run", ("warmup.steps=2", "memory.steps=2", "window.steps=100"))
"""Verdicts are given for the few steps of the generated recordings."""
ALL = ("report", "comparison", "diagnosis")
EACH_QUERY = ("report", "comparison")
"""The documents with every query: a comparison contains a diagnosis, by other limits."""


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
                documents[name] = report_of(run).to_json()
            elif name == "comparison":
                documents[name] = document_of(compared_run(run))
            else:
                documents[name] = diagnose_batches(reader, LIMITS).to_json()
    return documents


def in_engine(
    folder: Path, connect: Connect | None = None, names: tuple[str, ...] = ALL
) -> dict[str, Any]:
    """Return the documents of columnar tables, which are opened anew for each."""
    documents: dict[str, Any] = {}
    with opened_tables(ColumnarBatches(folder), connect=connect) as tables:
        for name in names:
            with tables.run(*tables.choose("all")) as run:
                opened = engine_run(run, SLOWEST)
                if name == "report":
                    documents[name] = report_of(opened).to_json()
                elif name == "comparison":
                    documents[name] = document_of(compared_run(opened))
                else:
                    window = opened.window(LIMITS, run.chosen.world_size)
                    documents[name] = diagnose(window, LIMITS).to_json()
    return documents


def document_of(compared: ComparedRun) -> dict[str, Any]:
    """The figures of a run by which `diff` compares it."""
    diagnosis = compared.diagnosis
    return asdict(compared) | {
        "steps": _figures(compared.steps),
        "diagnosis": None if diagnosis is None else diagnosis.to_json(),
    }


def _figures(steps: Breakdown) -> list[tuple[Any, ...]]:
    return [
        (each.name, each.times, each.total_ns, each.median_ns, each.p95_ns, each.max_ns)
        for each in (steps.steps, *steps.phases, steps.unattributed)
    ]
