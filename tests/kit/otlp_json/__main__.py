"""Run the corpus over the package's reader and the real backends, and write docs/otlp-json.md.

`python -m tests.kit.otlp_json` needs the backends of `make backends`.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.kit.backends.run import FILE, jaeger, otelcol
from tests.kit.backends.tempo import tempo

from .corpus import FOLDER, write
from .table import PAGE, document

Command = list[str]
_PYTHON = [sys.executable, "-m"]
_OURS = [*_PYTHON, "tests.kit.otlp_json.reader", "--lines"]
_POST = [*_PYTHON, "tests.kit.otlp_json.post"]


@contextlib.contextmanager
def _ours(_: Path) -> Iterator[Command]:
    yield _OURS


@contextlib.contextmanager
def _otelcol(folder: Path) -> Iterator[Command]:
    config = re.sub("flush_interval: .*?}", "flush_interval: 5ms}", FILE.read_text())
    with otelcol(config, folder) as backend:
        yield [*_POST, f"{backend.otlp_http}/v1/traces", str(backend.output)]


@contextlib.contextmanager
def _jaeger(folder: Path) -> Iterator[Command]:
    with jaeger(folder) as backend:
        yield [*_POST, f"{backend.otlp_http}/v1/traces"]


@contextlib.contextmanager
def _tempo(folder: Path) -> Iterator[Command]:
    with tempo(folder) as backend:
        yield [*_POST, f"{backend.otlp_http}/v1/traces"]


READERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Command]]] = {
    "cirron-otel": _ours,
    "OpenTelemetry Collector": _otelcol,
    "Jaeger": _jaeger,
    "Tempo": _tempo,
}
"""Each reader by its name in the table: a context with the reader's command."""


def results_of(name: str) -> dict[str, str]:
    """Run the corpus over a reader; return the result of each case."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        results = folder / "results.json"
        with READERS[name](folder) as command:
            runner = [sys.executable, str(FOLDER / "run.py"), "--lines", "--json", str(results)]
            subprocess.run([*runner, *command], check=False, stdout=subprocess.DEVNULL)
        found: dict[str, str] = json.loads(results.read_text())
    return found


def main() -> None:
    """Write the corpus and the table."""
    write()
    found = {}
    for name in READERS:
        found[name] = results_of(name)
        conforming = list(found[name].values()).count("ok")
        print(f"{name}: {conforming} of {len(found[name])}", flush=True)
    PAGE.write_text(document(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
