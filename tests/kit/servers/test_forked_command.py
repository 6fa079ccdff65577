"""The program that lets a command server run `cirron-otel` behaves as the command itself."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.sessions.processes import until
from tests.tools.conftest import COMMAND, RECORDED, environment

from .command_server import shared_server


@pytest.fixture
def program(tmp_path: Path) -> str:
    shared_server().write_program(tmp_path / "cirron-otel", Path(COMMAND))
    return str(tmp_path / "cirron-otel")


@pytest.mark.parametrize("variables", [{}, {"PYTHONUTF8": "1"}], ids=["forked", "started"])
@pytest.mark.parametrize(
    "words", [("report", RECORDED, "--json"), ("spool", "show", "nowhere"), ("run", "--help")]
)
def test_outputs_and_exit_status_are_the_commands(
    words: tuple[object, ...], variables: dict[str, str], program: str, tmp_path: Path
) -> None:
    ours, expected = (
        subprocess.run(
            [each, *map(str, words)], cwd=tmp_path, env=environment(**variables),
            capture_output=True, check=False,
        )
        for each in (program, COMMAND)
    )  # fmt: skip
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        expected.returncode, expected.stdout, expected.stderr,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command(number: signal.Signals, program: str, tmp_path: Path) -> None:
    """The input is a pipe that stays open."""
    (tmp_path / "target").mkdir()
    process = subprocess.Popen(
        [program, "convert", "-", "target/out.jsonl", "--from", "otlp-json"], cwd=tmp_path,
        env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b'{"resourceSpans": []}\n')
    process.stdin.flush()
    until(lambda: [*(tmp_path / "target").iterdir()])
    process.send_signal(number)
    process.wait(timeout=60)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, b"cirron-otel: interrupted\n")
