"""Scripts that run in forks of one interpreter, which has imported torch already.

A fork runs a script as `python SCRIPT ARGUMENT...` does, or a module as `python -m MODULE
ARGUMENT...` does: an uncaught error and the end of the interpreter are Python's own. Only the
import of torch, which takes seconds, is shared. The interpreter never sets torch's number of
threads, so that no fork inherits a pool of threads, which would have to be replaced there (see
`use_one_thread` of tests/system/frameworks).
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .program_server import LIMIT_S, ProgramError, ProgramServer, exit_status, serve
from .sessions.processes import ROOT, environment

_VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
_IMPORTED = ("torch", "torch._dynamo", "torch.utils.data", "opentelemetry.sdk.trace")
"""Every optimizer imports `torch._dynamo`. The scripts import cirron_otel themselves."""
_LEAKED = re.compile(r"^nanobind: leaked .*?refleaks\.html\n?", re.MULTILINE | re.DOTALL)
"""Triton's message at the end of a fork, which does not free the objects that `serve` has frozen.

Freeing them takes a second, most of it for copies of their pages.
"""


class ForkedScripts(ProgramServer):
    """The interpreter, started when first needed; its scripts have one thread and no GPU."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.kit.forked_scripts"]
        super().__init__(command, _VARIABLES)

    def script(
        self, path: Path, *arguments: object, env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a script to its end; raise ProgramError if the interpreter has ended.

        Its directory is the checkout's by default.
        """
        return self._run([str(path), *map(str, arguments)], env, cwd)

    def module(
        self, name: str, *arguments: object, env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a module, as `script` runs a script."""
        return self._run(["-m", name, *map(str, arguments)], env, cwd)

    def _run(
        self, words: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None
    ) -> subprocess.CompletedProcess[str]:
        variables = environment(**{**_VARIABLES, **(env or {})})
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            request: dict[str, Any] = {"words": [*words], "environment": variables}
            request |= {"outputs": [*map(str, outputs)], "cwd": str(cwd or ROOT)}
            statuses = self._ask(request)
            if not statuses:
                raise ProgramError("the interpreter has ended")
            out, err = (each.read_text() for each in outputs)
        return subprocess.CompletedProcess(words, statuses[0], out, _LEAKED.sub("", err))

    def text(
        self, source: str, folder: Path, *arguments: object, env: Mapping[str, str] | None = None,
        status: int = 0,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Write a script into a folder, run it there, and check its exit status."""
        program = folder / "program.py"
        program.write_text(source)
        done = self.script(program, *arguments, env=env, cwd=folder)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def result(self, path: Path, *arguments: object, **env: str) -> Any:
        """Run a script that must succeed, and return the JSON value that it prints."""
        done = self.script(path, *arguments, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)


class _InFork(Exception):  # noqa: N818 (not an error)
    """Raised in a fork, so that its script does not run inside of `serve`."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__()
        self.request = request


def _answer(request: dict[str, Any]) -> list[int]:
    pid = os.fork()
    if not pid:
        raise _InFork(request)
    return [exit_status(pid, time.monotonic() + LIMIT_S)]


def _prepared(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Make this process like a new one that runs the words; return its code and its globals."""
    for stream, path in enumerate((os.devnull, *request["outputs"])):
        flags = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(path, flags, 0o600), stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    main = sys.modules["__main__"] = ModuleType("__main__")
    script, *arguments = request["words"]
    if script == "-m":
        return _module(main, *arguments)
    sys.argv = request["words"]
    sys.path[0] = str(Path(script).parent)
    main.__file__ = script
    return compile(Path(script).read_text(), script, "exec"), vars(main)


def _module(main: ModuleType, name: str, *arguments: str) -> tuple[Any, dict[str, Any]]:
    """Make `main` the `__main__` of `python -m name`; return its code and its globals."""
    sys.path[0] = str(Path.cwd())
    spec = importlib.util.find_spec(name)
    assert spec is not None
    loader: Any = spec.loader
    main.__spec__, main.__loader__ = spec, loader
    main.__package__, main.__file__, main.__cached__ = spec.parent, spec.origin, spec.cached
    sys.argv = [str(spec.origin), *arguments]
    return loader.get_code(name), vars(main)


def main() -> dict[str, Any]:
    """Serve until the end of the input, and end; in a fork, return the request."""
    gc.disable()  # collections take a fifth of the time of these imports
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.enable()
    try:
        serve(_answer)
    except _InFork as fork:
        return fork.request
    os._exit(0)  # the end of the interpreter takes a second


if __name__ == "__main__":
    exec(*_prepared(main()))
