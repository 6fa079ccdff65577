"""The server process (tests/kit/program_server.py) for the programs of frameworks.

    python -m tests.system.frameworks.worker IMPORT...

It imports the modules IMPORT once. It imports no tool, so that the same process serves untraced
programs, too. The first program that cirron-otel traces imports the package itself. A second
server, forked from this one, then imports the same modules of the package once, and runs the
further traced programs.

A request is {"framework": NAME, "tool": TOOL, "program": NAME, "directory": PATH}, where TOOL is
`untraced`, `cirron-otel` or `cirron-sdk`.
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
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import program_server, references
from tests.kit.program_server import ForkedServer, run_ranks, serve

from . import Program, programs_of, use_one_thread

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
    uses_package: bool = False
    """Whether the program imports cirron_otel, traced or not."""
    complaints: list[str] = field(default_factory=list)
    """The warnings and swallowed errors of the tool that traced it."""
    opening: list[str] = field(default_factory=list)
    """The modules of the package and of OpenTelemetry that are imported when its session is open,
    before the program itself begins."""


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    """Serve until the end of the input."""
    gc.disable()  # collections take a fifth of the time of these imports
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.enable()
    serve(_answer)
    for each in _second:
        each.close()
    sys.stderr.flush()
    os._exit(0)  # the end of the interpreter takes seconds to free torch


def _answer(request: dict[str, Any]) -> list[int]:
    """Run a program, in the second server if it is traced and not the first one."""
    if request["tool"] != "cirron-otel":
        return _run(request)
    if _second:
        return _second[0].answer(request)
    statuses = _run(request)
    if not any(statuses):
        outcome = json.loads(Path(request["directory"], "outcome-0.json").read_text())
        _second.append(ForkedServer(_run, outcome["opening"]))
    return statuses


_second: list[ForkedServer] = []


def _run(request: dict[str, Any]) -> list[int]:
    program = programs_of(request["framework"])[request["program"]]
    directory = Path(request["directory"])
    tool = request["tool"]

    def run() -> list[int]:
        return run_ranks(lambda: asdict(trace(program, tool, directory)), program.ranks, directory)

    return untraced(program, directory, run) if tool == "untraced" else run()


def untraced(program: Program, directory: Path, run: Callable[[], list[int]]) -> list[int]:
    """Write the stored outcomes of an untraced program, or call `run` and store them.

    `run` writes the outcomes, and returns the exit statuses of the ranks, as this function does. An
    outcome with an unexpected error is not stored.
    """
    files = [*_HERE.joinpath("programs").glob("*.py"), Path(program_server.__file__)]
    files += [_HERE / f"{name}.py" for name in ("__init__", "worker", "ray_cluster", "ray_setup")]
    keys = {
        uses_package: references.key_of(
            files, program.framework, program.name, *sys.argv[1:], uses_package=uses_package
        )
        for uses_package in (False, True)
    }
    paths = [directory / f"outcome-{rank}.json" for rank in range(program.ranks)]
    for key in keys.values():
        if (stored := references.load(key)) is not None:
            for path, outcome in zip(paths, stored, strict=True):
                path.write_text(json.dumps(outcome))
            return [0] * program.ranks
    statuses = run()
    if not any(statuses):
        outcomes = [json.loads(path.read_text()) for path in paths]
        if all(outcome["error"] == program.error for outcome in outcomes):
            uses_package = any(outcome["uses_package"] for outcome in outcomes)
            references.store(keys[uses_package], outcomes)
    return statuses


def trace(program: Program, tool: str, directory: Path) -> Outcome:
    """Run a program in this process, traced by `tool` into `directory`."""
    use_one_thread()
    _seed()
    outcome = Outcome()
    warnings, sdk = _Warnings(), None
    if tool == "cirron-otel":
        sdk = importlib.import_module("cirron_otel")
        logging.getLogger("cirron_otel").addHandler(warnings)
        profiler = sdk.profile(
            output_dir=str(directory), exporters="none", join="none", handle_signals=False
        )
        outcome.opening = [
            name for name in sys.modules if name.startswith(("cirron_otel", "opentelemetry"))
        ]
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
        outcome.uses_package = "cirron_otel" in sys.modules
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
