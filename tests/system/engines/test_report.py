"""The figures of an engine are equal to those of Python, to the digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.run_selection import ALL
from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.source import opened_tables
from cirron_otel.core.engines.unsupported import NeedsPythonError
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.tools.cli.demo import RECORDING
from tests.core.columns.helpers import TINY, add
from tests.kit.examples import examples
from tests.kit.generators.trees import random_spool, training
from tests.kit.spools.made import encoded, made, mark, span, span_id
from tests.kit.spools.recorded import NAMES, SPOOLS, as_own

from . import documents
from .documents import Files, in_engine, in_python


def in_duckdb(
    files: Files, folder: Path, limits: WriterLimits = TINY, names: tuple[str, ...] = documents.ALL
) -> dict[str, Any]:
    add(folder, files, limits)
    return in_engine(folder, names=names)


def files_of(spool: Path) -> Files:
    return as_own((batch.name, batch.data) for batch in SpoolReader(spool))


RECORDINGS = {name: SPOOLS / name for name in NAMES} | {"demo": RECORDING}


@pytest.mark.parametrize(("number", "name"), [*enumerate(RECORDINGS)], ids=RECORDINGS)
def test_recordings(number: int, name: str, tmp_path: Path) -> None:
    files, names = files_of(RECORDINGS[name]), documents.of_duckdb(number)
    expected = in_python(files, tmp_path / "s", names)
    assert in_duckdb(files, tmp_path / "c", names=names) == expected


TREES = {0: "report", 1: "comparison", 3: "diagnosis", 5: "diagnosis", 6: "comparison",
         9: "report", 10: "comparison", 13: "diagnosis", 21: "report"}  # fmt: skip
"""A document of random trees, by their seed. For each document there are trees with repeated spans,
with step summaries, and with odd records."""
MORE_TREES = [seed for seed in range(60) if seed not in TREES]


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", [*TREES, *MORE_TREES[: examples(len(MORE_TREES), 0)]])
def test_random_trees(seed: int, tmp_path: Path) -> None:
    files = random_spool(seed)
    names = documents.some(TREES.get(seed, "report"))
    expected = in_python(files, tmp_path / "s", tuple({"report", *names}))
    assert expected["report"]["spans"] > 90
    found = in_duckdb(files, tmp_path / "c", names=names)
    assert found == {name: expected[name] for name in names}


def test_scopes_of_many_levels(tmp_path: Path) -> None:
    """Phases of one step in 75 levels of scopes, which are in an epoch through 60 others.

    A chain of so many unions would be deeper than Python's recursion.
    """
    spans = [span(0, name="epoch", index=3)]
    spans += [span(number, number - 1, name="mine") for number in range(1, 61)]
    spans.append(span(61, 60, index=0))
    for number in range(62, 212, 2):
        spans.append(span(number, number - 2 if number > 62 else 61, name="mine"))
        spans.append(span(number + 1, number, name="forward"))
    batch = made(0, spans=spans)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    names = ("comparison", "diagnosis")
    expected = in_python(files, tmp_path / "s", names)
    comparison = expected["comparison"]
    assert [(name, times) for name, times, *_ in comparison["steps"]] == [
        ("step", 1), ("mine", 1), ("forward", 75), ("unattributed", 1),
    ]  # fmt: skip
    assert expected["diagnosis"]["window"]["first"] == {"epoch": "3", "step": "0"}
    assert in_duckdb(files, tmp_path / "c", names=names) == expected


def test_scopes_that_contain_each_other(tmp_path: Path) -> None:
    """The search for the epoch around a step ends at the first scope that it has met before."""
    spans = [span(0, name="epoch", index=3)]
    spans += [span(number, number - 1, name="mine") for number in range(1, 21)]
    spans += [span(100 + number, 100 + (number + 1) % 3, name="mine") for number in range(3)]
    spans += [span(200, 20, index=0), span(201, 100, index=1), span(202, 201, name="forward")]
    batch = made(0, spans=spans)
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    found = in_duckdb(files, tmp_path / "c", names=("report",))
    assert found == in_python(files, tmp_path / "s", ("report",))
    assert [each["epoch"] for each in found["report"]["slowest"]] == ["3", None]


def test_a_training_of_several_ranks_with_a_straggler(tmp_path: Path) -> None:
    files = training(ranks=3, steps=40)
    found = in_duckdb(files, tmp_path / "c", WriterLimits())
    assert found == in_python(files, tmp_path / "s")
    report = found["report"]
    assert "COMPUTE_STRAGGLER" in [each["kind"] for each in report["findings"]]
    assert [each["steps"]["times"] for each in report["ranks"]] == [80] * 3
    assert found["comparison"]["costs"]["noise"] > 0
    assert found["diagnosis"]["primary"] == "COMPUTE_STRAGGLER"


def test_a_loss_at_the_end_of_a_failed_session_is_its_last_loss(tmp_path: Path) -> None:
    session = span(
        1, name="cirron.session", index=None, otel={"status": {"code": 2, "message": "ValueError"}}
    )
    losses = [mark(2, 1, value=1.0, ts_ns=session["end_ns"] - 1)]
    losses.append(mark(3, 1, value=2.0, ts_ns=session["end_ns"]))
    batch = made(1, spans=[session], marks=losses, otel={"session": span_id(1)})
    files = [("1.json", encoded(batch))]
    found = in_duckdb(files, tmp_path / "c", names=("report",))
    assert found == in_python(files, tmp_path / "s", ("report",))
    (failure,) = found["report"]["failures"]
    assert failure["last_loss"] == 2.0


def test_the_comparison_notices_a_changed_name(tmp_path: Path) -> None:
    files = training(ranks=1, steps=40)
    changed = [(name, data.replace(b'"name":"loss"', b'"name":"lost"')) for name, data in files]
    found, expected = in_python(changed, tmp_path / "c"), in_python(files, tmp_path / "s")
    differing = {name for name, each in found.items() if each != expected[name]}
    assert differing == {"report", "comparison"}
    [report] = in_duckdb(changed, tmp_path / "d", names=("report",)).values()
    assert report == found["report"]
    assert report != expected["report"]


def test_a_recording_without_records(tmp_path: Path) -> None:
    assert in_duckdb([], tmp_path / "c") == in_python([], tmp_path / "s")


@pytest.mark.parametrize(
    "changes",
    [
        [(b'"name":"loss"', b'"name":"digest.loss"')],
        [(b'"rank":0', b'"rank":-1'), (b'"rank":1', b'"rank":null')],
        [(b'"gpu_ns":null', b'"gpu_ns":4611686018427387904')],
        [(b'"name":"step"', b'"name":"batch"')],
    ],
)
def test_records_that_only_python_reads_are_named(
    changes: list[tuple[bytes, bytes]], tmp_path: Path
) -> None:
    files = training(ranks=2, steps=2)
    for change in changes:
        files = [(name, data.replace(*change)) for name, data in files]
    add(tmp_path, files)
    with opened_tables(ColumnarBatches(tmp_path)) as tables:
        selected = tables.choose(ALL)
        with pytest.raises(NeedsPythonError), tables.run(*selected):
            pass
