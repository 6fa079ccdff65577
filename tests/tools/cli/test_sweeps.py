"""`runs ls --sort loss` and the table of runs list the runs of a sweep with their losses."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.analysis.metrics import LossMetric, is_evaluation, is_loss
from cirron_otel.tools.cli.main import run as run_command
from tests.core.analysis.verdicts.records import Rank, write_spool
from tests.kit.html_page import Page
from tests.kit.spools.made import encoded

RATES = (0.3, 0.001, 0.01, 3.0, 0.1)


def sweep(folder: Path, losses: Sequence[dict[str, Sequence[float]]]) -> Path:
    """Write a spool with a run for each element: its losses by name, and its learning rate."""
    for number, of_run in enumerate(losses):
        rank = Rank(0, pid=number + 1, start=10**18 + number * 10**12)
        rank.session = f"s{number}"
        rank.resource = {
            "cirron.config.lr": RATES[number % len(RATES)], "cirron.config.seed": 1,
            "cirron.optimizer.learning_rate": RATES[number % len(RATES)],
            "cirron.run.name": f"run{number}",
        }  # fmt: skip
        for step in range(3):
            rank.step(step, {"forward": 5})
            for name, values in of_run.items():
                rank.mark(name, values[step])
        made = write_spool(folder / str(number), [rank], run=f"{number + 1:032x}")
        for path in (made / "spool").iterdir():
            batch = json.loads(path.read_bytes())
            batch["batch_id"] = f"{number + 1:032x}"
            target = folder / "all" / "spool" / f"{rank.begun:020d}-{number + 1:032x}.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(encoded(batch))
    return folder / "all"


def listed(spool: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run_command(["runs", "ls", str(spool), "--json", *options]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("seed", range(3))
def test_the_run_with_the_lowest_evaluation_loss_is_first(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    best = [chance.random() for _ in range(20)]
    losses = [
        {"loss": [chance.random()] * 3, "val_loss": chance.sample([value, value + 1, value + 2], 3)}
        for value in best
    ]
    spool = sweep(tmp_path, losses)
    found = listed(spool, capsys, "--sort", "loss")
    assert [each["loss"]["best"] for each in found["runs"]] == sorted(best)
    assert {each["loss"]["name"] for each in found["runs"]} == {"val_loss"}
    assert found["settings"] == ["cirron.config.lr", "cirron.optimizer.learning_rate"]
    assert run_command(["runs", "ls", str(spool), "--sort", "loss"]) == 0
    head, _, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["val_loss", "best", "lr"]
    assert first.split()[1] == f"run{best.index(min(best))}"
    assert float(first.split()[-1]) == RATES[best.index(min(best)) % len(RATES)]
    frame = ci.read(spool).runs().to_pandas().sort_values("loss_best")
    assert list(frame["run_id"]) == [each["id"] for each in found["runs"]]
    assert list(frame["lr"]) == [each["resource"]["cirron.config.lr"] for each in found["runs"]]


def test_the_last_training_loss_counts_without_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = [[3.0, 0.1, 2.0], [3.0, 2.0, 1.0], [1.0, 1.0, float("nan")]]
    spool = sweep(tmp_path, [{"loss": each} for each in losses])
    runs = listed(spool, capsys, "--sort", "loss")["runs"]
    assert [each["name"] for each in runs] == ["run1", "run0", "run2"]
    assert [each["loss"]["last"] for each in runs] == [1.0, 2.0, None]


def test_a_run_without_a_loss_is_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool = sweep(tmp_path, [{}, {"loss": [1, 1, 1]}, {"val_loss": [5, 5, 5], "loss": [2, 2, 2]}])
    found = listed(spool, capsys, "--sort", "loss")
    assert [each["name"] for each in found["runs"]] == ["run2", "run0", "run1"]
    assert found["runs"][0]["loss"]["name"] == "val_loss"


def test_losses_are_those_of_the_stored_conclusion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = sweep(tmp_path, [{"loss": [3, 2, 1]}, {"loss": [4, 3, 2]}])
    (spool / "state").mkdir()
    assert [each["loss"] for each in listed(spool, capsys)["runs"]] == [None, None]
    assert run_command(["report", str(spool), "--run", "run1"]) in (0, 1)
    losses = [each["loss"] for each in listed(spool, capsys)["runs"]]
    assert losses == [None, {"name": "loss", "last": 2, "best": 2}]
    names = [each["name"] for each in listed(spool, capsys, "--sort", "loss")["runs"]]
    assert names == ["run0", "run1"]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return sweep(tmp_path, [{"loss": [1, 1, 1]}] * 3)


def test_other_orders(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [each["name"] for each in listed(three, capsys)["runs"]]
    assert names == ["run0", "run1", "run2"]
    for order in ("name", "duration", "start", "loss"):
        assert [e["name"] for e in listed(three, capsys, "--sort", order)["runs"]] == names


def test_the_page_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [{"loss": [3.0, 0.1, 2.0]}, {"loss": [3.0, 2.0, 1.0]}, {}]
    spool = sweep(tmp_path, losses)
    target = tmp_path / "sweep.html"
    assert run_command(["runs", "report", str(spool), "--html", str(target)]) == 0
    page = Page(target.read_text("utf-8"))
    _, *rows = page.tables["The runs, the best loss first"]
    assert [row[0] for row in rows] == ["run1", "run0", "run2"]
    assert [row[3:6] for row in rows] == [["1", "1", "0.001"], ["2", "0.1", "0.3"],
                                          ["-", "-", "0.01"]]  # fmt: skip
    text = " ".join(page.texts)
    assert text.count("loss by value, lowest 0.1") == text.count("loss by time, lowest 0.1") == 1
    assert "and 1 more run without a loss, or beyond 40" in text
    assert "The number of runs with each status" in text
    assert page.sections[:2] == ["runs", "losses"]


def test_a_page_of_hostile_names(tmp_path: Path) -> None:
    rank = Rank(0)
    rank.resource = {"cirron.run.name": "<script>", "cirron.config.<b>": "\x1b[31m"}
    rank.step(0, {"forward": 5})
    rank.mark("<i>/loss", 1.0)
    write_spool(tmp_path, [rank], run="\ud800")
    target = tmp_path / "sweep.html"
    assert run_command(["runs", "report", str(tmp_path), "--html", str(target)]) == 0
    assert "<script>" in Page(target.read_text("utf-8")).texts


def test_settings_are_those_of_any_process_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first session may be that of the launcher, which has none."""
    ranks = []
    for number, resource in enumerate(({}, {"cirron.data_loader.batch_size": 8})):
        rank = Rank(number, pid=number + 1)
        rank.resource = dict(resource)
        rank.step(0, {"forward": 5})
        ranks.append(rank)
    spool = write_spool(tmp_path, ranks, run=f"{1:032x}")
    (run,) = listed(spool, capsys)["runs"]
    assert run["resource"]["cirron.data_loader.batch_size"] == 8


@pytest.mark.parametrize(
    ("name", "is_evaluated"),
    [("loss", False), ("train/loss", False), ("Loss/train", False), ("train_loss", False),
     ("eval_loss", True), ("val/loss", True), ("Loss/test", True), ("accuracy", None),
     ("loss_scale", None), ("lr/loss_weight", None)],
)  # fmt: skip
def test_the_names_of_losses(name: str, is_evaluated: bool | None) -> None:
    assert is_loss(name) == (is_evaluated is not None)
    if is_evaluated is not None:
        assert is_evaluation(LossMetric(name, False, [0], 1, 1.0, 1.0, 1.0)) == is_evaluated
