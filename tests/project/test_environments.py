"""Additional environments are made once, and again only if their pins change."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.kit.environments import Environment, EnvironmentUnavailableError, run_in

ASKED = "import small, sys; print(small.VERSION, [p for p in sys.path if 'further' in p])"


def wheel(directory: Path, version: str) -> None:
    """Write the wheel of a package with one line of code."""
    info = f"small-{version}.dist-info"
    with zipfile.ZipFile(directory / f"small-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("small.py", f"VERSION = '{version}'\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: small\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/nowhere")


def test_environment_is_rebuilt_only_if_its_pins_change(tmp_path: Path) -> None:
    wheel(tmp_path, "1.0")
    wheel(tmp_path, "2.0")
    further = tmp_path / "further"
    further.mkdir()
    pins = tmp_path / "pins.txt"
    pins.write_text("small==1.0\n")
    environment = Environment("tried/it", pins, paths=(further,))
    assert environment.home == tmp_path / "cache" / "cirron-otel" / "tried" / "it"
    assert not environment.is_made
    done = run_in(environment, ["-c", ASKED])
    assert (done.stdout, done.stderr) == (f"1.0 ['{further}']\n", "")
    assert environment.is_made
    stamp = environment.home / "pins"
    made = environment.home.stat().st_ino, stamp.stat().st_mtime_ns
    assert environment.make() == environment.python
    assert made == (environment.home.stat().st_ino, stamp.stat().st_mtime_ns)
    pins.write_text("small==2.0\n")
    assert not environment.is_made
    assert run_in(environment, ["-c", ASKED]).stdout.startswith("2.0 ")


def test_failed_build_leaves_no_environment(tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("")
    environment = Environment("none", pins, ("cirron-otel-no-such==1",))
    with pytest.raises(EnvironmentUnavailableError, match=r"none cannot be made: .*no-such"):
        environment.make()
    assert not environment.home.exists()
