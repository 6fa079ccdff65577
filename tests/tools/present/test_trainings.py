"""Several trainings in one process: a row each in the text, the page, the document and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import cirron_otel as ci
from cirron_otel.core.run.figures.trainings import TrainingFigures
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.tools.present.conclude import document_of_run
from cirron_otel.tools.present.document import Document
from cirron_otel.tools.present.text import document_parts, plain_lines
from tests.core.run.spools import written
from tests.kit.spools.made import EPOCH_NS, encoded, made, mark, span
from tests.tools.frames.tables import arrow_rows

MS = 10**6
TIMES = {0: (20, 10), 1: (30, 4), 2: (10, 50)}
"""By training: the number of its steps, and the time of each, ms."""


def reader_of(folder: Path, name: str = "fold <2>") -> SpoolReader:
    spans: list[dict[str, Any]] = []
    marks, now = [], EPOCH_NS
    for training, (count, ms) in TIMES.items():
        attrs = {"training": training} if training else {}
        for index in range(count):
            number = 10 * len(spans) + 1
            step = span(number, index=index, start_ns=now, end_ns=now + ms * MS, attrs=attrs)
            forward = span(number + 1, number, name="forward", start_ns=now, end_ns=now + ms * MS)
            spans += [forward, step]
            if index == 0 and training == 2:
                marks.append(mark(number + 2, number, name="training", value=2, value_type="int",
                                  ts_ns=now, attrs={"name": name}))  # fmt: skip
            now += ms * MS
        now += 1000 * MS
    batch = made(1, spans=spans, marks=marks)
    return written(
        folder, [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    )


@pytest.fixture
def document(tmp_path: Path) -> Document:
    reader = reader_of(tmp_path / "s")
    with open_run(reader, reader) as run:
        return document_of_run("source", run)


def test_the_document_has_each_training(
    document: Document, validator: jsonschema.Draft202012Validator
) -> None:
    found = document.to_json()
    validator.validate(found)
    names = {0: None, 1: None, 2: "fold <2>"}
    assert found["units"]["trainings"] == [
        {"number": number, "name": names[number], "units": count, "p50_ns": ms * MS,
         "p95_ns": ms * MS, "duration_ns": count * ms * MS}
        for number, (count, ms) in TIMES.items()
    ]  # fmt: skip
    assert document.status == "healthy"
    idle = [each["ns"] for each in found["ledger"]["accounts"] if each["account"] == "idle"]
    assert idle == [2000 * MS]


def test_the_text_has_a_row_for_each_training(document: Document) -> None:
    short = plain_lines(document_parts(document))
    assert "60 steps in 3 trainings of 1 rank" in short[1]
    assert "training 2 (fold <2>): 10 steps; p50 50 ms, p95 50 ms, 500 ms" in short
    full = "\n".join(plain_lines(document_parts(document, full=True)))
    assert "training      steps    p50    p95    time\n" in full
    assert (
        "\n1                30   4 ms   4 ms  120 ms\n2 (fold <2>)     10  50 ms  50 ms  500 ms"
        in full
    )


def test_the_text_has_a_few_of_many_trainings(document: Document) -> None:
    assert document.units is not None
    document.units = replace(
        document.units,
        trainings=[TrainingFigures(at, None, 20, MS, MS, 20 * MS) for at in range(1000)],
    )
    rest = "and 984 more: --json has them"
    short = plain_lines(document_parts(document))
    assert [each.split(":")[0] for each in short if each.startswith("training ")] == [
        f"training {number}" for number in range(16)
    ]
    assert short.count(rest) == 1
    full = plain_lines(document_parts(document, full=True))
    assert full[full.index(rest) - 1].split()[0] == "15"
    assert len(document.to_json()["units"]["trainings"]) == 1000


def test_the_table_of_steps_has_the_training(tmp_path: Path) -> None:
    reader_of(tmp_path / "s")
    rows = arrow_rows(ci.read(tmp_path / "s").steps())
    expected = [number for number, (count, _) in TIMES.items() for _ in range(count)]
    assert [row["training"] for row in rows] == expected
