"""Additional Python environments for tests: other versions, and packages that conflict with ours.

Each is cached in `${XDG_CACHE_HOME:-~/.cache}/cirron-otel/<name>/`, and made again only if its pins
or this Python have changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .install import install

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
"""The packages of the tests' own environment."""
_FORGOTTEN = ("OTEL_", "CIRRON_", "PYTHON")


class EnvironmentUnavailableError(Exception):
    """An environment cannot be made here, e.g. without a network; the message names it."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, which may not exist yet."""

    name: str
    """Its directory below the cache, e.g. `recorder/0.3.0`."""
    pins: Path
    """A file with the exact version of every package."""
    install: tuple[str, ...] = ()
    """Requirements, installed with their dependencies; without any, exactly what `pins` lists."""
    paths: tuple[Path, ...] = ()
    """Directories at the end of its `sys.path`, after its own packages: earlier ones win."""
    interpreter: str = sys.executable
    """The Python that it is made with, by default that of the tests."""
    version: str = sys.version
    """The version of that Python; if it changes, the environment is made again."""

    @property
    def home(self) -> Path:
        """The directory of the environment."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "cirron-otel" / self.name

    @property
    def python(self) -> Path:
        """The interpreter, which exists once `make` has returned."""
        return self.home / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The directory of its packages."""
        major, minor, *_ = self.version.split(".")
        return self.home / "lib" / f"python{major}.{minor}" / "site-packages"

    @property
    def is_made(self) -> bool:
        """Whether it exists and was made with these pins, requirements and this Python."""
        stamp = self.home / "pins"
        return self.python.exists() and stamp.exists() and stamp.read_text() == self._wanted()

    def make(self) -> Path:
        """Make the environment if necessary, and return its interpreter.

        One process makes it while others wait. Raises EnvironmentUnavailableError.
        """
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.home.with_name(f"{self.home.name}.lock")):
            if not self.is_made:
                shutil.rmtree(self.home, ignore_errors=True)
                try:
                    self._fill()
                except EnvironmentUnavailableError:
                    shutil.rmtree(self.home, ignore_errors=True)
                    raise
            self._set_paths()
        return self.python

    def _set_paths(self) -> None:
        """Write the path file if it differs: another checkout may have made the environment."""
        path_file = self.site_packages / "further.pth"
        text = "".join(f"{path}\n" for path in self.paths)
        if not path_file.exists() or path_file.read_text() != text:
            temporary = path_file.with_name(f"further.{os.getpid()}.tmp")
            temporary.write_text(text)
            temporary.replace(path_file)

    def _fill(self) -> None:
        command = [self.interpreter, "-m", "venv", str(self.home)]
        self._check(subprocess.run(command, capture_output=True, text=True, check=False))
        wanted = self.install or ("--no-deps", "-r", str(self.pins))
        self._check(install(self.python, ["--quiet", "-c", str(self.pins), *wanted]))
        (self.home / "pins").write_text(self._wanted())

    def _wanted(self) -> str:
        asked = repr((self.install, self.version))
        return hashlib.sha256(self.pins.read_bytes() + asked.encode()).hexdigest()

    def _check(self, result: subprocess.CompletedProcess[str]) -> None:
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            message = f"the environment {self.name} cannot be made: {reason}"
            raise EnvironmentUnavailableError(message)


def run_in(
    environment: Environment,
    args: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run the environment's interpreter with these arguments, and capture its output.

    Any exit status is returned. `variables` are the only variables of OpenTelemetry, Cirron or
    Python that the process gets, except that it takes no samples of memory and shows no progress.
    `timeout` is in seconds. Raises EnvironmentUnavailableError and subprocess.TimeoutExpired.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FORGOTTEN)}
    return subprocess.run(
        [str(environment.make()), *map(str, args)],
        cwd=cwd,
        env={
            **kept,
            "CIRRON_SAMPLE_INTERVAL": "none",
            "CIRRON_OTEL_PROGRESS": "no",
            **(variables or {}),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
