"""The command as a process, and what docs/collector.md shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cirron_otel.collector.service.config_file import FLAGS, load_options
from cirron_otel.tools.cli.collector import collector

from .tables import DOCUMENT

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = """
import sys
from importlib import import_module
from cirron_otel.tools.cli.collector import collector
main = import_module("cirron_otel.tools.cli.main")
main.cli.add_command(collector)
main.main()
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `cirron-otel collector` in the test's directory."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, "collector", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr
        assert "internal error" not in done.stderr
        return done

    return call


class TestTheCommand:
    @pytest.mark.parametrize(
        ("missing", "arguments"),
        [
            ("aiohttp", ["--check"]),
            ("grpc", []),
            ("google.rpc", ["--check", "--json"]),
            ("prometheus_client", ["--check"]),
        ],
    )
    def test_without_the_extra(self, tmp_path: Path, missing: str, arguments: list[str]) -> None:
        """Neither a check that is good, nor a traceback; the configuration can still be shown."""
        program = f"import sys; sys.modules[{missing!r}] = None\n{PROGRAM}"

        def call(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", program, "collector", *arguments]
            return subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )

        done = call(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'cirron-otel[collector]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        if not arguments:
            assert call("--print-config").returncode == 0

    def test_a_good_configuration(self, run: Run) -> None:
        done = run("--check", "--grpc", "0.0.0.0:0", "--storage", "sqlite:///x.db")
        assert (done.returncode, done.stdout) == (0, "the configuration: good\n")
        assert done.stderr.count("cirron-otel: warning: ") == 1

    def test_a_good_configuration_as_json(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("receivers: {http: {address: off}}")
        done = run("--check", "--config", "c.yaml", "--json")
        assert json.loads(done.stdout) == {
            "config": "c.yaml",
            "warnings": ["receivers.http is off: health and metrics are not available"],
        }
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_wrong_configuration_is_a_line_a_problem(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("logs: {level: x}\nspol: 1\n")
        for more in ([], ["--json"], ["--print-config"], ["--check"]):
            done = run("--config", "c.yaml", "--grpc", "", *more)
            assert (done.returncode, done.stdout) == (2, "")
            lines = done.stderr.splitlines()
            assert [line.partition(": error: ")[2].split(" ")[0] for line in lines] == [
                "c.yaml:2:",
                "--grpc",
                "c.yaml:1:",
            ]

    def test_a_file_that_is_not_there(self, run: Run) -> None:
        done = run("--config", "none.yaml", "--check")
        assert done.returncode == 2
        assert (
            done.stderr
            == "cirron-otel: error: none.yaml cannot be read: No such file or directory\n"
        )

    def test_printed_config_masks_secrets_and_matches_its_json(
        self, run: Run, tmp_path: Path
    ) -> None:
        (tmp_path / "c.yaml").write_text("receivers: {auth: {tokens: [sesame]}}\ndrain_s: 7\n")
        text = run("--config", "c.yaml", "--print-config").stdout
        document = json.loads(run("--config", "c.yaml", "--print-config", "--json").stdout)
        assert yaml.safe_load(text) == document
        assert (document["drain_s"], document["receivers"]["auth"]["tokens"]) == (7, ["****"])

    def test_the_documented_flags_are_its_flags(self) -> None:
        section = DOCUMENT.read_text().partition("## Flags")[2].partition("## The file")[0]
        rows = dict(re.findall(r"^\| `(--[a-z-]+)[^`]*` \| (.*) \|$", section, re.MULTILINE))
        known = {name for each in collector.params for name in each.opts}
        assert set(rows) == known
        assert {flag: rows[flag].split("`")[1] for flag in FLAGS} == FLAGS


class TestTheDocument:
    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)

    def test_its_files_are_good(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tls").mkdir()
        for name in ("server.pem", "server.key"):
            (tmp_path / "tls" / name).touch()
        environ = dict.fromkeys(("COLLECTOR_TOKEN", "TEMPO_TOKEN", "CIRRON_API_KEY"), "sesame")
        blocks = self.blocks("yaml")
        assert blocks
        for block in blocks:
            (tmp_path / "c.yaml").write_text(block)
            assert load_options("c.yaml", environ=environ).warnings == ()

    def test_documented_check_output_matches_the_command(self, run: Run, tmp_path: Path) -> None:
        wrong = re.search(r"collector.yaml <<'END'\n(.*?)^END$", DOCUMENT.read_text(), re.M | re.S)
        assert wrong is not None
        (tmp_path / "collector.yaml").write_text(wrong[1])
        (shown,) = self.blocks("console")
        done = run("--config", "collector.yaml", "--check")
        assert shown.partition("\n")[2] == done.stderr
