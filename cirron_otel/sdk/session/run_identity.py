"""The identity of a run: one `profile()` or one `cirron-otel run`, with all its processes.

All processes of a job derive the same id without communication, from the first of these sources
that applies:

1. `CIRRON_RUN_ID`, set by the Cirron platform
2. `CIRRON_OTEL_RUN_ID`, set by `cirron-otel run` for its child processes
3. variables that are common to all processes of one launch and differ between launches: Slurm's
   step, a PMIx namespace, an elastic run with more than one node
4. in a child process of `multiprocessing`, the key that it inherits from the main process
5. under torchrun or another launcher on one node, the launcher's process
6. otherwise the process itself; its `multiprocessing` children derive the same id (source 4)

For sources 3 to 6, the number of the session within its process is part of the id, so a second
`profile()` is another run.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import current_process, parent_process
from pathlib import Path, PurePath
from typing import Final

from ...core.config.options import Config
from ...ids import SHORT_ID_DIGITS, digest
from .errors import record_error
from .identity import Identity, slurm_step

RUN_ID_VARIABLE: Final = "CIRRON_OTEL_RUN_ID"
_DOMAIN = "cirron run"
_ID_BYTES = 16
_SPACE = re.compile(r"\s")
_MOST_CHARACTERS = 256
_PYTHON = "python"
_NOTEBOOK = "notebook"
_KERNELS = frozenset({"ipykernel_launcher", "colab_kernel_launcher"})
_NOTEBOOK_VARIABLE = "JPY_SESSION_NAME"
_INTERACTIVE = frozenset({"", "-c", "-"})
_RENDEZVOUS = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "K8S_JOB_NAME", "JOB_NAME")
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """A run's id and name, and the script that it runs."""

    id: str
    name: str
    script: str
    """The script's name without directory and `.py`; `python` for an interactive session."""
    arguments: tuple[str, ...] = ()
    """The command line: the script and its arguments, secrets included."""
    is_inherited: bool = False
    """Whether this process is a child of the process that opened the run."""


class _Sessions:
    """The number of sessions that this process has opened."""

    count = 0


def run_identity(config: Config, environ: Mapping[str, str], identity: Identity) -> RunIdentity:
    """Return the run that a session of this process belongs to. Raises nothing."""
    number, _Sessions.count = _Sessions.count, _Sessions.count + 1
    try:
        run_id = config.run_id or _inherited(environ) or _derived(environ, identity, number)
    except Exception as error:
        record_error("run", error)
        run_id = os.urandom(_ID_BYTES).hex()
    script = script_name()
    name = config.run_name or default_name(script, run_id)
    return RunIdentity(run_id, name, script, tuple(sys.argv))


def command_run(config: Config, environ: Mapping[str, str], command: Sequence[str]) -> RunIdentity:
    """Return the run of `command`, for the process that starts it."""
    run_id = config.run_id or _inherited(environ) or new_run_id()
    script = command_name(command)
    name = config.run_name or default_name(script, run_id)
    return RunIdentity(run_id, name, script, tuple(command))


def new_run_id() -> str:
    """Return a random id."""
    return os.urandom(_ID_BYTES).hex()


def default_name(script: str, run_id: str) -> str:
    """Return the name of a run without an explicit name."""
    return f"{script}-{run_id[:SHORT_ID_DIGITS]}"


def script_name() -> str:
    """Return the name of the script that this process runs."""
    try:
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        name = getattr(spec, "name", None)
        if isinstance(name, str) and name not in ("__main__", "__mp_main__"):
            return _text(name.removesuffix(".__main__"))
        return _text(_stem(sys.argv[0] if sys.argv else ""))
    except Exception as error:
        record_error("run", error)
        return _PYTHON


def command_name(command: Sequence[str]) -> str:
    """Return the name of a command's first Python file, or else of its module or program."""
    for word in command:
        if word.endswith(".py") and not word.startswith("-") and not _SPACE.search(word):
            return _text(_stem(word))
    program = PurePath(command[0]).name if command else _PYTHON
    if "-m" in command[:-1] and program.startswith(_PYTHON):
        return _text(command[command.index("-m") + 1])
    return _text(program)


def _stem(argument: str) -> str:
    if argument in _INTERACTIVE:
        return _PYTHON
    path = PurePath(argument)
    if path.stem in _KERNELS:
        notebook = os.environ.get(_NOTEBOOK_VARIABLE, "")
        return PurePath(notebook).stem or _NOTEBOOK
    if path.name == "__main__.py":
        return path.parent.name or _PYTHON
    return path.name.removesuffix(".py") or _PYTHON


def _text(text: str) -> str:
    """Return one printable line; file names may contain any bytes."""
    line = text.encode("utf-8", "replace").decode("utf-8")[:_MOST_CHARACTERS]
    return "".join(char if char.isprintable() else "?" for char in line) or _PYTHON


def _inherited(environ: Mapping[str, str]) -> str | None:
    run_id = environ.get(RUN_ID_VARIABLE, "").strip()
    return _text(run_id) if run_id else None


def _derived(environ: Mapping[str, str], identity: Identity, number: int) -> str:
    origin = (
        _launch(environ)
        or (_multiprocessing_key() if parent_process() is not None else None)
        or _launcher_process(environ, identity)
        or _multiprocessing_key()
    )
    return digest(_DOMAIN, *origin, number)[:_ID_BYTES].hex()


def _launch(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the identity of a launch from variables that are the same on every node."""
    step = slurm_step(environ)
    if step is not None:
        return ("slurm", environ.get("SLURM_CLUSTER_NAME", ""), *step)
    namespace = environ.get("PMIX_NAMESPACE", "").strip()
    if namespace:
        return ("pmix", namespace, environ.get("USER", ""))
    if _has_more_nodes(environ):
        shared = tuple(environ.get(name, "").strip() for name in _RENDEZVOUS)
        if any(shared):
            return ("rendezvous", *shared)
    return None


def _has_more_nodes(environ: Mapping[str, str]) -> bool:
    """Return whether the job's processes are known to run on more than one node."""
    local, world = environ.get("LOCAL_WORLD_SIZE", ""), environ.get("WORLD_SIZE", "")
    if not world.isdecimal():
        return False
    if local.isdecimal():
        return int(local) < int(world)
    return int(world) > 1 and _IN_CLUSTER in environ  # each process has its own pod


def _multiprocessing_key() -> tuple[str, ...]:
    """Return the key that a main process shares with all its `multiprocessing` children."""
    return "multiprocessing", digest(bytes(current_process().authkey)).hex()


def _launcher_process(environ: Mapping[str, str], identity: Identity) -> tuple[str, ...] | None:
    """Return the process that started the ranks of one node; id and start time make it unique.

    Without torchrun, this is the leader of the process group and not the parent process: a shell
    may start several runs one after the other, but the ranks of one script share a process group.
    """
    if identity.rank is None or identity.world_size < 2:
        return None
    leader = os.getppid() if environ.get("TORCHELASTIC_RUN_ID") else os.getpgid(0)
    if leader in (0, os.getpid()):
        return None
    return "process", socket.gethostname(), str(leader), _start_of(leader)


def _start_of(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty if it is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(errors="replace").strip()
        return f"{boot} {text.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return ""
