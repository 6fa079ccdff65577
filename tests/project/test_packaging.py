"""The files for building and running are consistent: docker/, Makefile, .ci/, pins."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def dockerfile() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions as (instruction, arguments), continued lines joined."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return [(instruction.upper(), arguments) for instruction, arguments in pairs]


def copied_from_the_checkout() -> list[str]:
    sources: list[str] = []
    for instruction, arguments in dockerfile():
        if instruction == "COPY" and not arguments.startswith("--from"):
            sources += arguments.split()[:-1]
    return sources


def ignored_by_docker(path: str) -> bool:
    """Return whether Docker ignores a path: the last pattern that matches decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!").removeprefix("**/")
        if pattern and not pattern.startswith("#") and fnmatch(path, pattern):
            ignored = not line.startswith("!")
    return ignored


class TestDocker:
    def test_copied_sources_exist_and_are_not_ignored_by_docker(self) -> None:
        sources = copied_from_the_checkout()
        assert "cirron_otel" in sources
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not ignored_by_docker(source), source

    def test_nothing_else_reaches_it(self) -> None:
        for path in ROOT.iterdir():
            assert ignored_by_docker(path.name) == (path.name not in copied_from_the_checkout())

    def test_files_that_the_build_reads_are_copied(self) -> None:
        named = [PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]]
        named += PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        assert {"pyproject.toml", "constraints.txt", *named} == set(copied_from_the_checkout())

    def test_the_extras_it_installs_exist(self) -> None:
        run = " ".join(arguments for name, arguments in dockerfile() if name == "RUN")
        extras = re.findall(r"'\.\[([a-z0-9,]+)\]'", run)
        assert extras
        assert set(extras[0].split(",")) <= set(PROJECT["project"]["optional-dependencies"])

    def test_its_entry_point_is_the_command_below_an_init(self) -> None:
        entry = [json.loads(arguments) for name, arguments in dockerfile() if name == "ENTRYPOINT"]
        assert entry == [["tini", "--", *PROJECT["project"]["scripts"]]]

    def test_it_does_not_run_as_root(self) -> None:
        instructions = dockerfile()
        last_stage = max(at for at, (name, _) in enumerate(instructions) if name == "FROM")
        users = [value for name, value in instructions[last_stage:] if name == "USER"]
        assert users
        assert int(users[-1].split(":")[0]) > 0

    def test_its_python_is_one_that_the_project_supports(self) -> None:
        lowest = tuple(map(int, re.findall(r"\d+", PROJECT["project"]["requires-python"])))
        images = [value.split()[0] for name, value in dockerfile() if name == "FROM"]
        for image in images:
            version = re.fullmatch(r"python:(\d+)\.(\d+)-slim", image)
            assert version is not None
            assert tuple(map(int, version.groups())) >= lowest


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in found.items()}


def asked_for() -> list[Requirement]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["otlp"], *extras["collector"], *extras["postgres"]]
    lines += [*extras["columns"], *extras["iceberg"]]
    return [Requirement(line) for line in [*lines, *PROJECT["dependency-groups"]["dev"]]]


def asked_for_with_torch() -> list[Requirement]:
    extra = PROJECT["project"]["optional-dependencies"]["torch"]
    return [Requirement(line) for line in [*extra, *PROJECT["dependency-groups"]["torch"]]]


@pytest.mark.parametrize(
    ("asked", "at_least"),
    [(asked_for, 40), pytest.param(asked_for_with_torch, 50, marks=pytest.mark.torch)],
)
def test_everything_that_make_installs_is_pinned_to_its_version(
    asked: Callable[[], list[Requirement]], at_least: int
) -> None:
    todo, seen = asked(), {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if name in seen or not applies:
            continue
        seen[name] = metadata.version(name)
        for line in metadata.requires(name) or []:
            further = Requirement(line)
            if further.marker is None or any(
                further.marker.evaluate({"extra": extra}) for extra in extras
            ):
                further.marker = None
                todo.append(further)
    assert len(seen) >= at_least
    assert {name: pins().get(name) for name in seen} == seen


def test_pins_satisfy_the_project_requirements() -> None:
    build = map(Requirement, PROJECT["build-system"]["requires"])
    for requirement in [*asked_for(), *asked_for_with_torch(), *build]:
        pinned = pins()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned, prereleases=True), requirement


def test_ci_runs_the_command_of_the_readme() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands[-6:] == [
        "groups=$(python3 -m tests.kit.matrix)",
        'has() { [[ ",$groups," == *",$1,"* ]]; }',
        "if has oldest-torch; then make torch-oldest; fi",
        "make frameworks",
        "if has pythons; then make pythons; fi",
        'make test MATRIX="$groups"',
    ]
    assert "make test" in (ROOT / "README.md").read_text()


def test_ci_fails_if_go_is_missing(tmp_path: Path) -> None:
    for tool in ("bash", "env", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    result = subprocess.run(
        [str(ROOT / ".ci" / "run")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(".ci/run: Go is not found on the PATH: install Go")


TARGETS = [
    "venv",
    "torch",
    "torch-oldest",
    "pythons",
    "backends",
    "test",
    "test-matrix",
    "demo",
    "bench",
    "lint",
    "clean",
]


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_its_targets(target: str) -> None:
    result = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_make_venv_names_the_python_version_it_needs(tmp_path: Path) -> None:
    old = tmp_path / "python-of-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = subprocess.run(
        ["make", "--always-make", "venv", f"PYTHON={old}", f"STAMP={tmp_path}/stamp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "make venv: Python 3.11 or newer is needed" in result.stderr


@pytest.mark.parametrize("target", ["test", "demo", "bench"])
def test_make_does_without_torch_if_disabled(target: str, tmp_path: Path) -> None:
    stamp = f"TORCH_STAMP={tmp_path}/stamp"
    for choice, expected in (("TORCH=yes", 1), ("TORCH=no", 0)):
        result = subprocess.run(
            ["make", "--dry-run", target, choice, stamp],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.count("--group torch") == expected


@pytest.mark.parametrize(
    ("there", "says"),
    [("", True), ("2.6.0", True), (pins()["torch"], False), (f"{pins()['torch']}+cpu", False)],
)
def test_make_torch_reports_the_download_size_ahead_of_fetching(
    there: str, says: bool, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo "{there}" || echo "$@"\n')
    python.chmod(0o755)
    (tmp_path / "installed").touch()
    result = subprocess.run(
        ["make", "--silent", "torch", f"BIN={tmp_path}",
         f"STAMP={tmp_path}/installed", f"TORCH_STAMP={tmp_path}/torch",
         "--old-file=pyproject.toml", "--old-file=constraints.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    *said, installed = result.stdout.splitlines()
    assert ("3 GB to fetch" in " ".join(said)) == says
    assert "-m tests.kit.install" in installed
    assert ("--quiet" in installed) != says
    assert (tmp_path / "torch").exists()
