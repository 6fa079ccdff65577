"""Heavy packages are imported only by the code that uses them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import cirron_otel
from tests.kit.loaded_modules import loaded_by

HEAVY = {
    "torch", "numpy", "safetensors", "transformers", "lightning", "accelerate", "torchdata",
    "grpc", "requests", "urllib3", "yaml", "sqlalchemy", "aiohttp", "psycopg", "obstore", "uvloop",
    "pyarrow", "pandas", "polars", "duckdb",
}  # fmt: skip
OF_TORCH = ("sdk.instrumentation", "sdk.snapshots")
"""The packages that may import torch, inside the functions that use it."""
OF_SPARK = {"cirron_otel.core.engines.spark_engine"}
"""Modules that cannot be imported without an extra that the development environment lacks."""


def imported_by(code: str, cwd: Path | None = None) -> set[str]:
    return loaded_by(code, cwd) & HEAVY


def test_the_probe_would_see_it() -> None:
    assert imported_by("import yaml") == {"yaml"}


@pytest.mark.parametrize(
    "module", ["cirron_otel", "cirron_otel.tools.cli", "cirron_otel.sdk.session.starting"]
)
def test_an_import_brings_in_nothing_heavy(module: str) -> None:
    assert imported_by(f"import {module}") == set()


@pytest.mark.parametrize("package", OF_TORCH)
def test_packages_that_use_torch_import_it_lazily(package: str) -> None:
    assert imported_by(f"import cirron_otel.{package}") == set()


def test_a_run_without_torch_stays_without(tmp_path: Path) -> None:
    code = "import cirron_otel as ci; ci.profile(frameworks=[]); ci.mark('a', 1); ci.shutdown()"
    assert imported_by(code, tmp_path) == set()


def test_no_module_outside_the_packages_of_torch_imports_it() -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages(cirron_otel.__path__, "cirron_otel.")
        if not module.name.startswith(tuple(f"cirron_otel.{each}." for each in OF_TORCH))
        and module.name not in OF_SPARK
        and not module.name.endswith("__main__")
    ]
    assert len(names) > 100
    code = f"""
import importlib
from cirron_otel.errors import MissingExtraError
for name in {names!r}:
    try:
        importlib.import_module(name)
    except MissingExtraError as error:
        assert error.extra == "spark", error
"""
    assert imported_by(code).isdisjoint({"torch", "safetensors", "transformers", "lightning"})


def test_only_the_interface_is_listed() -> None:
    assert dir(cirron_otel) == sorted([*cirron_otel.__all__, "__version__"])
    for name in dir(cirron_otel):
        assert getattr(cirron_otel, name) is not None


def test_a_system_without_fcntl_is_named() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import cirron_otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: cirron-otel needs a POSIX system")


def test_the_package_can_be_run() -> None:
    command = [sys.executable, "-m", "cirron_otel", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"cirron-otel {cirron_otel.__version__}\n"


def test_git_ignores_the_default_directory(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    code = "import cirron_otel as ci; ci.profile(frameworks=[]); ci.shutdown()"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert list((tmp_path / ".cirron" / "spool").iterdir())
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout == b""
