"""The lines in which the time of an account goes: counted by account, and named in sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cirron_otel.core.run.figures.places import PlaceCount
from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.semconv import PLACE
from cirron_otel.tools.cli.main import run as run_command
from tests.core.analysis.verdicts.records import Rank, write_spool

from .ledgers import Times, job

_SLOW = {
    "INPUT_BOUND": "input", "WAIT_HEAVY": "unattributed", "BETWEEN_UNITS": "between_units",
    "LOSS_HEAVY": "loss", "OPTIMIZER_HEAVY": "optimizer",
}  # fmt: skip


def sentence(account: str, places: Sequence[tuple[str, int]]) -> str:
    def plant(times: Times) -> None:
        times[account] += 100

    facts = Facts(
        job(1, 100, plant=plant), places={account: [PlaceCount(*each) for each in places]}
    )
    return conclude(facts)[0].sentence


@pytest.mark.parametrize("kind", _SLOW)
def test_the_line_of_most_samples_is_named(kind: str) -> None:
    of = " of __getitem__" if kind == "INPUT_BOUND" else ""
    line = f"data.py:88 (slow){of}"
    found = sentence(_SLOW[kind], [(line, 14), (f"data.py:9 (other){of}", 3)])
    assert found.endswith(f". Most of its samples (14 of 17) are in {line}.")


def test_a_function_is_named_if_its_lines_vary() -> None:
    lines = [(f"train.py:{line} (log)", 3) for line in (8, 9, 10)]
    found = sentence("between_units", [*lines, ("train.py:40 (main)", 4)])
    assert found.endswith(" Most of its samples (9 of 13) are in train.py (log).")


@pytest.mark.parametrize(
    ("account", "places"),
    [
        ("unattributed", [("train.py:8 (main)", 4)]),
        ("unattributed", [(f"{name}.py:8 (main)", 3) for name in "abc"]),
        ("input", [("train.py:8 (main)", 40)]),
        ("loss", []),
    ],
)
def test_no_line_is_named_without_enough_samples(
    account: str, places: list[tuple[str, int]]
) -> None:
    """The line of a loop that waits for the workers of a loader explains nothing."""
    assert "samples" not in sentence(account, places)


@pytest.mark.parametrize("engine", ["python", "duckdb"])
def test_samples_are_counted_by_account(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = Rank()
    rank.epoch(0)

    def sample(ms: float, text: str) -> None:
        rank.mark(PLACE, 0.0)
        at = rank.at + round(ms * 1e6)
        rank.marks[-1] |= {"value": text, "value_type": "string", "ts_ns": at}

    sample(-1, "train.py:1 (main) in cirron.session")  # ahead of the first unit
    for number in range(40):
        # Scopes end late: the step is still open in the gap after it.
        sample(10, "data.py:8 (<lambda>) of collate in data_load")
        sample(40, "train.py:5 (transform) in step")
        sample(61, "train.py:9 (log) in step")
        rank.step(number, {"data_load": 20, "": 30, "forward": 5, "backward": 5}, gap=0)
        rank.at += 60_000_000
    rank.step(40, {"data_load": 20, "": 30, "forward": 5, "backward": 5})
    spool = write_spool(tmp_path, [rank], "r")
    run_command(["report", str(spool), "--json", "--engine", engine])
    found = json.loads(capsys.readouterr().out)
    sentences = {each["kind"]: each["sentence"] for each in found["findings"]}
    assert sentences["INPUT_BOUND"].endswith("(40 of 40) are in data.py:8 (<lambda>) of collate.")
    assert sentences["WAIT_HEAVY"].endswith("(40 of 40) are in train.py:5 (transform).")
    assert sentences["BETWEEN_UNITS"].endswith("(40 of 40) are in train.py:9 (log).")
    evidence = next(e["evidence"] for e in found["findings"] if e["kind"] == "WAIT_HEAVY")
    assert evidence["places"] == [["train.py:5 (transform)", 40]]
    assert evidence["samples"] == 40
    assert PLACE not in {each["name"] for each in found["marks"]}
