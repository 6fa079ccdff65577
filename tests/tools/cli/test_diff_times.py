"""`diff`: the difference of the wall time of two runs, and the accounts that explain it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.durations import duration
from cirron_otel.tools.cli.main import run as run_command
from tests.kit.html_page import Page
from tests.kit.sessions.opened import opened

from .comparing import job

Out = pytest.CaptureFixture[str]


def compared(a: Path, b: Path, out: Out, *options: str) -> tuple[dict[str, Any], str]:
    """Return the JSON document and the text of the comparison of two spools."""
    out.readouterr()
    assert run_command(["diff", str(a), str(b), "--json", *options]) == 0
    document = json.loads(out.readouterr().out)
    assert run_command(["diff", str(a), str(b), *options]) == 0
    return document, out.readouterr().out


def named(document: Mapping[str, Any]) -> list[str]:
    return [each["account"] for each in document["accounts"] if each["is_named"]]


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def cells_of(text: str) -> dict[str, list[str]]:
    """Return the rows of the tables in a text by their first cell."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines}


@pytest.mark.parametrize(
    ("forward", "kind", "codes"),
    [(5, "SAME", (0, 0)), (5.5, "SLOWER", (6, 0)), (7, "SLOWER", (6, 6)),
     (3, "FASTER", (0, 0))],
)  # fmt: skip
def test_a_longer_forward_pass(
    tmp_path: Path, forward: float, kind: str, codes: tuple[int, int], capsys: Out
) -> None:
    a, b = job(tmp_path / "a", 5), job(tmp_path / "b", forward)
    found = tuple(
        run_command(["diff", str(a), str(b), "--fail-on", level]) for level in ("warn", "crit")
    )
    assert found == codes
    document, text = compared(a, b, capsys)
    assert document["schema_version"] == 2
    assert document["verdict"] == kind.lower()
    assert named(document) == ([] if forward == 5 else ["forward"])
    assert document["change"] == pytest.approx((forward - 5) / 10)
    assert document["median"] == {"change": pytest.approx((forward - 5) / 10), "noise": 0}
    assert f"\n{kind}" in text
    assert "the wall time per step is 10 ms in A and" in document["why"]
    if forward == 5:
        assert document["cause"] is None
    else:
        assert document["cause"] == {
            "account": "forward", "per_unit_ns": pytest.approx((forward - 5) * 1e6), "share": 1.0,
        }  # fmt: skip


def test_logging_evaluations_and_a_stall_are_named_in_the_headline(
    tmp_path: Path, capsys: Out
) -> None:
    more: dict[int, Mapping[str, float]] = {n: {"log_metrics": 100} for n in range(5, 60, 10)}
    more |= {30: {"validation": 250}, 40: {"data_load": 151}}
    a, b = job(tmp_path / "a"), job(tmp_path / "b", more=more)
    document, text = compared(a, b, capsys)
    assert document["headline"] == (
        "B takes 1 s longer (+167 %): logging +600 ms (60 % of it), evaluation +250 ms (25 % of"
        " it), waiting for input +150 ms (15 % of it)."
    )
    assert f"SLOWER (crit): {document['headline']}" in in_one_line(text)
    assert document["median"]["change"] == 0
    assert "The wall time of 60 steps:" in text
    assert "new in B: CRITICAL LOGGING_HEAVY: 600 ms" in text
    new = [each["kind"] for each in document["findings"] if each["change"] == "new"]
    assert "LOGGING_HEAVY" in new
    assert all((each["a"] is None) == (each["change"] == "new") for each in document["findings"])


def test_runs_of_different_lengths_are_compared_per_unit(tmp_path: Path, capsys: Out) -> None:
    a, b = job(tmp_path / "a", units=60), job(tmp_path / "b", 8, units=90)
    document, text = compared(a, b, capsys)
    assert document["headline"] == (
        "B takes 3 ms longer per step (+30 %; 60 steps in A, 90 steps in B): forward +3 ms per"
        " step (100 % of it)."
    )
    assert document["ledger"]["is_per_unit"]
    assert "The wall time per step:" in text
    same, _ = compared(a, job(tmp_path / "c", units=90), capsys)
    assert same["verdict"] == "same"
    assert same["headline"] == (
        "The wall time per step differs by +0.0 %; the noise of both runs is 0.0 %."
    )
    assert {each["change"] for each in same["findings"]} <= {"same"}


