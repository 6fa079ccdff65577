"""The command as a process, a recorded spool to work on, and a real OTLP/HTTP server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from cirron_otel import exactjson
from tests.kit.servers.command_server import COLUMNS, shared_server, starts_alike
from tests.kit.servers.server import OtlpServer

BIN = Path(sys.executable).parent
PLUGIN = "cirron_otel.pytest_plugin"
COMMAND = str(BIN / "cirron-otel")
SPOOLS = Path(__file__).parents[1] / "testdata" / "spools"
RECORDED = SPOOLS / "01_torch_basic" / ".cirron"
"""Three epochs of eight steps, which cirron-sdk 0.3.0 recorded."""
Run = Callable[..., subprocess.CompletedProcess[str]]
_OF_COLUMNS = ("--engine", "parquet:", "iceberg:", ".parquet")


def environment(**more: str) -> dict[str, str]:
    """Return an environment that finds the command and the pytest plugin, and includes `more`.

    Times are shown in UTC.
    """
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TZ": "UTC", **_plugin(), **more}


@cache
def _plugin() -> dict[str, str]:
    """Return the variable that loads the pytest plugin if no installation registers it."""
    points = metadata.entry_points(group="pytest11")
    is_registered = any(point.value == PLUGIN for point in points)
    return {} if is_registered else {"PYTEST_PLUGINS": PLUGIN}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `cirron-otel` in the test's directory, and check that it never shows a traceback."""

    def call(
        *arguments: object, env: dict[str, str] | None = None, stdin: bytes = b"", **more: object
    ) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, *map(str, arguments)]
        variables = environment(**(env or {}))
        if not more and starts_alike(variables):
            columns = any(word in argument for argument in command for word in _OF_COLUMNS)
            server = shared_server(COLUMNS) if columns else shared_server()
            done = server.run(command, tmp_path, variables, stdin)
        else:
            done = subprocess.run(  # type: ignore[call-overload]
                command,
                cwd=tmp_path,
                env=variables,
                input=stdin,
                capture_output=True,
                timeout=120,
                check=False,
                **more,
            )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode()
        assert "Traceback" not in err
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    return call


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A copy of RECORDED as `.cirron` in the test's directory."""
    return Path(shutil.copytree(RECORDED, tmp_path / ".cirron"))


@pytest.fixture
def server() -> Iterator[OtlpServer]:
    """A real OTLP/HTTP receiver on loopback."""
    with OtlpServer() as running:
        yield running


def same_batches(left: Path, right: Path) -> bool:
    """Return whether both contain files of the same names with equal JSON values."""
    names = sorted(path.name for path in left.iterdir())
    assert names == sorted(path.name for path in right.iterdir())
    assert names
    return all(
        exactjson.equal(*(exactjson.loads((each / name).read_bytes()) for each in (left, right)))
        for name in names
    )


def one_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the only line on stderr of a call that failed with `code`."""
    assert result.returncode == code, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("cirron-otel: ")
    assert "internal error" not in lines[0]
    return lines[0]
