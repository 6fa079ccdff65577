"""The commit of the program's git repository, and whether its tracked files have been changed.

The commit is read from the repository's files. A `git` process determines whether the tree is
dirty: it runs in parallel with training, is polled without waiting, and is killed at the end.
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
"""OpenTelemetry's name (semantic conventions, VCS), as is `BRANCH`."""
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
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                _COMMAND, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def is_pending(self) -> bool:
        """Whether a result may still become available."""
        return self._process is not None

    def result(self, *, is_last: bool) -> dict[str, bool]:
        """Return the attribute once the process has ended; `is_last` ends the process."""
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
