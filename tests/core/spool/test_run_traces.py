"""Single steps of a run: the ones that say most, with what the files say of their scopes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.run_traces import records_at
from cirron_otel.core.run.load.scopes import Scopes
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.step_traces import StepTrace, places_of, step_traces
from cirron_otel.core.run.trees import TreeLimits, scopes_of
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.page.waterfall import fields_of

from .test_run_report import _id, span


def write(folder: Path, *texts: str) -> SpoolReader:
    (folder / "spool").mkdir()
    for number, text in enumerate(texts):
        path = folder / "spool" / f"{number:020d}-{number:032x}.json"
        path.write_text(text)
    return SpoolReader(folder)


def batch(spans: list[dict[str, Any]]) -> str:
    return json.dumps({
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "b", "created_ns": 0,
        "spans": spans, "marks": [], "snapshots": [],
    })  # fmt: skip


def traces(
    reader: SpoolReader, *asked: str, limits: TreeLimits | None = None
) -> tuple[list[StepTrace], dict[str, dict[str, Any]]]:
    scopes = Scopes(reader, once=True)
    with open_run(reader) as run:
        ranks = [each.rank for each in run.ranks]
        found = step_traces(run.recording, scopes, ranks, asked, limits or TreeLimits())
    return found, records_at(reader, places_of(scopes, [each.step for each in found]))


def test_the_slowest_and_a_typical_step_of_each_rank(tmp_path: Path) -> None:
    spans = [span("step", ns, "e", id=f"s{ns}") for ns in (5, 9, 7, 800, 6)]
    spans += [span("step", 4, id="only", rank=1), span("epoch", 900, id="e", index=3)]
    found, _ = traces(write(tmp_path, batch(spans)), _id("s6"))
    assert [(each.why, each.step.rank, each.step.duration_ns) for each in found] == [
        ("asked", 0, 6), ("slowest", 0, 800), ("typical", 0, 7), ("slowest", 1, 4),
    ]  # fmt: skip
    assert found[1].above == [("epoch", "3")]
    with pytest.raises(InputError, match="no scope 'zz'"):
        traces(SpoolReader(tmp_path), "zz")


def test_half_of_an_id_finds_no_id_of_another_shape(tmp_path: Path) -> None:
    """The half is the number of a missing integer, which ids of other shapes have as a half."""
    reader = write(tmp_path, batch([{**span("step", 5), "id": "weird id"}]))
    with pytest.raises(InputError, match="no scope '8000000000000000'"):
        traces(reader, "8" + 15 * "0")


def test_scopes_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    spans = [span(f"p{n}", 1, "s") for n in range(9)] + [span("step", 20, id="s")]
    [found], _ = traces(write(tmp_path, batch(spans)), limits=TreeLimits(spans=5, children=5))
    assert [level for level, _ in scopes_of(found.step)] == [0, 1, 1, 1, 1]
    assert found.step.children_left_out == 5


def test_step_records_contain_the_recorded_fields_verbatim(tmp_path: Path) -> None:
    """Of a batch that is not quite JSON as well; the same id twice is the first one's."""
    odd = batch([span("forward", 3, "s", id="f", attrs={"x": "NAN"})]).replace('"NAN"', "NaN")
    plain = batch([
        span("loss", 1, "s", id="l", attrs={"a": 1}, cpu_ns=5),
        span("step", 9, id="s", attrs={"mode": "train"}, thread_id=None),
    ])  # fmt: skip
    again = batch([span("step", 9, id="s", attrs={"mode": "other"})])
    reader = write(tmp_path, odd, plain, again)
    _, records = traces(reader)
    told = {span_id: dict(fields_of(record)) for span_id, record in records.items()}
    assert told[_id("s")] == {"mode": "train"}
    assert told[_id("l")] == {"cpu_ns": 5, "thread_id": 1, "a": 1}
    assert str(told[_id("f")]["x"]) == "nan"


def test_a_file_that_is_gone_meanwhile_takes_its_attributes_with_it(tmp_path: Path) -> None:
    reader = write(tmp_path, batch([span("step", 9, id="s", attrs={"a": 1})]))
    scopes = Scopes(reader, once=True)
    for path in (tmp_path / "spool").iterdir():
        path.unlink()
    assert scopes.with_id(scopes.number_of(_id("s"))).tolist() == [0]
    assert (
        records_at(reader, [(_id("s"), *place) for place in [scopes.places.of(0)] if place]) == {}
    )
