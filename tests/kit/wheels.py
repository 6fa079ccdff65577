"""Build wheels of a source tree, and install them into environments."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from .environments import Environment, EnvironmentUnavailableError
from .install import install

ROOT = Path(__file__).parents[2]
EXTRAS = ("otlp", "collector", "postgres", "s3", "columns", "sql")
"""All extras except torch and spark, which take gigabytes in each environment, and iceberg."""


def build(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of a source tree into an empty folder; return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    pins = ["--build-constraint", str(source / "constraints.txt")]
    subprocess.run([*command, str(folder), *pins, str(source)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def requirements(source: Path = ROOT) -> tuple[str, ...]:
    """Return the dependencies of a source tree, with those of the extras."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return (*project["dependencies"], *(line for name in EXTRAS for line in extras.get(name, ())))


def put(environment: Environment, wheel: Path) -> Path:
    """Install a wheel into an environment that has its dependencies; return the interpreter.

    Raises EnvironmentUnavailableError.
    """
    python = environment.make()
    done = install(python, ["--quiet", "--no-deps", "--force-reinstall", str(wheel)])
    if done.returncode != 0:
        raise EnvironmentUnavailableError(done.stderr)
    return python
