"""Python environments beside the tests' own: other versions, and packages that must not meet ours.

Each is kept in `${XDG_CACHE_HOME:-~/.cache}/cirron-otel/<name>/` and made again only when its pins
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

from tests.install import install

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
"""Where the packages of the tests' own environment are."""
_FORGOTTEN = ("OTEL_", "CIRRON_", "PYTHON")


class EnvironmentUnavailableError(Exception):
    """An environment cannot be made here, e.g. without a network; the message names it."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, not necessarily made yet."""

    name: str
    """Its directory below the cache, e.g. `recorder/0.3.0`."""
    pins: Path
    """A file of exact versions: of everything that is installed."""
    install: tuple[str, ...] = ()
    """Requirements, installed with what they need; without any, what `pins` lists and no more."""
    paths: tuple[Path, ...] = ()
    """Directories at the end of its `sys.path`: its own packages win, then those of the first."""
    interpreter: str = sys.executable
    """The Python that it is made with: that of the tests by default."""
    version: str = sys.version
    """Of that Python: with another one the environment is made again."""

    @property
    def home(self) -> Path:
        """Its directory."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "cirron-otel" / self.name

    @property
    def python(self) -> Path:
        """Its interpreter, there once `make` has returned."""
        return self.home / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        major, minor, *_ = self.version.split(".")
        return self.home / "lib" / f"python{major}.{minor}" / "site-packages"

    @property
    def is_made(self) -> bool:
        """Whether it is there, by these pins and this Python."""
        stamp = self.home / "pins"
        return self.python.exists() and stamp.exists() and stamp.read_text() == self._wanted()

    def make(self) -> Path:
        """Its interpreter, made if it is not there; one process makes it, others wait.

        Raises EnvironmentUnavailableError.
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
        return self.python

    def _fill(self) -> None:
        command = [self.interpreter, "-m", "venv", str(self.home)]
        self._check(subprocess.run(command, capture_output=True, text=True, check=False))
        wanted = self.install or ("--no-deps", "-r", str(self.pins))
        self._check(install(self.python, ["--quiet", "-c", str(self.pins), *wanted]))
        path_file = self.site_packages / "further.pth"
        path_file.write_text("".join(f"{path}\n" for path in self.paths))
        (self.home / "pins").write_text(self._wanted())

    def _wanted(self) -> str:
        asked = repr((self.install, [str(path) for path in self.paths], self.version))
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
    """Run its interpreter with these arguments, what it says captured; any exit status is returned.

    The process sees nothing that was set for OpenTelemetry, Cirron or Python but `variables`.
    `timeout` is in seconds. Raises EnvironmentUnavailableError, subprocess.TimeoutExpired.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FORGOTTEN)}
    return subprocess.run(
        [str(environment.make()), *map(str, args)],
        cwd=cwd,
        env={**kept, **(variables or {})},
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
