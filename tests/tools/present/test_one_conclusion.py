"""Every output on a run has the same status, headline and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.present.closing import closing_parts, courses_of
from cirron_otel.tools.present.conclude import document_of_run
from cirron_otel.tools.present.findings_text import price, severity_word
from cirron_otel.tools.present.ledger_rows import account_name, percentages
from cirron_otel.tools.present.text import plain_lines
from tests.core.analysis.verdicts.records import Rank, write_spool
from tests.kit.html_page import Page

_PHASES = {"data_load": 5.0, "forward": 3.0, "backward": 4.0, "optimizer_step": 1.0}


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool of two ranks that wait for their input, and save in each step."""
    ranks = []
    for number in (0, 1):
        rank = Rank(number, pid=number + 1)
        for step in range(60):
            rank.step(step, _PHASES | {"checkpoint_save": 4.0})
        ranks.append(rank)
    folder = tmp_path_factory.mktemp("run")
    write_spool(folder, ranks)
    (folder / "state").mkdir(exist_ok=True)
    return folder


def output(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert run_command([str(word) for word in words]) == 0
    return capsys.readouterr().out


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def document(spool: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(capsys, "report", spool, "--json"))
    assert found["status"] == "critical"
    assert len(found["findings"]) >= 2
    return found


def test_texts(document: dict[str, Any], spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_run(SpoolReader(spool)) as opened:
        built = document_of_run("source", opened)
        closing = "\n".join(plain_lines(closing_parts(built, courses_of(opened, built))))
    texts = [output(capsys, "report", spool), output(capsys, "diagnose", spool), closing]
    for text in map(flat, texts):
        word = severity_word(document["status"])
        assert text.startswith(f"{word}: {document['headline']}")
        problems = [each for each in built.findings if each.severity != "notice"]
        for each in problems[:3]:
            assert (
                text.count(
                    f"{severity_word(each.severity)} {each.kind}: {price(each, built.ledger)}"
                )
                == 1
            )
            assert text.count(each.sentence) == 1
        assert f" {document['units']['count']} steps of 2 ranks" in text
    assert [each.to_json() for each in built.findings] == document["findings"]


def test_json_documents(
    document: dict[str, Any], spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [diagnosed] = json.loads(output(capsys, "diagnose", spool, "--json"))["runs"]
    [listed] = json.loads(output(capsys, "runs", "ls", spool, "--json"))["runs"]
    stored = json.loads((spool / "conclusion.json").read_text())["runs"][document["run"]["id"]]
    for each in (diagnosed, listed["conclusion"], stored):
        for key in ("status", "headline", "state", "findings", "run", "not_assessed"):
            assert each[key] == document[key], key
    first = document["findings"][0]["kind"]
    assert f"critical: {first}" in output(capsys, "runs", "ls", spool)
    grouped = json.loads(output(capsys, "runs", "report", spool, "--json"))["total"]
    assert grouped["conclusions"] == {"critical": 1}
    assert grouped["first_findings"] == {first: 1}


def test_the_page(
    document: dict[str, Any], spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "report", spool, "--html", tmp_path / "run.html")
    page = Page((tmp_path / "run.html").read_text("utf-8"))
    assert f"Critical: {document['headline']}" in page.texts
    text = flat(" ".join(page.texts))
    for each in document["findings"]:
        assert f"{each['kind']} ({each['severity']})" in page.texts
        assert each["sentence"] in text
    ledger = document["ledger"]
    shares = percentages([row["ns"] for row in ledger["accounts"]])
    assert [
        row[:3] for row in page.tables["The time by account, as the mean of all ranks"][1:-1]
    ] == [
        [account_name(row["account"]), round(row["ns"] / 2), f"{share} %"]
        for row, share in zip(ledger["accounts"], shares, strict=True)
    ]


def test_the_costs_are_at_most_the_total(document: dict[str, Any]) -> None:
    ledger = document["ledger"]
    assert sum(row["ns"] for row in ledger["accounts"]) == ledger["total_ns"]
    costs = [e["cost_ns"] or 0 for e in document["findings"] if e["severity"] != "notice"]
    assert 0 < sum(costs) <= ledger["total_ns"]


def test_a_conclusion_is_not_listed_if_the_run_has_a_newer_batch(
    document: dict[str, Any], spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(output(capsys, "runs", "ls", spool, "--json"))["runs"][0]["conclusion"]
    assert (spool / "conclusion.json").stat().st_mode & 0o777 == 0o600
    path = spool / "conclusion.json"
    stored = json.loads(path.read_text())
    stored["runs"][document["run"]["id"]]["batches"] -= 1
    path.write_text(json.dumps(stored))
    [listed] = json.loads(output(capsys, "runs", "ls", spool, "--json"))["runs"]
    assert listed["conclusion"] is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"runs": 3}', b'{"runs": {"a": 1}}', b"\xff{"])
def test_a_damaged_file_is_no_conclusion(
    spool: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (spool / "conclusion.json").write_bytes(content)
    [listed] = json.loads(output(capsys, "runs", "ls", spool, "--json"))["runs"]
    assert listed["conclusion"] is None
    output(capsys, "report", spool)
    [listed] = json.loads(output(capsys, "runs", "ls", spool, "--json"))["runs"]
    assert listed["conclusion"]["status"] == "critical"


def test_a_spool_of_other_software_is_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = Rank(0, pid=1)
    rank.step(0, _PHASES)
    write_spool(tmp_path, [rank])
    before = sorted(tmp_path.rglob("*"))
    output(capsys, "report", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
