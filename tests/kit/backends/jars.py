"""Fetch Apache Kafka, which runs in Java: `make backends kafka`.

Maven downloads the jars of collector-config/kafka/pom.xml from the repository that it is configured
with. They are checked against jars.sha256 beside it, and kept in
`${XDG_CACHE_HOME:-~/.cache}/cirron-otel/backends/kafka/<digest of both files>/`, which exists only
if it is complete.

Standard library only: it runs before there is a virtual environment.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from pathlib import Path

from .cache import (
    PINS,
    BuildError,
    folder,
    listed,
    locked,
    run_logged,
    say,
)

NAME = "kafka"
ABOUT = "Apache Kafka 3.9"
SECONDS = 30
"""About how long fetching takes."""
ATTEMPTS = 3
"""Attempts at fetching, since a repository may fail to answer for a moment."""
_PROGRAMS = {"java": "Java 17 or newer", "mvn": "Maven"}


def place() -> Path:
    """The folder of the jars that collector-config/ names now, whether it exists or not."""
    digest = hashlib.sha256()
    for file in (_pom(), _sums()):
        digest.update((file.read_bytes() if file.exists() else b"") + b"\0")
    return folder() / NAME / digest.hexdigest()[:16]


def missing() -> str | None:
    """The reason why Kafka cannot be run, in a few words, or None."""
    if shutil.which("java") is None:
        return "java is not found on the PATH"
    if not place().is_dir():
        return "Apache Kafka is not fetched"
    return None


def fetch() -> None:
    """Fetch the jars if they are missing; without Java or Maven, print that Kafka is left out."""
    if place().is_dir():
        say(f"{NAME}: ready: {place()}")
        return
    if absent := [about for program, about in _PROGRAMS.items() if shutil.which(program) is None]:
        verb = "is" if len(absent) == 1 else "are"
        say(f"LEFT OUT: the tests against {NAME}. {listed(absent)} {verb} not found on the PATH.")
        return
    (folder() / NAME).mkdir(parents=True, exist_ok=True)
    with locked(folder() / "lock"):
        if not place().is_dir():
            _fetch()


def _pom() -> Path:
    return PINS / NAME / "pom.xml"


def _sums() -> Path:
    return PINS / NAME / "jars.sha256"


def _fetch() -> None:
    say(f"{NAME}: fetching {ABOUT} (about {SECONDS} s the first time)")
    started = time.monotonic()
    log = folder() / f"{NAME}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder(), prefix=f"build-{NAME}-") as work:
        shutil.copy(_pom(), work)
        jars = Path(work) / "jars"
        _download(jars, Path(work), log)
        found = _checksums(jars)
        if not _sums().exists():
            _sums().write_text(found)
        _compare(found.splitlines(), _sums().read_text().splitlines())
        for earlier in (folder() / NAME).iterdir():
            shutil.rmtree(earlier)
        jars.replace(place())
    say(f"{NAME}: fetched in {time.monotonic() - started:.0f} s: {place()}")


def _download(jars: Path, work: Path, log: Path) -> None:
    # -U: Maven otherwise remembers that a file could not be fetched.
    command = ["mvn", "dependency:copy-dependencies", "--batch-mode", "--quiet", "-U",
               "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]  # fmt: skip
    for attempt in range(1, ATTEMPTS + 1):
        try:
            run_logged(command, work, log, {})
        except BuildError:
            if attempt == ATTEMPTS:
                raise
            say(f"{NAME}: Maven failed; another attempt")
        else:
            return


def _checksums(jars: Path) -> str:
    """The content of a file for `sha256sum --check`."""
    return "".join(
        f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n"
        for jar in sorted(jars.glob("*.jar"))
    )


def _compare(found: list[str], pinned: list[str]) -> None:
    if wrong := sorted(set(found) ^ set(pinned)):
        names = list(dict.fromkeys(line.partition("  ")[2] for line in wrong))
        raise BuildError(
            f"Maven fetched other files than {_sums()} names: {listed(names)}; if the versions in "
            "pom.xml were changed, delete jars.sha256 and run `make backends` again"
        )
