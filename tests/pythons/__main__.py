"""`make pythons`: install the wheel into each supported Python of this machine, and try it.

The tests run in one version. Here the others are tried as far as they are installed: the wheel
without torch, its dependencies, imports, a recording, the command line, the demo, the pytest
fixture. Environments are kept in `~/.cache/cirron-otel/python-…`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.environments import Environment, EnvironmentUnavailableError, run_in
from tests.install import install

from .interpreters import ROOT, Interpreter, find, supported

SMOKE = Path(__file__).with_name("smoke.py")
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = ("otlp", "collector", "postgres", "s3")
"""All but torch, which is gigabytes for each version."""


def main() -> int:
    """Try every version; 1 if one of them fails."""
    found = {version: find(version) for version in supported()}
    failed = False
    with tempfile.TemporaryDirectory(prefix="cirron-otel-wheel-") as folder:
        wheel = build(Path(folder))
        for version, interpreter in found.items():
            if interpreter is None:
                print(f"Python {version}: not on this machine, not tried", flush=True)
                continue
            problem = attempt(version, interpreter, wheel)
            failed |= bool(problem)
            print(f"Python {interpreter.number}: {problem or 'installs and works'}", flush=True)
    return int(failed)


def build(folder: Path) -> Path:
    """Build the wheel of the checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    pins = ["--build-constraint", str(CONSTRAINTS)]
    subprocess.run([*command, str(folder), *pins, str(ROOT)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def attempt(version: str, interpreter: Interpreter, wheel: Path) -> str:
    """Install the wheel and run the checks; "" if all of them pass, else what went wrong."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    further = [line for name in EXTRAS for line in extras[name]]
    environment = Environment(
        f"python-{version}",
        pins=CONSTRAINTS,
        install=(*project["dependencies"], *further, "pytest"),
        interpreter=interpreter.path,
        version=interpreter.version,
    )
    try:
        python = environment.make()
    except EnvironmentUnavailableError as error:
        return str(error)
    done = install(python, ["--quiet", "--no-deps", "--force-reinstall", str(wheel)])
    if done.returncode != 0:
        return done.stderr
    check = run_in(environment, ["-m", "pip", "check"])
    if check.returncode != 0:
        return check.stdout
    with tempfile.TemporaryDirectory(prefix="cirron-otel-python-") as folder:
        done = run_in(environment, [SMOKE], cwd=Path(folder))
    return "" if done.returncode == 0 else done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
