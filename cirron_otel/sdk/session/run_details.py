"""Resource attributes that distinguish one run from another.

Each kind of detail can be switched off with the option `run_details`. Values are bounded and
contain no secrets that `redaction` recognises.

The commit is read from the repository's files. A `git` process determines whether the tree is
dirty: it runs in parallel with training, is polled without waiting, and is killed at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource

from ..._version import __version__
from ...core.cgroup import cpu_limit, memory_cgroup
from ...core.config.options import Config
from ...semconv import (
    ARGUMENTS,
    BRANCH,
    COMMIT,
    CPU_ALLOWED,
    CPU_COUNT,
    CPU_LIMIT,
    CUDA_VERSION,
    DIRTY,
    DISTRO_NAME,
    DISTRO_VERSION,
    HYPERPARAMETER,
    MEMORY_LIMIT,
    RUN_ID,
    RUN_NAME,
    TORCH_VERSION,
    describes_run,
)
from ..flush.json_attributes import text_of
from .errors import record_error
from .identity import Identity
from .redaction import REDACTED, names_a_secret, redacted
from .run_identity import RunIdentity

_MOST_BYTES = 4096
_MOST_PACKED_BYTES = 16 * 2**20
_LAST_WAIT_S = 0.3
"""The longest wait for git at the end of a session."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCHES = "refs/heads/"
_ARGUMENTS = (
    "--no-optional-locks", "-c", "core.fsmonitor=false", "diff", "--quiet",
    "--no-ext-diff", "--no-textconv", "--ignore-submodules", "HEAD", "--",
)  # fmt: skip


def program_directory() -> Path:
    """Return the directory of the running script, or else the working directory."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if script is not None and script.is_file():
        return script.resolve().parent
    return Path.cwd()


def head_of(directory: Path) -> dict[str, str]:
    """Return the checked-out commit and branch of the repository that contains `directory`."""
    repository = _repository(directory)
    if repository is None:
        return {}
    head = _read(repository / "HEAD")
    if not head.startswith("ref:"):
        return {COMMIT: head} if _COMMIT.fullmatch(head) else {}
    reference = head.removeprefix("ref:").strip()
    attributes = {COMMIT: commit} if (commit := _commit_of(repository, reference)) else {}
    if attributes and reference.startswith(_BRANCHES):
        attributes[BRANCH] = reference.removeprefix(_BRANCHES)
    return attributes


class TreeState:
    """Determines whether the tracked files of a directory's repository differ from its commit."""

    def __init__(self, directory: Path) -> None:
        """Start the comparison in a separate process.

        If the program handles or ignores SIGCHLD, no process is started, and there is no result.
        """
        self._process: subprocess.Popen[bytes] | None = None
        if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
            return
        git = shutil.which("git")
        if git is None:
            return
        # With a path, `Popen` does not search PATH itself. Its search changes the filters of
        # warnings for a moment, and so shows a warning again that the program shows once.
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                (git, *_ARGUMENTS), cwd=directory, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def is_pending(self) -> bool:
        """Whether a result may still become available."""
        return self._process is not None

    def result(self, *, is_last: bool) -> dict[str, bool]:
        """Return the attribute `cirron.git.dirty` once the git process has ended.

        With `is_last`, wait briefly for the end of the process, and then kill it.
        """
        process = self._process
        if process is None:
            return {}
        if is_last:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WAIT_S)
        code = process.poll()
        if code is None and not is_last:
            return {}
        self._process = None
        if code is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk
                process.wait(_LAST_WAIT_S)
        return {DIRTY: bool(code)} if code in (0, 1) else {}


def _repository(directory: Path) -> Path | None:
    """Return the git directory of the work tree that contains `directory`."""
    for each in (directory, *directory.parents):
        entry = each / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():
            named = _read(entry)
            return each / named.removeprefix("gitdir:").strip() if named else None
    return None


def _commit_of(repository: Path, reference: str) -> str | None:
    """Return the commit of a reference, from its file or from the packed references."""
    if ".." in reference or reference.startswith("/"):
        return None
    common = _read(repository / "commondir")
    shared = repository / common if common else repository
    for place in (repository, shared):
        commit = _read(place / reference)
        if _COMMIT.fullmatch(commit):
            return commit
    for line in _read(shared / "packed-refs", _MOST_PACKED_BYTES).splitlines():
        commit, _, name = line.partition(" ")
        if name == reference and _COMMIT.fullmatch(commit):
            return commit
    return None


def _read(path: Path, most: int = _MOST_BYTES) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace").strip()
    except OSError:
        return ""


SCRIPT: Final = "cirron.run.script"

COMMAND, GIT, VERSIONS, HOST, DEVICES, LAUNCHER, HYPERPARAMETERS, CONFIGURATION = (
    "command", "git", "versions", "host", "devices", "launcher", "hyperparameters",
    "configuration",
)  # fmt: skip
_OTHERS: Final = {
    "process.runtime.": VERSIONS,
    "host.name": HOST,
    "cirron.gpu.": DEVICES,
    "cirron.launcher": LAUNCHER,
}
"""The kind of detail of each attribute that every resource has, by attribute name prefix."""
_MOST_ARGUMENTS = 100
_MOST_ITEMS = 200
_MOST_DEPTH = 8
_MOST_CHARACTERS = 256