def test_text_and_json_have_the_same_numbers(tmp_path: Path, capsys: Out) -> None:
    a = job(tmp_path / "a", ranks=2, more={7: {"log_metrics": 20}, 9: {"log_metrics": 30}})
    b = job(tmp_path / "b", 6.5, ranks=2, more={20: {"save_checkpoint": 40}})
    document, text = compared(a, b, capsys)
    head, figures = text.split("\nsteps ")
    rows, figure_rows = cells_of(head), cells_of(figures)
    names = {"input": "waiting for input", "checkpoint": "checkpoints"}
    ledger, units = document["ledger"], 60
    accounts = [each for each in document["accounts"] if each["share"] is not None]
    assert len(accounts) == 5
    for each in accounts:
        cells = rows[names.get(each["account"], each["account"])]
        assert cells[:2] == [duration(each["a_ns"]), duration(each["b_ns"])]
        change = round(each["change_per_unit_ns"] * units)
        assert cells[2] == ("-" if change < 0 else "+") + duration(abs(change))
        if each["is_named"]:
            assert cells[4] == f"{round(100 * each['part'])} %"
    assert rows["wall time"][:2] == [duration(ledger[side]["wall_ns"]) for side in "ab"]
    sides = document["units"]
    for name in ("p50", "p95", "p99", "max"):
        assert figure_rows[name][:2] == [duration(sides[side][f"{name}_ns"]) for side in "ab"]
        assert figure_rows[name][2] == f"{100 * sides['change'][name]:+.1f} %"
    for phase in document["phases"]:
        medians = [duration(phase[side]["median_ns"]) if phase[side] else "-" for side in "ab"]
        assert figure_rows[phase["name"]][2:4] == medians
    for side, letter in zip("ab", "AB", strict=True):
        status, headline = document[side]["status"], document[side]["headline"]
        assert f"{letter}: {status.upper()}: {headline}" in in_one_line(text)
    assert document["headline"] in in_one_line(text)
    assert document["why"][1:] in in_one_line(text)


