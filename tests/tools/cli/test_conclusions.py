"""The conclusion of `report` and `diagnose`: hosts, and the options that change it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run as run_command
from tests.core.analysis.verdicts.records import Rank, write_spool

Call = Callable[..., subprocess.CompletedProcess[str]]
STEP = {"data_load": 1.0, "forward": 3.0, "backward": 4.0, "optimizer_step": 1.0}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process."""

    def of(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = run_command([*map(str, words)])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return of


def document(call: Call, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("report", *words, "--json").stdout)
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def straggling(folder: Path, *hosts: str | None) -> Path:
    """A run of a rank for each host, the last of which is slow; None for an unknown host."""
    ranks = []
    for number, host in enumerate(hosts):
        named = {} if host is None else {"host_name": host}
        rank = Rank(number, pid=number + 1, **named)
        is_slow = number == len(hosts) - 1
        for step in range(60):
            wait = 2.0 * (not is_slow)
            rank.step(step, STEP | {"forward": 5.0 - wait, "backward": 4.0 + wait})
        ranks.append(rank)
    return write_spool(folder, ranks, run="ab" * 16)


class TestHosts:
    """The resource of each session names the host."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_ranks_and_findings_have_their_hosts(
        self, tmp_path: Path, call: Call, engine: str
    ) -> None:
        spool = straggling(tmp_path, "node-a", "node-a", "node-b")
        found = document(call, spool, "--engine", engine)
        ranks = [(each["rank"], each["host"]) for each in found["ledger"]["ranks"]]
        assert ranks == [(0, "node-a"), (1, "node-a"), (2, "node-b")]
        first = found["findings"][0]
        assert (first["kind"], first["ranks"]) == ("COMPUTE_STRAGGLER", [2])
        assert first["hosts"] == ["node-b"]
        assert first["sentence"].startswith("Rank 2 on node-b is slow in forward")
        assert first["sentence"] in flat(call("report", spool).stdout)

    def test_one_host_is_in_no_sentence(self, tmp_path: Path, call: Call) -> None:
        first = document(call, straggling(tmp_path, "node-a", "node-a"))["findings"][0]
        assert first["hosts"] == ["node-a"]
        assert first["sentence"].startswith("Rank 1 is slow")

    def test_an_unknown_host(self, tmp_path: Path, call: Call) -> None:
        found = document(call, straggling(tmp_path, "node-a", None))
        assert [each["host"] for each in found["ledger"]["ranks"]] == ["node-a", None]
        assert found["findings"][0]["hosts"] == []

    def test_a_name_with_control_characters(self, tmp_path: Path, call: Call) -> None:
        spool = straggling(tmp_path, "node-a", "b\x1b[31m\nc")
        assert "\x1b" not in call("report", spool).stdout
