"""Runs programs one after the other for another process, each in forked processes of its own.

    python -m tests.system.frameworks.worker IMPORT...

The process imports the modules IMPORT once, and never trains, so that forking it is safe; it
imports no tool, so that the same process serves untraced programs, too. It reads lines
{"framework": NAME, "tool": TOOL, "program": NAME, "directory": PATH}, where TOOL is `untraced`,
`cirron-otel` or `cirron-sdk`, and answers each with a line: the exit statuses of the ranks. Each
rank leaves `outcome-<rank>.json` and `output-<rank>.txt` in the directory.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import logging
import os
import pickle
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import references
from tests.kit.backends.process import free_port

from . import Program, programs_of

_LIMIT_S = 240.0
_HERE = Path(__file__).parent


@dataclass
class Outcome:
    """The results of a program in one process."""

    result: dict[str, Any] = field(default_factory=dict)
    """The returned value."""
    random: str = ""
    """A digest of the states of Python's, NumPy's and torch's generators at the end."""
    error: str = ""
    """The exception that left the program."""
    complaints: list[str] = field(default_factory=list)
    """The warnings and swallowed errors of the tool that traced it."""


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    """Serve until the end of the input."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # a collection in a forked process then copies none of these objects' pages
    for line in sys.stdin:
        request = json.loads(line)
        program = programs_of(request["framework"])[request["program"]]
        run = _untraced if request["tool"] == "untraced" else _run
        statuses = run(program, request["tool"], Path(request["directory"]))
        print(json.dumps(statuses), flush=True)


def _untraced(program: Program, tool: str, directory: Path) -> list[int]:
    """Write the kept outcomes of an untraced program, or run it and keep them."""
    files = [*_HERE.joinpath("programs").glob("*.py"), _HERE / "__init__.py", _HERE / "worker.py"]
    key = references.key_of(files, program.framework, program.name)
    outcomes = [directory / f"outcome-{rank}.json" for rank in range(program.ranks)]
    if (kept := references.load(key)) is not None:
        for path, outcome in zip(outcomes, kept, strict=True):
            path.write_text(json.dumps(outcome))
        return [0] * program.ranks
    statuses = _run(program, tool, directory)
    if not any(statuses):
        references.store(key, [json.loads(path.read_text()) for path in outcomes])
    return statuses


def _run(program: Program, tool: str, directory: Path) -> list[int]:
    """Run one process for each rank; -9 is the status of one that was killed at the time limit."""
    if program.ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        os.environ |= {"WORLD_SIZE": str(program.ranks), "LOCAL_WORLD_SIZE": str(program.ranks)}
    pids = [_rank(program, tool, directory, rank) for rank in range(program.ranks)]
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    end = time.monotonic() + _LIMIT_S
    return [_wait(pid, end) for pid in pids]


def _rank(program: Program, tool: str, directory: Path, rank: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if program.ranks > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        output = os.open(directory / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        work = directory / f"work-{rank}"
        work.mkdir()
        os.chdir(work)
        outcome = trace(program, tool, directory)
        (directory / f"outcome-{rank}.json").write_text(json.dumps(asdict(outcome)))
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, end: float) -> int:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def trace(program: Program, tool: str, directory: Path) -> Outcome:
    """Run a program in this process, traced by `tool` into `directory`."""
    _seed()
    outcome = Outcome()
    warnings, sdk = _Warnings(), None
    if tool == "cirron-otel":
        sdk = importlib.import_module("cirron_otel")
        logging.getLogger("cirron_otel").addHandler(warnings)
        profiler = sdk.profile(
            output_dir=str(directory), exporters="none", join="none", handle_signals=False
        )
    elif tool == "cirron-sdk":
        sdk = importlib.import_module("cirron")
        os.chdir(directory)
        # It imports each framework that is installed, and torch does not work beside TensorFlow.
        others = {"frameworks": ["tensorflow"]} if "tensorflow" in sys.modules else {}
        sdk.profile(**others)
        _replace_calls(sdk)
    try:
        outcome.result = program.run()
    except BaseException as error:
        outcome.error = f"{type(error).__name__}: {error}"
    finally:
        outcome.random = _random_states()
        if sdk is not None:
            sdk.shutdown()
    if tool == "cirron-otel":
        health = profiler.health()
        outcome.complaints = [f"warning: {text}" for text in warnings.messages]
        for cause, count in health["swallowed_errors"].items():
            if count:
                outcome.complaints.append(f"error in {cause}: {health['last_errors'].get(cause)}")
    return outcome


def _replace_calls(sdk: Any) -> None:
    """Let a program's calls of cirron_otel, such as `ci.wrap`, call another SDK instead."""
    ours = importlib.import_module("cirron_otel")
    for name in ("batches", "epochs", "scope", "wrap"):
        setattr(ours, name, getattr(sdk, name))


def _seed() -> None:
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


def _random_states() -> str:
    states: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        states.append(pickle.dumps(sys.modules["numpy"].random.get_state()))
    if "torch" in sys.modules:
        states.append(sys.modules["torch"].get_rng_state().numpy().tobytes())
    return hashlib.sha256(repr(states).encode()).hexdigest()


if __name__ == "__main__":
    main()
