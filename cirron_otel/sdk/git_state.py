"""The commit of the program's git repository, and whether its tracked files have been changed.

The commit is read from the repository's files. Whether the tree is dirty needs a `git` process: it
runs beside the training, is asked for its result without waiting, and is killed at the end.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

COMMIT: Final = "vcs.ref.head.revision"
"""OpenTelemetry's name (semantic conventions, VCS), as is the next."""
BRANCH: Final = "vcs.ref.head.name"
DIRTY: Final = "cirron.git.dirty"

_MOST_BYTES = 4096
_MOST_PACKED_BYTES = 16 * 2**20
_LAST_WAIT_S = 0.3
"""The longest wait for git at the end of a session."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCHES = "refs/heads/"
_COMMAND = (
    "git", "--no-optional-locks", "-c", "core.fsmonitor=false", "diff", "--quiet",
    "--no-ext-diff", "--no-textconv", "--ignore-submodules", "HEAD", "--",
)  # fmt: skip


def program_directory() -> Path:
    """The directory of the script that runs, else the working directory."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if script is not None and script.is_file():
        return script.resolve().parent
    return Path.cwd()


def head_of(directory: Path) -> dict[str, str]:
    """The commit and the branch that are checked out in the repository around `directory`."""
    repository = _repository(directory)
    if repository is None:
        return {}
    head = _read(repository / "HEAD")
    if not head.startswith("ref:"):
        return {COMMIT: head} if _COMMIT.fullmatch(head) else {}
    reference = head.removeprefix("ref:").strip()
    found = {COMMIT: commit} if (commit := _commit_of(repository, reference)) else {}
    if found and reference.startswith(_BRANCHES):
        found[BRANCH] = reference.removeprefix(_BRANCHES)
    return found


class TreeState:
    """Whether the tracked files of the repository around a directory differ from its commit."""

    def __init__(self, directory: Path) -> None:
        """Start to compare them, in a process of its own.

        A program that handles the signals of its children, or ignores them, gets no child of ours.
        """
        self._process: subprocess.Popen[bytes] | None = None
        if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
            return
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                _COMMAND, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def is_pending(self) -> bool:
        """Whether there may be a result later."""
        return self._process is not None

    def result(self, *, is_last: bool) -> dict[str, bool]:
        """The attribute, once; nothing as long as the process runs. `is_last`: end it."""
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
            process.wait(_LAST_WAIT_S)
        return {DIRTY: bool(code)} if code in (0, 1) else {}


def _repository(directory: Path) -> Path | None:
    """The git directory of the work tree that contains `directory`."""
    for each in (directory, *directory.parents):
        entry = each / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():
            named = _read(entry)
            return each / named.removeprefix("gitdir:").strip() if named else None
    return None


def _commit_of(repository: Path, reference: str) -> str | None:
    """The commit of a reference, from its own file or the packed ones."""
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
