"""`make pythons`: install the wheel into each supported Python of this machine, and try it.

The tests run in one version. Here the others are tried as far as they are installed: the wheel
without torch, its dependencies, imports, a recording, the command line, the demo, the pytest
fixture. Environments are kept in `~/.cache/cirron-otel/python-…`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.kit.environments import Environment, EnvironmentUnavailableError, run_in
from tests.kit.wheels import (
    ROOT,
    build,
    put,
    requirements,
)

from .interpreters import Interpreter, find, supported

SMOKE = Path(__file__).with_name("smoke.py")
CONSTRAINTS = ROOT / "constraints.txt"


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


def attempt(version: str, interpreter: Interpreter, wheel: Path) -> str:
    """Install the wheel and run the checks; "" if all of them pass, else what went wrong."""
    environment = Environment(
        f"python-{version}",
        pins=CONSTRAINTS,
        install=(*requirements(), "pytest"),
        interpreter=interpreter.path,
        version=interpreter.version,
    )
    try:
        put(environment, wheel)
    except EnvironmentUnavailableError as error:
        return str(error)
    check = run_in(environment, ["-m", "pip", "check"])
    if check.returncode != 0:
        return check.stdout
    with tempfile.TemporaryDirectory(prefix="cirron-otel-python-") as folder:
        done = run_in(environment, [SMOKE], cwd=Path(folder))
    return "" if done.returncode == 0 else done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
