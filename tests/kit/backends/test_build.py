"""Building the backends: what is current is kept, and what cannot be built is said in one line."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import leave_out

from . import build, jars

ROOT = Path(__file__).parents[3]


def run_build(cache: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.kit.backends.build", *arguments],
        cwd=ROOT,
        env={"PATH": path, "HOME": str(cache), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


def pretend_built(name: str, pins: str | None = None) -> Path:
    path = build.binary(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    stamp = {"pins": pins or build._pins(build.BACKENDS[name]), "go": "go1.0"}
    path.with_name(f"{name}.stamp").write_text(json.dumps(stamp))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def go() -> None:
    if shutil.which("go") is None:
        leave_out("Go is not found on the PATH: install it to test the building of backends")


@pytest.fixture
def kafka_fetched(cache: Path) -> Path:
    """An empty folder in the place of Kafka's jars, which are then not fetched."""
    jars.place().mkdir(parents=True)
    return jars.place()


def test_missing_go_fails_with_installation_advice(cache: Path) -> None:
    result = run_build(cache, path="/nonexistent")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        "backends: Go is not found on the PATH: install Go 1.25 or newer, "
        "to build otelcol, jaeger, tempo, prometheus, versitygw and goclient\n"
    )


def test_optional_build_without_go_lists_the_skipped_tests(cache: Path) -> None:
    pretend_built("otelcol")
    result = run_build(cache, "--optional", path="/nonexistent")
    assert result.returncode == 0
    assert result.stdout.startswith(
        "backends: LEFT OUT: the tests against jaeger, tempo, prometheus, versitygw and goclient."
    )
    assert result.stdout.endswith(
        "backends: LEFT OUT: the tests against kafka. "
        "Java 17 or newer and Maven are not found on the PATH.\n"
    )
    assert result.stderr == ""


def test_without_go_binaries_of_the_right_pins_do(cache: Path, kafka_fetched: Path) -> None:
    for name in build.BACKENDS:
        pretend_built(name)
    result = run_build(cache, path="/nonexistent")
    ready = f"backends: kafka: ready: {kafka_fetched}\n"
    assert (result.returncode, result.stdout, result.stderr) == (0, ready, "")


def test_an_unknown_name_is_wrong_usage(cache: Path) -> None:
    result = run_build(cache, "otelcoll", path="/nonexistent")
    assert result.returncode == 2
    choice = "choose from otelcol, jaeger, tempo, prometheus, versitygw, goclient, kafka"
    assert f"no backend 'otelcoll': {choice}" in result.stderr


@pytest.mark.usefixtures("cache")
def test_missing_reports_unbuilt_outdated_and_torn_builds() -> None:
    assert build.missing("jaeger") == "jaeger is not built"
    path = pretend_built("jaeger", pins="others")
    assert build.missing("jaeger") == (
        "jaeger was built from other pins than collector-config/ holds now"
    )
    pretend_built("jaeger")
    assert build.missing("jaeger") is None
    path.with_name("jaeger.stamp").write_text("torn {")
    assert build.missing("jaeger") == "jaeger is not built"


@pytest.mark.usefixtures("cache")
def test_changed_pins_make_only_their_binary_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in build.BACKENDS:
        pretend_built(name)
    changed = tmp_path / "pins"
    shutil.copytree(build.PINS, changed)
    with (changed / "manifest.yaml").open("a") as manifest:
        manifest.write("# another version\n")
    monkeypatch.setattr(build, "PINS", changed)
    assert build.missing("otelcol") is not None
    assert build.missing("jaeger") is None


@pytest.mark.usefixtures("go")
def test_a_build_that_fails_shows_the_log_and_leaves_the_old_binary(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = pretend_built("jaeger", pins="others")
    pins = cache / "pins"
    (pins / "jaeger").mkdir(parents=True)
    (pins / "jaeger" / "go.mod").write_text("module empty\n\ngo 1.25.0\n")
    (pins / "jaeger" / "go.sum").touch()
    monkeypatch.setattr(build, "PINS", pins)
    assert build.main(["jaeger"]) == 1
    said = capfd.readouterr().err
    assert said.startswith("backends: `go build` failed with exit status 1; the end of ")
    assert "cannot find module providing package" in said
    assert path.read_text() == "#!/bin/sh\n"
    assert [p.name for p in build.folder().iterdir() if p.name.startswith("build-")] == []


@pytest.mark.usefixtures("go", "kafka_fetched")
def test_two_builds_at_once_wait_for_each_other(cache: Path) -> None:
    go = build._go_version()
    for name in build.BACKENDS:
        path = pretend_built(name)
        pins = build._pins(build.BACKENDS[name])
        path.with_name(f"{name}.stamp").write_text(json.dumps({"pins": pins, "go": go}))
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with (build.folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.backends.build"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdout is not None
        assert second.stdout.readline() == "backends: waiting for another build to end\n"
    rest, _ = second.communicate()
    assert second.returncode == 0
    assert [line.split(":")[1:3] for line in rest.splitlines()] == [
        [" otelcol", " ready"],
        [" jaeger", " ready"],
        [" tempo", " ready"],
        [" prometheus", " ready"],
        [" versitygw", " ready"],
        [" goclient", " ready"],
        [" kafka", " ready"],
    ]


@pytest.fixture
def maven() -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        leave_out("Java or Maven is not found on the PATH: install both to test fetching Kafka")


@pytest.mark.usefixtures("maven")
def test_jars_that_are_not_the_pinned_ones_are_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pins = cache / "pins"
    shutil.copytree(build.PINS / "kafka", pins / "kafka")
    sums = pins / "kafka" / "jars.sha256"
    first, *others = sums.read_text().splitlines(keepends=True)
    sums.write_text("".join(["0" * 64 + first[64:], *others]))
    monkeypatch.setattr(jars, "PINS", pins)
    assert build.main(["kafka"]) == 1
    assert f"other files than {sums} names: argparse4j-0.7.0.jar; if" in capfd.readouterr().err
    assert not jars.place().exists()
    assert jars.missing() == "Apache Kafka is not fetched"
