"""Generated recordings of every producer: one ledger that adds up, in every engine.

    python -m tests.system.engines.identities --count 10000 --engine duckdb --engine spark

Each recording is read in Python in both ways. Engines compile the same queries for each recording,
which takes them most of the time. So they read some recordings as one, each with ids and ranks of
its own; if a figure differs, the halves are read. Prints what was checked; a recording that fails
is named by its seed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.core.engines.unsupported import NeedsPythonError
from cirron_otel.core.run.findings.conclude import findings_of
from cirron_otel.core.run.opening import open_run
from tests.core.columns.helpers import add
from tests.kit.ledger_identities import assert_affordable, assert_consistent, assert_exact
from tests.kit.spools.recorded import as_own

from . import documents, readers, relations
from .generated import is_for_engines, recording, together
from .readers import TABLES, Reader
from .relations import Files, readable, reader_of

REPORT: Final = "report"
TOGETHER: Final = 400
"""The recordings that an engine reads as one."""
_MOST_S: Final = 60
"""The CPU time after which a check fails, because it may not end; for a group, also this for each
`_OF_LIMIT` recordings."""
_OF_LIMIT: Final = 50
_MOST_FAILURES: Final = 20
"""The number of failures from which groups are not divided any more."""
_SHOWN: Final = 500
_LONGEST: Final = 1500

Numbered = tuple[int, Files]
"""A recording and its seed."""


def check_in_python(files: Files, folder: Path) -> dict[str, Any]:
    """Check a recording that is read in both ways; return its document."""
    reader = reader_of(files, folder / "s")
    found = []
    for in_columns in (False, True):
        with open_run(reader, reader, slowest=documents.SLOWEST, in_columns=in_columns) as run:
            if run.ledger is not None:
                assert_exact(run.ledger)
                assert_affordable(findings_of(run), run.ledger.total_ns)
            found.append(documents.document_of_run("", run).to_json())
    assert_consistent(found[0])
    assert found[0] == found[1]
    return found[0]


def errors_of(
    files: Files, folder: Path, engines: Mapping[str, Reader]
) -> dict[str, Exception | None]:
    """Return for each engine the error with which it reads a recording, None without one.

    The relations and the document of an engine are those of Python.
    """
    add(folder / "c", files, WriterLimits())
    for reader in engines.values():
        reader.start(folder / "c")
    spool = reader_of(files, folder / "s")
    with open_run(spool, spool, slowest=documents.SLOWEST, in_columns=True) as run:
        expected = documents.with_relations(run)
    assert_consistent(expected[REPORT])
    plain = None
    if any(reader.is_plain for reader in engines.values()):
        found = relations.plain(expected[relations.RELATIONS])
        plain = json.loads(json.dumps(expected | {relations.RELATIONS: found}))
    errors: dict[str, Exception | None] = dict.fromkeys(engines)
    for name, reader in engines.items():
        try:
            _assert_equal(reader.documents(), plain if reader.is_plain else expected)
        except Exception as error:
            errors[name] = error
    return errors


def _assert_equal(found: Any, expected: Any, path: str = "") -> None:
    """Raise AssertionError with the first difference."""
    if found == expected or repr(found) == repr(expected):
        return
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in {**expected, **found}:
            _assert_equal(found.get(key), expected.get(key), f"{path}/{key}")
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        for place, pair in enumerate(zip(found, expected, strict=False)):
            _assert_equal(*pair, f"{path}/{place}")
    raise AssertionError(f"{path}: {repr(found)[:_LONGEST]}, expected {repr(expected)[:_LONGEST]}")


class Checks:
    """The checks of recordings by engines."""

    def __init__(
        self, engines: Mapping[str, Reader], size: int = TOGETHER, *, has_python: bool = True
    ) -> None:
        """`size` is the number of recordings that are read as one.

        `has_python` is whether each is read in Python in both ways.
        """
        self._engines = {name: each for name, each in engines.items() if name != TABLES}
        self._of_tables = {name: each for name, each in engines.items() if name == TABLES}
        self._size, self._has_python = size, has_python
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._start = time.monotonic()
        signal.signal(signal.SIGVTALRM, _stop)

    def run(self, seeds: Sequence[int]) -> None:
        """Check the recordings of some seeds."""
        waiting: dict[bool, list[Numbered]] = {False: [], True: []}
        for place, seed in enumerate(seeds, 1):
            files = recording(seed)
            if self._has_python:
                self._check_in_python(seed, files)
            files = readable(files)
            own = as_own(files)
            if is_for_engines(own):
                waiting[True].append((seed, own))
            if not is_for_engines(own) or own != files:
                waiting[False].append((seed, files))
            for of_engines, some in waiting.items():
                engines = self._engines if of_engines else self._of_tables
                if some and (len(some) == self._size or place == len(seeds)):
                    self._check_together(some, engines)
                    some.clear()
            if place % _SHOWN == 0:
                print(f"{place}: {self}", flush=True)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        seconds = time.monotonic() - self._start
        return f"{counts}; failures: {len(self.failures)}; {seconds:.0f} s"

    def _check_in_python(self, seed: int, files: Files) -> None:
        with _limited(_MOST_S) as folder:
            try:
                document = check_in_python(files, folder)
            except Exception as error:
                self._fail(f"python: seed {seed}", error)
            else:
                self.counts["without units"] += document["ledger"] is None
                self.counts["python"] += 1

    def _check_together(self, some: Sequence[Numbered], engines: Mapping[str, Reader]) -> None:
        """Check recordings that are read as one, and the halves of a group that fails."""
        if not engines:
            return
        files = [each for _, each in some]
        with _limited(_MOST_S * (1 + len(some) // _OF_LIMIT)) as folder:
            failure: Exception | None = None
            try:
                errors = errors_of(files[0] if len(some) == 1 else together(files), folder, engines)
            except Exception as error:  # of Python: no engine can be compared with it
                failure = error
        if failure is not None:
            self._divide(some, "python", engines, failure)
            return
        for name, error in errors.items():
            if error is None:
                self.counts[name] += len(some)
            else:
                self._divide(some, name, {name: engines[name]}, error)

    def _divide(
        self, some: Sequence[Numbered], name: str, engines: Mapping[str, Reader], error: Exception
    ) -> None:
        """Check the halves of a group that fails; record the failure of a single recording."""
        needs_python = isinstance(error, NeedsPythonError)
        if len(some) > 1 and len(self.failures) < _MOST_FAILURES:
            before, middle = len(self.failures), len(some) // 2
            for half in (some[:middle], some[middle:]):
                self._check_together(half, engines)
            if len(self.failures) == before and not needs_python:
                self._fail(f"{name}: together, seeds {[seed for seed, _ in some]}", error)
        elif needs_python:
            self.counts[f"left to Python by {name}"] += 1
        else:
            self._fail(f"{name}: seeds {[seed for seed, _ in some]}", error)

    def _fail(self, title: str, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        self.failures.append(f"{title}\n{text[-2 * _LONGEST :]}")
        print(self.failures[-1], file=sys.stderr, flush=True)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[Path]:
    """A folder; TimeoutError is raised after some CPU time."""
    with tempfile.TemporaryDirectory(prefix="identities-") as folder:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            yield Path(folder)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _stop(*_: Any) -> None:
    raise TimeoutError("a check takes too much CPU time")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check recordings; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.engines.identities")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first recording")
    parser.add_argument("--together", type=int, default=TOGETHER)
    parser.add_argument("--only-engines", action="store_true", help="without both ways of Python")
    parser.add_argument("--engine", action="append", default=[],
                        help=f"{', '.join(readers.ENGINES)}, which are started; the URL of a server"
                        f" of PostgreSQL or Spark; or {TABLES}: Python reads columnar tables of"
                        " the recordings that engines leave to it")  # fmt: skip
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(readers.opened(name)) for name in options.engine}
        checks = Checks(engines, options.together, has_python=not options.only_engines)
        checks.run(range(options.first, options.first + options.count))
    print(checks)
    return bool(checks.failures)


if __name__ == "__main__":
    raise SystemExit(main())
