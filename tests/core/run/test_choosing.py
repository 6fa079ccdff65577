"""A run is chosen and reduced in one pass, and this chooses what two passes choose."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.run_batch import outline_of
from cirron_otel.core.analysis.run_selection import choose_run
from cirron_otel.core.run.choosing import open_chosen_run
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.report import report_of
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import UsageError
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.spools.made import EPOCH_NS, encoded, made, span, span_id

from .spools import Files, written

FIXED = 60


def several_runs(seed: int) -> Files:
    """One to four runs with ids and names, in turns or one after the other, and odd batches."""
    chance = random.Random(seed)
    files: Files = []
    number = 0
    for run in range(chance.randint(1, 4)):
        begun = EPOCH_NS + run * chance.choice([1, 1000, 100_000])
        resource = {"cirron.run.id": span_id(900 + run), "cirron.run.name": f"run-{run % 3}"}
        session = span_id(1000 + run)
        otel = {"session": session, "session_trace_id": session}
        otel |= {"resource": {"attributes": resource}} if chance.random() < 0.9 else {}
        for batch in range(chance.randint(1, 4)):
            number += 1
            at = begun + batch * 900 + chance.randrange(100)
            of_session = span(1000 + run, None, name="cirron.session", start_ns=begun - run * 500,
                              end_ns=at + 9)  # fmt: skip
            steps = [
                span(10 * number + place, 1000 + run, start_ns=at + place, end_ns=at + place + 5)
                for place in range(3)
            ]
            content = made(number, spans=steps if batch else [*steps, of_session], otel=otel)
            files.append((f"{at:020d}-{number:032x}.json", encoded(content)))
    if chance.random() < 0.2:
        files.append((f"{EPOCH_NS + 5:020d}-{'e' * 32}.json", b"{torn"))
    if chance.random() < 0.2:
        files.append(files[0])
    return sorted(dict(files).items())


WANTED = (None, "last", "all", "run-0", "run-1", span_id(900), span_id(901), span_id(900)[:31], "?")


def in_one_pass(folder: Path, wanted: str | None) -> Any:
    reader = SpoolReader(folder)
    try:
        with open_chosen_run(reader, wanted) as (chosen, run):
            return chosen, report_of(run).to_json(), reader.findings, reader.only
    except UsageError as error:
        return str(error)


def in_two_passes(folder: Path, wanted: str | None) -> Any:
    reader = SpoolReader(folder)
    try:
        chosen = choose_run(reader, wanted)
    except UsageError as error:
        return str(error)
    with open_run(reader, reader) as run:
        return chosen, report_of(run).to_json(), reader.findings, reader.only


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(400, FIXED)))
def test_the_same_run(seed: int, tmp_path: Path) -> None:
    written(tmp_path, several_runs(seed))
    for wanted in WANTED:
        assert in_one_pass(tmp_path, wanted) == in_two_passes(tmp_path, wanted), wanted


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(200, 24)))
def test_the_same_run_of_producers(seed: int, tmp_path: Path) -> None:
    written(tmp_path, run_spool(seed))
    for wanted in (None, "all"):
        assert in_one_pass(tmp_path, wanted) == in_two_passes(tmp_path, wanted), wanted


def test_batches_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are those of several runs, if the last one is wanted; another one takes two passes."""
    reads: Counter[str] = Counter()
    read = SpoolReader.read

    def counted(self: SpoolReader, name: str, **options: Any) -> Any:
        reads[name] += 1
        return read(self, name, **options)

    monkeypatch.setattr(SpoolReader, "read", counted)
    once = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        written(folder, several_runs(seed))
        reads.clear()
        with open_chosen_run(SpoolReader(folder), None) as (_, run):
            assert run.spans
        once += max(reads.values()) == 1
    assert once >= 12


@pytest.mark.parametrize(
    ("changes", "spans", "steps", "status"),
    [
        ({"otel": 7}, 1, {0: 1}, None),
        ({"otel": {"resource": 7}, "spans": [{"name": "step"}]}, 1, {None: 1}, None),
        ({"spans": 7}, 0, {}, None),
        ({"spans": [7, {"id": 7, "name": "step", "rank": 2}]}, 1, {2: 1}, None),
        ({"spans": [{"id": "a", "name": "cirron.session", "otel": 3}]}, 1, {}, "closed"),
        ({"spans": [{"id": "a", "name": "step", "start_ns": 2**70}]}, 1, {None: 1}, None),
    ],
)
def test_outlines_of_malformed_batches(
    changes: dict[str, Any], spans: int, steps: dict[int | None, int], status: str | None
) -> None:
    outline = outline_of(encoded(made(1, spans=[span(1)]) | changes))
    assert (outline.spans, outline.steps, outline.status) == (spans, steps, status)
    assert outline.session is None
