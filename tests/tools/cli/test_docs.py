"""Every command and every snippet of the README and of docs/ runs, with the output that it shows.

A document's blocks run in order in one directory, in which `./.cirron` is a recorded spool, and
`./telemetry_sink` a recording of Stormlog's. Blocks that install or build something are checked
against the Makefile and pyproject.toml instead. A real OTLP/HTTP server replaces the endpoints. A
block that follows the name of a file is written to that file. Blocks that train with PyTorch, or
read such a run, have tests of their own, so that others need no PyTorch. `recipes.py` checks the
results of recipes afterwards.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from cirron_otel.tools.cli.demo import RECORDING
from tests.kit.servers.command_server import COLUMNS, shared_server
from tests.kit.servers.server import OtlpServer
from tests.tools.conftest import COMMAND, environment

from .recipes import CHECKS, NAMED_ENDPOINT, PROGRAMS

ROOT = Path(__file__).parents[3]
STORMLOG_SINK = ROOT / "tests" / "testdata" / "stormlog" / "v039" / "sim_gpu" / "sink"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRAINING = [ROOT / "docs" / "quickstart.md", ROOT / "docs" / "recipes" / "torchrun.md"]
"""The documents of which every block concerns a run with PyTorch, which they make themselves."""
_BLOCK = re.compile(
    r"(?:^`([\w-]+\.(?:py|sh|yaml))`[^\n`]*:\n\n)?^```(sh|bash|console|python|yaml)\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = ("make", "pip", "docker", "git", "kubectl")
_BYTES = re.compile(r"[\d.]+ k?B (?=read|written)")
_TRAINS = re.compile(r"^import torch$|\bmy-run\b", re.MULTILINE)
_MEASURED = re.compile(
    r"[\d.]+ (?:ns|µs|ms|s)\b|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|(?<=loss=)[\d.]+"
)
"""Times, and the losses of models with random weights."""
_VARIABLE = re.compile(r"\b(?:OTEL|CIRRON)_[A-Z_]*[A-Z]\b(?!…)")
_ELSEWHERE = {"CIRRON_OTEL_DEBUG", "CIRRON_OTEL_PROGRESS"}
"""Variables that are not options of tracing; they are documented on other pages."""
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    language: str
    text: str
    file: str = ""
    """The name of the file, if the block is one rather than a command."""


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT / "docs" if "docs" in document.parts else ROOT))


def blocks(document: Path) -> list[Block]:
    found = [Block(*match[1:], match[0]) for match in _BLOCK.findall(document.read_text())]
    return [block for block in found if block.file or block.language != "yaml"]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each line of a block that is not run."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def trains(block: Block) -> bool:
    return _TRAINS.search(block.text) is not None


def is_run(block: Block) -> bool:
    return (
        bool(block.file)
        or block.language in ("console", "python")
        or not any(words[0] in _NOT_RUN for words in commands(block))
    )


def check_without_running(block: Block) -> None:
    """Check that the names in a block exist: targets of make, extras of the package, images."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for words in commands(block):
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] == "pip":
            assert words[1] == "install"
            found = re.fullmatch(r"([a-z-]+|\.)(?:\[([a-z0-9,]+)\])?", words[2])
            assert found is not None
            assert found[1] in (project["name"], ".")
            assert set((found[2] or "all").split(",")) <= set(project["optional-dependencies"])
        elif words[:2] == ["docker", "run"]:
            assert f"image: {words[-1]}\n" in (ROOT / "docker" / "compose.yaml").read_text()
        else:
            assert words[0] in _NOT_RUN, f"{words} stands beside what is not run: split the block"