def run_attributes(
    run: RunIdentity, config: Config, hyperparameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the attributes that are known when a session begins. Raises nothing."""
    attributes: dict[str, Any] = {RUN_ID: run.id, RUN_NAME: run.name, SCRIPT: run.script}
    try:
        if COMMAND in config.run_details:
            attributes[ARGUMENTS] = [
                _cut(each) for each in redacted(run.arguments[:_MOST_ARGUMENTS])
            ]
        if VERSIONS in config.run_details:
            attributes |= {DISTRO_NAME: "cirron-otel", DISTRO_VERSION: __version__}
        if HYPERPARAMETERS in config.run_details and hyperparameters:
            attributes |= hyperparameter_attributes(hyperparameters)
    except Exception as error:
        record_error("run", error)
    return attributes


def is_wanted(attribute: str, config: Config) -> bool:
    """Return whether a resource attribute is recorded: its kind of detail is not switched off."""
    details = (kind for prefix, kind in _OTHERS.items() if attribute.startswith(prefix))
    return all(kind in config.run_details for kind in details)


def without_details(resource: Resource) -> Resource:
    """Return the resource for metrics: `resource` without attributes that describe the run."""
    items = resource.attributes.items()
    return Resource({key: value for key, value in items if not describes_run(key)})


_announced: deque[tuple[bool, Mapping[str, Any]]] = deque(maxlen=100)


def add_hyperparameters(hyperparameters: Mapping[str, Any]) -> None:
    """Record further hyperparameters of the run, as attributes `cirron.config.*`."""
    _announced.append((True, hyperparameters))


def add_attributes(attributes: Mapping[str, Any]) -> None:
    """Record further attributes of the run, such as its id in another tool."""
    _announced.append((False, attributes))


class LateDetails:
    """Attributes that take time to compute, or that become available when torch is imported.

    `begin` and `found` are called on the flush thread.
    """

    def __init__(self, config: Config, identity: Identity, run: RunIdentity) -> None:
        """Read nothing yet. Only the first process of a run will compare the work tree."""
        _announced.clear()
        self._has_git = GIT in config.run_details
        self._asks_tree = self._has_git and not identity.rank and not run.is_inherited
        self._has_configuration = CONFIGURATION in config.run_details
        self._has_versions = VERSIONS in config.run_details
        self._has_hyperparameters = HYPERPARAMETERS in config.run_details
        self._tree: TreeState | None = None

    def begin(self) -> dict[str, Any]:
        """Return the commit and the limits of the process, and start to compare the work tree.

        Raises nothing.
        """
        found: dict[str, Any] = {}
        try:
            if self._has_configuration:
                found |= machine_limits()
            if self._has_git:
                directory = program_directory()
                head = {key: _cut(value) for key, value in head_of(directory).items()}
                found |= head
                if head and self._asks_tree:
                    self._tree = TreeState(directory)
        except Exception as error:
            record_error("run", error)
        return found

    def found(self, *, is_last: bool) -> dict[str, Any]:
        """Return attributes that have become available since the last call. Raises nothing."""
        attributes: dict[str, Any] = {}
        try:
            if self._has_versions and "torch" in sys.modules:
                attributes |= self._versions(sys.modules["torch"])
            while _announced:
                is_hyperparameters, announced = _announced.popleft()
                if not is_hyperparameters:
                    attributes |= {_cut(key): _value(each) for key, each in announced.items()}
                elif self._has_hyperparameters:
                    attributes |= hyperparameter_attributes(announced)
            if self._tree is not None:
                attributes |= self._tree.result(is_last=is_last)
                self._tree = self._tree if self._tree.is_pending else None
        except Exception as error:
            record_error("run", error)
        return attributes

    def _versions(self, torch: Any) -> dict[str, str]:
        if not hasattr(torch, "version") or not hasattr(torch, "__version__"):
            return {}  # torch is still being imported
        self._has_versions = False
        cuda = getattr(torch.version, "cuda", None)
        versions = {TORCH_VERSION: _cut(str(torch.__version__))}
        return versions | ({CUDA_VERSION: _cut(str(cuda))} if cuda else {})


def machine_limits() -> dict[str, Any]:
    """Return the CPUs of the host and those that the process may use, and the limits of cgroups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    limits: dict[str, Any] = {CPU_COUNT: os.cpu_count(), CPU_ALLOWED: allowed}
    with contextlib.suppress(OSError, ValueError):
        group = memory_cgroup()
        limits |= {CPU_LIMIT: cpu_limit(), MEMORY_LIMIT: None if group is None else group.limit()}
    return {name: value for name, value in limits.items() if value is not None}


def hyperparameter_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes `cirron.config.*` of hyperparameters, without secrets."""
    attributes: dict[str, Any] = {}
    for key, value in _flattened(given, "", 0):
        if len(attributes) >= _MOST_ITEMS:
            break
        attributes[HYPERPARAMETER + _cut(key)] = REDACTED if names_a_secret(key) else _value(value)
    return attributes


def _flattened(given: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in dict(given).items():
        name = f"{prefix}{text_of(key)}"
        if isinstance(value, Mapping) and value and depth < _MOST_DEPTH:
            yield from _flattened(value, f"{name}.", depth + 1)
        else:
            yield name, value


def _value(value: Any) -> Any:
    """Convert a hyperparameter to a value that a resource attribute can have."""
    if isinstance(value, bool):
        return value
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if type(value) is float:
        return value
    return _cut(redacted([text_of(value)])[0])


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:_MOST_CHARACTERS]