def test_the_figures_are_those_of_the_reports(tmp_path: Path, capsys: Out) -> None:
    sides = job(tmp_path / "a"), job(tmp_path / "b", 7, ranks=2)
    document, _ = compared(*sides, capsys)
    for key, side in zip("ab", sides, strict=True):
        assert run_command(["report", str(side), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        ranks = len(report["ledger"]["ranks"])
        accounts = {each["account"]: each["ns"] for each in report["ledger"]["accounts"]}
        found = {each["account"]: each[f"{key}_ns"] for each in document["accounts"]}
        assert {name: ns for name, ns in found.items() if ns} == {
            name: round(ns / ranks) for name, ns in accounts.items()
        }
        assert document["units"][key] == report["units"]
        assert (document[key]["status"], document[key]["headline"]) == (
            report["status"], report["headline"],
        )  # fmt: skip
        ids = [each[key]["id"] for each in document["findings"] if each[key] is not None]
        assert sorted(ids) == sorted(each["id"] for each in report["findings"])


def test_too_few_steps(tmp_path: Path, capsys: Out) -> None:
    a, b = job(tmp_path / "a"), job(tmp_path / "b", 9, units=12)
    document, _ = compared(a, b, capsys)
    assert document["verdict"] == "inconclusive"
    assert document["noise"] is None
    assert "B has too few steps to measure its noise: 20 after" in document["headline"]
    assert run_command(["diff", str(a), str(b), "--fail-on", "warn"]) == 0


def test_runs_without_units_have_nothing_to_compare(tmp_path: Path, capsys: Out) -> None:
    with opened(tmp_path / "b"), ci.scope("mine"):
        pass
    document, text = compared(job(tmp_path / "a"), tmp_path / "b", capsys)
    assert document["change"] is None
    assert "INCONCLUSIVE: B has no steps to compare." in text
    assert (document["ledger"]["b"], document["accounts"]) == (None, [])
    document, text = compared(tmp_path / "b", tmp_path / "b", capsys)
    assert "INCONCLUSIVE: A has no steps to compare." in text


def test_the_configuration_that_differs(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rate in (("a", "0.1"), ("b", "0.2")):
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"cirron.config.lr={rate},team=vision")
        with opened(tmp_path / name), ci.scope("epoch", 0):
            for number in range(3):
                with ci.scope("step", number):
                    pass
    document, text = compared(tmp_path / "a", tmp_path / "b", capsys)
    assert document["configuration"] == [{"key": "cirron.config.lr", "a": "0.1", "b": "0.2"}]
    assert "cirron.config.lr: 0.1 -> 0.2" in text


_SLOWER: dict[str, tuple[Mapping[int, Mapping[str, float]], float]] = {
    "logging": ({n: {"log_metrics": 100} for n in range(5, 60, 10)}, 100),
    "evaluation": ({30: {"validation": 60}}, 10),
    "checkpoint": ({20: {"save_checkpoint": 60}}, 10),
    "stall": ({33: {"data_load": 61}}, 10),
    "nothing": ({}, 0),
}
"""Times in ms that steps have in addition, and by how many percent the wall time is longer."""


@pytest.mark.parametrize("cause", _SLOWER)
def test_the_wall_time_and_its_accounts_fail_beyond_a_share(tmp_path: Path, cause: str) -> None:
    more, percent = _SLOWER[cause]
    a, b = job(tmp_path / "a"), job(tmp_path / "b", more=more)
    for limit in (1, 5, 9, 11, 150):
        code = run_command(["diff", str(a), str(b), "--fail-on", f"slower={limit}%"])
        assert code == (6 if percent > limit else 0)
        assert run_command(["diff", str(b), str(a), "--fail-on", f"slower={limit}%"]) == 0


def test_an_account_fails_although_another_one_is_shorter(tmp_path: Path) -> None:
    more = {n: {"log_metrics": 20} for n in range(5, 60, 10)}
    a, b = job(tmp_path / "a", 5), job(tmp_path / "b", 3, more=more)
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=5%"]) == 6
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=25%"]) == 0
    assert run_command(["diff", str(a), str(b), "--fail-on", "warn"]) == 0


@pytest.mark.parametrize("value", ["slower", "slower=5", "slower=-1%", "slower=x%", "fast"])
def test_another_condition_is_refused(tmp_path: Path, value: str, capsys: Out) -> None:
    a = job(tmp_path / "a")
    assert run_command(["diff", str(a), str(a), "--fail-on", value]) == 2
    assert "for example slower=5%" in in_one_line(capsys.readouterr().err)


def test_the_batch_size_is_named_and_times_are_compared_per_sample(
    tmp_path: Path, capsys: Out
) -> None:
    """A step is 80 % longer, and has twice as many samples."""
    size = "cirron.data_loader.batch_size"
    a = job(tmp_path / "a", 5, resource={size: 32, "cirron.optimizer.learning_rate": 0.1})
    b = job(tmp_path / "b", 13, resource={size: 64, "cirron.optimizer.learning_rate": 0.2})
    document, text = compared(a, b, capsys)
    assert document["verdict"] == "slower"
    assert document["samples"]["change"] == pytest.approx(-0.1)
    ending = "; data_loader.batch_size 32 -> 64 (-10 % per sample)."
    assert document["headline"].endswith(ending)
    assert ending in in_one_line(text)
    # Per sample, forward takes 15 % of the wall time longer.
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=14%"]) == 6
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=16%"]) == 0
    assert run_command(["diff", str(a), str(b), "--fail-on", "crit"]) == 6


def test_the_page_has_the_lines_and_the_tables(tmp_path: Path, capsys: Out) -> None:
    more: dict[int, Mapping[str, float]] = {n: {"log_metrics": 100} for n in range(5, 60, 10)}
    resource = {"cirron.run.name": "<b>one", "cirron.optimizer.name": "SGD"}
    a = job(tmp_path / "a", resource=resource)
    b = job(tmp_path / "b", more=more, resource={**resource, "cirron.optimizer.name": "AdamW"})
    document, text = compared(a, b, capsys)
    target = tmp_path / "page.html"
    assert run_command(["diff", str(a), str(b), "--html", str(target)]) == 0
    assert f"{target} is written" in capsys.readouterr().err
    page = Page(target.read_text("utf-8"))
    shown = in_one_line(" ".join(page.texts))
    assert document["headline"] in shown
    assert "<b>one" in shown
    assert "cirron.optimizer.name: SGD -> AdamW" in shown
    rows = {row[0]: row for row in page.tables["The wall time of 60 steps"][1:]}
    cells = cells_of(text)["logging"]
    assert rows["logging"][1:] == cells
    assert len(page.tables) == 3


@pytest.mark.parametrize("name", ["", "-", "a/spool/page.html"])
def test_a_page_is_not_written_over_a_source(tmp_path: Path, name: str, capsys: Out) -> None:
    a = job(tmp_path / "a")
    target = str(tmp_path / name) if "/" in name else name
    assert run_command(["diff", str(a), str(a), "--html", target]) == 2
    assert "--html" in capsys.readouterr().err
    assert sorted(each.suffix for each in (a / "spool").iterdir()) == [".json"]


def test_runs_with_too_few_steps_are_reported(tmp_path: Path, capsys: Out) -> None:
    a, b = job(tmp_path / "a"), job(tmp_path / "b", 25, units=12)
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=5%"]) == 1
    assert "too few units to measure its noise" in capsys.readouterr().err
    assert run_command(["diff", str(a), str(a), "--fail-on", "slower=0%"]) == 0


def test_samples_are_those_of_all_fetches_of_a_step(tmp_path: Path, capsys: Out) -> None:
    """A step of B has two batches of 4 samples, and A one of 8."""
    size = "cirron.data_loader.batch_size"
    a = job(tmp_path / "a", resource={size: 8})
    b = job(tmp_path / "b", resource={size: 4}, fetches=2)
    document, _ = compared(a, b, capsys)
    assert document["samples"] == {"a_ns": 1.25e6, "b_ns": 1.375e6, "change": pytest.approx(0.1)}
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=9%"]) == 6
    assert run_command(["diff", str(a), str(b), "--fail-on", "slower=11%"]) == 0
