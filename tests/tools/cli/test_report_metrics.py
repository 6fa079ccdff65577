"""The losses of a run, in each form of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.core.analysis.mark_series import MarkSeries
from cirron_otel.core.analysis.metrics import losses
from cirron_otel.core.records.rows import number_of
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.main import run
from cirron_otel.tools.present.formatting import rank_list
from cirron_otel.tools.present.full_text import _by_epoch


def _series(name: str, rank: int | None, *values: str, is_eval: bool = False) -> MarkSeries:
    first, last = (values[0], values[-1]) if values else (None, None)
    series = MarkSeries(name, rank, first=first, last=last, is_eval=is_eval)
    series.add_numbers([number_of(value) for value in values], [None] * len(values))
    return series


def test_ranks_with_the_same_values_share_a_row() -> None:
    series = [_series("loss", rank, "2", "0.5", "1") for rank in (0, 1)]
    (metric,) = losses([*series, _series("accuracy", 0, "0.5")])
    assert (metric.title, metric.ranks, metric.count) == ("loss", [0, 1], 3)
    assert (metric.first, metric.last, metric.best) == (2.0, 1.0, 0.5)


def test_ranks_that_differ_have_a_row_each() -> None:
    found = losses([_series("loss", 0, "2", "1"), _series("loss", 1, "2", "0.5")])
    assert [(each.ranks, each.last) for each in found] == [([0], 1.0), ([1], 0.5)]


def test_losses_of_evaluations_and_of_loggers_are_metrics() -> None:
    found = losses([
        _series("eval_loss", None, "3", is_eval=True),
        _series("loss", None, "2", is_eval=True),
        _series("train/loss", None, "NaN"),
        _series("loss_scale", None, "65536"),
    ])  # fmt: skip
    assert [each.title for each in found] == ["train/loss", "eval_loss", "loss (eval)"]
    assert (found[0].first, found[0].best) == (None, None)


@pytest.mark.parametrize(
    ("ranks", "text"), [([None], "-"), ([0], "0"), ([0, 1, 2, 7], "0-2, 7"), ([3, 1], "1, 3")]
)
def test_ranks_as_text(ranks: list[int | None], text: str) -> None:
    assert rank_list(ranks) == text


def test_every_form_of_the_report_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "run.html"
    run(["report", str(RECORDING), "--html", str(page)])
    run(["report", str(RECORDING), "--full"])
    text = capsys.readouterr().out
    run(["report", str(RECORDING), "--json"])
    (metric,) = json.loads(capsys.readouterr().out)["metrics"]
    row = ["loss", "0", "15", "1.10727", "0.891142", "0.891142"]
    assert row in [line.split() for line in text.partition("Metrics:")[2].splitlines()]
    assert (metric["name"], metric["ranks"], metric["count"]) == ("loss", [0], 15)
    assert f"{metric['best']:.6g}" == row[-1]
    assert "The losses of the run" in page.read_text()


def test_the_means_of_epochs_name_their_series() -> None:
    series = [_series(f"eval_{'x' * length}", 0, is_eval=True) for length in (20, 80)]
    for each in series:
        each.add_numbers([0.0, 1.0], ["0", "1"])
    *_, short, long = _by_epoch(series)
    assert short == f"  eval_{'x' * 20} (eval) (rank 0): 0 → 1"
    assert long == f"  eval_{'x' * 34}… (rank 0): 0 → 1"
