"""Checks that break the hooks into a framework, each in a forked process of its own.

A module of checks has `check = Checks()`, functions with `@check`, and ends with a call of
`check.main()`. Its tests read the outcomes with `outcomes`. The module imports the framework once.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cirron_otel as ci
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import read_spool

from . import use_one_thread


class Checks:
    """The checks of a module, by name. It is also the decorator that adds one."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[[], None]] = {}

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self._functions[function.__name__] = function
        return function

    def main(self) -> None:
        """Run every check, and print the traceback of each, or "", by its name, as JSON."""
        import_session()
        results = {}
        for name, function in self._functions.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                results[name] = _run(function, Path(directory))
        print(json.dumps(results))


def import_session() -> None:
    """Import the modules that a session needs, except the hooks, once for all forked processes.

    A check may change a framework before its session imports the hooks.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            with tempfile.TemporaryDirectory() as directory, os.fdopen(writing, "w") as file:
                profile(directory)
                ci.shutdown()
                file.write("\n".join(sys.modules))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as file:
        modules = file.read().split("\n")
    assert os.waitpid(pid, 0)[1] == 0, "no session could be opened"
    for name in modules:
        is_hook = name.startswith("cirron_otel.sdk.instrumentation")
        if name.startswith(("cirron_otel.", "opentelemetry.")) and not is_hook:
            importlib.import_module(name)


def _run(function: Callable[[], None], directory: Path) -> str:
    """Run a check in a child; return its traceback."""
    pid = os.fork()
    if not pid:
        fault = ""
        try:
            os.chdir(directory)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            use_one_thread()
            if "torch" in sys.modules:
                sys.modules["torch"].manual_seed(0)
            function()
        except BaseException:
            fault = traceback.format_exc()
        finally:
            (directory / "fault").write_text(fault)
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    path = directory / "fault"
    return path.read_text() if path.exists() else f"ended with {status}"


def names_in(module: str) -> list[str]:
    """Return the names of the checks of a module of this package, without importing it."""
    source = Path(__file__).with_name(f"{module}.py").read_text()
    return re.findall(r"^@check\ndef (\w+)", source, re.MULTILINE)


def outcomes(module: str, python: Path | ForkedScripts, **more: str) -> dict[str, str]:
    """Run the checks of a module of this package, and return their tracebacks."""
    name = f"tests.system.frameworks.{module}"
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **more}
    done = module_run(python, name, **variables)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def module_run(
    python: Path | ForkedScripts, name: str, *arguments: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a module with an interpreter, or in a fork of one; it must succeed."""
    if isinstance(python, ForkedScripts):
        done = python.module(name, *arguments, env=variables)
    else:
        done = subprocess.run(
            [str(python), "-m", name, *map(str, arguments)], cwd=ROOT, timeout=600, check=False,
            env=environment(**variables), capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


# --- for the checks ---------------------------------------------------------------------------


def profile(directory: str = "run", **options: Any) -> Any:
    """Open a session that records into a directory below the check's own."""
    return ci.profile(
        output_dir=directory, exporters="none", join="none", handle_signals=False, **options
    )


def names(directory: str = "run") -> list[str]:
    """Return the names of the recorded scopes, in order of their beginnings."""
    spans = read_spool(Path(directory)).spans
    return [span["name"] for span in sorted(spans, key=lambda each: int(each["start_ns"]))]


def callables(*owners: Any) -> list[dict[str, Any]]:
    """Return the methods of classes, to compare them before a session and after it."""
    return [
        {name: value for name, value in vars(each).items() if callable(value)} for each in owners
    ]


def fail(*_: Any, **__: Any) -> Any:
    """Replace a function of the hooks."""
    raise ValueError("the hook is broken")


def warnings() -> list[str]:
    """Return a list that the following warnings of this package are added to."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("cirron_otel").addHandler(handler)
    return messages


def faults(profiler: Any) -> Sequence[str]:
    """Return the last error of each cause that a session has counted."""
    health = profiler.health()
    return [
        f"{cause}: {health['last_errors'].get(cause)}"
        for cause, count in health["swallowed_errors"].items()
        if count
    ]
