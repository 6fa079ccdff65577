"""Every command and every snippet of the README and of docs/ runs, and shows what it says.

A document's blocks run in order in one directory, in which a recorded spool is the `./.cirron`.
What installs or builds something is checked against the Makefile and the pyproject instead; where
an endpoint stands, a real OTLP/HTTP server takes its place. What trains with PyTorch, and looks at
that run, is run by itself: the rest needs none.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cirron_otel.cli.demo import RECORDING
from tests.cli.conftest import environment
from tests.cli.server import OtlpServer

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ENDPOINT = "localhost:4318"
_BLOCK = re.compile(r"^```(sh|bash|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = ("make", "pip", "docker", "git")
_BYTES = re.compile(r"[\d.]+ k?B (?=read|written)")
_TRAINS = re.compile(r"^import torch$|\bmy-run\b", re.MULTILINE)
_TIMES = re.compile(r"[\d.]+ (?:ns|µs|ms|s)\b|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    return [Block(*match) for match in _BLOCK.findall(document.read_text())]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each line of a block that is not run."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def trains(block: Block) -> bool:
    return _TRAINS.search(block.text) is not None


def is_run(block: Block) -> bool:
    return block.language in ("console", "python") or not any(
        words[0] in _NOT_RUN for words in commands(block)
    )


def check_without_running(block: Block) -> None:
    """What it names is there: targets of the Makefile, extras of the pyproject."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for words in commands(block):
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] == "pip":
            assert words[1] == "install"
            found = re.fullmatch(r"([a-z-]+)(?:\[([a-z0-9,]+)\])?", words[2])
            assert found is not None
            assert found[1] == project["name"]
            assert set((found[2] or "all").split(",")) <= set(project["optional-dependencies"])
        else:
            assert words[0] in _NOT_RUN, f"{words} stands beside what is not run: split the block"


def shell(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", text],
        cwd=directory,
        env=environment(TMPDIR=str(directory)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_console(text: str, directory: Path, varies: re.Pattern[str] = _BYTES) -> None:
    """Run each `$ command`, and compare what it prints with what stands below it."""
    for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = session.partition("\n")
        result = shell(command, directory)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        shown = varies.sub("…", result.stdout)
        assert shown.splitlines() == varies.sub("…", expected).splitlines(), command


def run_following(text: str, directory: Path, server: OtlpServer) -> None:
    """Run what follows a spool until something has arrived, then press Ctrl-C."""
    server.received.clear()
    process = subprocess.Popen(
        ["bash", "-euc", text],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.received.wait(60)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err


def run_block(block: Block, directory: Path, server: OtlpServer) -> None:
    text = block.text.replace(ENDPOINT, server.address)
    if not is_run(block):
        check_without_running(block)
    elif block.language == "python":
        subprocess.run([sys.executable, "-c", text], cwd=directory, check=True, timeout=120)
    elif block.language == "console":
        run_console(text, directory)
    elif "--follow" in text:
        run_following(text, directory, server)
    else:
        result = shell(text, directory)
        assert result.returncode == 0, f"{text}\n{result.stderr}"
        assert "cirron-otel: error" not in result.stderr, f"{text}\n{result.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_written_runs(document: Path, tmp_path: Path, server: OtlpServer) -> None:
    shutil.copytree(RECORDING, tmp_path / ".cirron")
    for block in itertools.filterfalse(trains, blocks(document)):
        before = len(server.requests)
        run_block(block, tmp_path, server)
        if ENDPOINT in block.text:
            assert len(server.requests) > before, block.text


@pytest.mark.torch
def test_what_trains_runs(tmp_path: Path, server: OtlpServer) -> None:
    training = [block for document in DOCUMENTS for block in filter(trains, blocks(document))]
    assert [block.language for block in training] == ["python", "console"]
    for block in training:
        if block.language == "console":
            run_console(block.text, tmp_path, _TIMES)
        else:
            run_block(block, tmp_path, server)


def test_there_is_something_to_run() -> None:
    found = [block for document in DOCUMENTS for block in blocks(document)]
    assert len([block for block in found if is_run(block)]) > 10
    assert len([block for block in found if not is_run(block)]) >= 2


def test_what_cannot_be_run_is_really_checked() -> None:
    for text in ("make nonsense", "pip install 'cirron-otel[nonsense]'", "pip install other"):
        with pytest.raises(AssertionError):
            check_without_running(Block("sh", text))


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(document: Path) -> None:
    for link in _LINK.findall(document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link
