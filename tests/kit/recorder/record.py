"""Record spools with the real cirron-sdk, each version in an environment of its own.

They are recorded once, until a script, a pin or Python changes (tests/kit/references.py).

cirron-sdk never enters the environment of the tests: it is a neighbour whose files are read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.kit import references
from tests.kit.environments import Environment

HERE = Path(__file__).parent
CONSTRAINTS = HERE / "constraints.txt"
VERSIONS = ("0.3.0", "0.1.0")


class Script(NamedTuple):
    """The exit status that a script must end with, and the numbers of records in its spool."""

    status: int
    spans: int
    marks: int


SCRIPTS = {
    "loop": Script(0, 53, 33),
    "threads": Script(0, 83, 40),
    "marks": Script(0, 3, 25),
    "many_marks": Script(0, 2, 2500),
    "names": Script(0, 84, 0),
    "fork": Script(0, 6, 4),
    "ranks": Script(0, 30, 12),
    "killed": Script(-9, 20, 12),
    "requests": Script(0, 18, 5),
}
"""The scripts of `scripts/`."""


class RecorderError(Exception):
    """A recording script did not do what it should; the message ends with its last output."""


@dataclass(frozen=True)
class Recording:
    """One recorded spool."""

    version: str
    script: str
    directory: Path
    """Holds `.cirron/spool` (and `record.log`, what the script said)."""

    @property
    def name(self) -> str:
        """A name to show, e.g. `0.3.0-loop`."""
        return f"{self.version}-{self.script}"

    def batch_files(self) -> list[Path]:
        """Its batch files, in chronological order."""
        return sorted((self.directory / ".cirron" / "spool").glob("*.json"))


def record_all(directory: Path) -> list[Recording]:
    """Every script with every version, below `directory`, which is not changed if it exists."""
    if not directory.exists():
        files = [*(HERE / "scripts").glob("*.py"), CONSTRAINTS, Path(__file__)]
        temporary = directory.with_name(f"{directory.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        references.fill(temporary, references.key_of(files, "recordings"), _record_into)
        temporary.rename(directory)
    return [
        Recording(version, script, directory / f"{version}-{script}")
        for version in VERSIONS
        for script in SCRIPTS
    ]


def _record_into(directory: Path) -> None:
    for version in VERSIONS:
        for script in SCRIPTS:
            place = record(version, script, directory / f"{version}-{script}")
            check(Recording(version, script, place))


def check(recording: Recording) -> None:
    """Raise RecorderError if a spool does not have the records of its script."""
    batches = [json.loads(path.read_bytes()) for path in recording.batch_files()]
    spans, marks = (sum(len(batch[key]) for batch in batches) for key in ("spans", "marks"))
    expected = SCRIPTS[recording.script]
    if (spans, marks) != (expected.spans, expected.marks):
        raise RecorderError(
            f"{recording.name} has {spans} spans and {marks} marks, "
            f"not {expected.spans} spans and {expected.marks} marks"
        )


def record(version: str, script: str | Path, directory: Path, timeout: float = 120.0) -> Path:
    """Run a script with that version of cirron-sdk in `directory`, which it returns.

    `script` is a name of SCRIPTS or a path (which must then exit with 0). Raises RecorderError
    where the script ends otherwise than it should, EnvironmentUnavailableError where
    cirron-sdk cannot be installed.
    """
    python = environment(version)
    path = script if isinstance(script, Path) else HERE / "scripts" / f"{script}.py"
    expected = 0 if isinstance(script, Path) else SCRIPTS[script].status
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "record.log"
    with log.open("wb") as output:
        status = subprocess.run(
            [str(python), "-I", str(path)],
            cwd=directory,
            env=_environment_of_the_script(directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        ).returncode
    if status != expected:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RecorderError(f"{path.name} ended with {status}, not {expected}:\n{said}")
    return directory


def _environment_of_the_script(directory: Path) -> dict[str, str]:
    taken = ("OTEL_", "CIRRON_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        kept.pop(name, None)
    return {**kept, "HOME": str(directory)}


def environment(version: str) -> Path:
    """The Python interpreter that has that version of cirron-sdk, made if it is not there.

    Raises EnvironmentUnavailableError of tests.kit.environments.
    """
    return Environment(f"recorder/{version}", CONSTRAINTS, (f"cirron-sdk=={version}",)).make()