@cache
def forked_command() -> Path:
    """Return a folder with a program `cirron-otel` that starts the command without its imports."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    shared_server(COLUMNS).write_program(folder / "cirron-otel", Path(COMMAND))
    return folder


def shell(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", text],
        cwd=directory,
        env=environment(
            TMPDIR=str(directory),
            PATH=f"{PROGRAMS}:{forked_command()}:{environment()['PATH']}",
            CIRRON_EXIT_TIMEOUT="60",
        ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_console(text: str, directory: Path, varies: re.Pattern[str] = _BYTES) -> None:
    """Run each `$ command`, and compare its output with the lines that follow the command."""
    for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = session.partition("\n")
        result = shell(command, directory)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        shown = varies.sub("…", result.stdout)
        assert shown.splitlines() == varies.sub("…", expected).splitlines(), command


def run_following(text: str, directory: Path, server: OtlpServer) -> None:
    """Run a command that follows a spool until a request has arrived, then press Ctrl-C."""
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
        assert server.received.wait(180)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err


def run_block(
    block: Block, directory: Path, server: OtlpServer, varies: re.Pattern[str] = _BYTES
) -> None:
    text = NAMED_ENDPOINT.sub(f"http://{server.address}", block.text)
    if block.file:
        (directory / block.file).write_text(text)
    elif not is_run(block):
        check_without_running(block)
    elif block.language == "python":
        subprocess.run([sys.executable, "-c", text], cwd=directory, check=True, timeout=120)
    elif block.language == "console":
        run_console(text, directory, varies)
    elif "--follow" in text:
        run_following(text, directory, server)
    else:
        result = shell(text, directory)
        assert result.returncode == 0, f"{text}\n{result.stderr}"
        assert "cirron-otel: error" not in result.stderr, f"{text}\n{result.stderr}"


def run_document(
    found: Iterable[Block],
    document: Path,
    place: Path,
    server: OtlpServer,
    varies: re.Pattern[str] = _BYTES,
) -> None:
    server.paths.add("/otlp/v1/traces")
    for block in found:
        before = len(server.requests)
        run_block(block, place, server, varies)
        if not block.file and is_run(block) and NAMED_ENDPOINT.search(block.text):
            assert len(server.requests) > before, block.text
    CHECKS.get(name_of(document), lambda *_: None)(place, server)


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if each not in TRAINING], ids=name_of
)
def test_documented_blocks_run(document: Path, tmp_path: Path, server: OtlpServer) -> None:
    shutil.copytree(RECORDING, tmp_path / ".cirron")
    shutil.copytree(STORMLOG_SINK, tmp_path / "telemetry_sink")
    run_document(itertools.filterfalse(trains, blocks(document)), document, tmp_path, server)


@pytest.mark.torch
def test_documented_training_blocks_run(tmp_path: Path, server: OtlpServer) -> None:
    others = [each for each in DOCUMENTS if each not in TRAINING]
    training = [block for document in others for block in filter(trains, blocks(document))]
    assert [block.language for block in training] == ["python", "console"]
    run_document(training, ROOT / "README.md", tmp_path, server, _MEASURED)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("document", TRAINING, ids=name_of)
def test_a_page_about_training_runs(document: Path, tmp_path: Path, server: OtlpServer) -> None:
    run_document(blocks(document), document, tmp_path, server, _MEASURED)


def test_there_is_something_to_run() -> None:
    found = [block for document in DOCUMENTS for block in blocks(document)]
    assert len([block for block in found if is_run(block)]) > 10
    assert len([block for block in found if not is_run(block)]) >= 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_documented_variables_exist_in_the_configuration(document: Path) -> None:
    """Setting a variable that nothing reads would have no effect, and cause no message."""
    told = set(_VARIABLE.findall(document.read_text()))
    assert {name for name in told if not _is_known(name)} == set()


def _is_known(name: str) -> bool:
    page = (ROOT / "docs" / "configuration.md").read_text()
    of_otlp = re.fullmatch(r"OTEL_EXPORTER_OTLP(?:_TRACES|_METRICS)?(_[A-Z_]+)", name)
    families = tuple(re.findall(r"`((?:OTEL|CIRRON)_[A-Z_]+_)\*`", page))
    is_said = f"`{name}" in page or bool(of_otlp and f"`{of_otlp[1]}`" in page)
    return is_said or name in _ELSEWHERE or name.startswith(families)


def test_check_without_running_rejects_wrong_commands() -> None:
    for text in ("make nonsense", "pip install 'cirron-otel[nonsense]'", "pip install other",
                 "pip install '.[nonsense]'",
                 "docker run --rm other:1.0"):  # fmt: skip
        with pytest.raises(AssertionError):
            check_without_running(Block("sh", text))


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=name_of
)
def test_links_lead_somewhere(document: Path) -> None:
    for link in _LINK.findall(document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link
