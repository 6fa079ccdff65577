"""The slowest host of many runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.core.analysis.run_hosts import HostCounts, headline, host_times
from cirron_otel.core.run.figures.ledger import Ledger
from cirron_otel.tools.cli.main import run as run_command
from tests.core.analysis.verdicts.records import Rank, write_spool
from tests.core.run.findings.ledgers import Times, job


def of_hosts(hosts: dict[str, float]) -> Ledger:
    """Return a run with two ranks on each host, whose units take some more ms of input."""

    def plant(times: Times) -> None:
        for number, ms in enumerate(hosts.values()):
            times["input"][2 * number : 2 * number + 2] += ms

    ledger = job(2 * len(hosts), 40, plant=plant)
    for lane in ledger.lanes:
        lane.host = list(hosts)[(lane.rank or 0) // 2]
    return ledger


def counted(*runs: dict[str, float]) -> tuple[list[tuple[str, int, int]], str]:
    counts = HostCounts()
    for each in runs:
        counts.add(of_hosts(each))
    found = counts.result()
    rows = [(each.host, each.runs, each.slowest) for each in found]
    return rows, headline(found, counts.runs)


def test_one_host_is_always_the_slowest() -> None:
    rows, text = counted({"a": 0, "b": 30, "c": 1}, {"b": 30, "c": 0}, {"a": 0, "c": 0})
    assert rows == [("b", 2, 2), ("a", 2, 0), ("c", 3, 0)]
    assert text.startswith("b is the slowest host in 2 of the 2 runs that use it, by ")
    assert text.endswith("it is always the same host.")


def test_a_host_that_is_the_slowest_in_most_runs() -> None:
    rows, text = counted(*[{"a": 0, "b": 30}] * 3, {"a": 30, "b": 0})
    assert rows == [("b", 4, 3), ("a", 4, 1)]
    assert text.endswith("it is in most cases the same host.")
    assert counted({"a": 0, "b": 30}, {"a": 30, "b": 0})[1].endswith("it is not the same host.")
    seldom = counted({"a": 0, "b": 30}, *[{"a": 0, "b": 0}] * 3)[1]
    assert seldom.startswith("b is the slowest host in 1 of the 4 runs")
    assert seldom.endswith("it is not the same host.")
    assert counted({"a": 0, "b": 30})[1].endswith("%.")


def test_small_differences_do_not_count() -> None:
    rows, text = counted({"a": 0, "b": 1})
    assert rows == [("a", 1, 0), ("b", 1, 0)]
    assert text == "No host is slower than the others by 3 % in any of 1 run."


def test_waiting_for_ranks_does_not_count() -> None:
    """Ranks that wait for each other have units of equal length."""
    ledger = of_hosts({"a": 0, "b": 30})
    assert len({lane.ns.sum() for lane in ledger.lanes}) == 1
    times = host_times(ledger)
    assert times["b"] - times["a"] == pytest.approx(30e6, rel=0.05)


def test_runs_of_one_host_do_not_count() -> None:
    counts = HostCounts()
    for ledger in (None, of_hosts({"a": 0})):
        counts.add(ledger)
    assert (counts.runs, counts.result()) == (0, [])
    assert headline([], 0) == "No run has several hosts."


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        ranks = []
        for place, host in enumerate(("node-a", "node-b")):
            rank = Rank(place, pid=place + 1, start=10**18 + number * 10**12)
            rank.session = f"s{number}{place}"
            rank.resource = {"host.name": host}
            for step in range(30):
                rank.step(step, {"forward": 5 + 2 * place})
            ranks.append(rank)
        write_spool(tmp_path / str(number) / ".cirron", ranks, run=f"{number + 1:032x}")
    assert run_command(["runs", "report", str(tmp_path), "--by", "host"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "node-b is the slowest host in 2 of the 2 runs that use it, by 40 %" in text
    assert "node-b 2 2 100 % +40 %" in text
    assert run_command(["runs", "report", str(tmp_path), "--by", "host", "--json"]) == 0
    hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert hosts["hosts"][0] == {
        "host": "node-b", "runs": 2, "slowest": 2, "excess": pytest.approx(0.4)
    }  # fmt: skip
