"""Fixtures for the real backends and the real recordings, and the assignment of markers.

The fixtures of a test determine its markers `backends`, `postgres` and `recorded`; its folder
determines the marker `torch`. The tests that tests/slow.txt lists get `slow`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from opentelemetry import context
from opentelemetry.trace import get_current_span

from .kit import matrix, references
from .kit.backends import run
from .kit.backends import tempo as tempo_backend
from .kit.backends.build import BACKENDS, missing
from .kit.environments import EnvironmentUnavailableError
from .kit.examples import DRAWN
from .kit.forked_scripts import ForkedScripts
from .kit.recorder import record
from .kit.recorder.record import Recording
from .kit.times import (
    function_of,
    group_of,
    is_slow,
    longest_first,
    shares_module_fixture,
    slow,
)

REQUIRE = "CIRRON_OTEL_REQUIRE_BACKENDS"
TESTS = Path(__file__).parent
OF_TORCH = (TESTS / "sdk" / "instrumentation", TESTS / "sdk" / "snapshots")
"""The directories whose tests import torch."""
BACKEND_FIXTURES = {
    "aws", "jaeger", "jaeger_on_disk", "kafka_broker", "otelcol_file", "otelcol_split", "tempo"
}  # fmt: skip
MATRIX_FIXTURES = {
    "oldest": "oldest-trainers", "oldest_torch": "oldest-torch", "spark_cluster": "spark"
}  # fmt: skip
"""The groups of the matrix whose programs run through a fixture."""
POSTGRES_FIXTURES = {"postgres_server", "postgres_url"}

# The caller's variables for OpenTelemetry or Cirron must not influence the tests, and no request to
# loopback must go through a proxy.
for _name in [
    n
    for n in os.environ
    if n.startswith(("OTEL_", "CIRRON_")) and n not in (REQUIRE, references.SWITCH)
]:
    del os.environ[_name]
# Tests compare complete trees and count marks; those of the sampler switch it on.
os.environ["CIRRON_SAMPLE_INTERVAL"] = "none"
# On a slow machine, a command that takes ten seconds would write to stderr.
os.environ["CIRRON_OTEL_PROGRESS"] = "no"
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

# Without compiled files, every program that a test starts compiles the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# A shell starts background commands with the keyboard's signals ignored, and `nohup` ignores
# SIGHUP. Children inherit that, and tests send these signals.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


# The tests draw the same examples each time, so that their results are repeatable; `make fuzz`
# draws new ones. No example fails because the machine is busy.
_PATIENT: dict[str, Any] = {
    "deadline": None, "suppress_health_check": [HealthCheck.too_slow],
}  # fmt: skip
settings.register_profile("fixed", derandomize=True, **_PATIENT)
settings.register_profile(DRAWN, derandomize=False, **_PATIENT)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        default=matrix.ALL,
        help="groups of the matrix (tests/kit/matrix.py) to run: all (default), none, or names",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an unknown group ahead of the collection, which takes a while."""
    try:
        matrix.parse(config.getoption("--matrix"))
    except ValueError as error:
        raise pytest.UsageError(f"--matrix: {error}") from None


def nothing_left_out() -> bool:
    """Return whether a test that cannot run must fail instead of being skipped, as in CI."""
    return os.environ.get(REQUIRE) == "1" or os.environ.get("CI") == "true"


def leave_out(reason: str) -> NoReturn:
    """Skip the running test, or fail it if no test may be skipped."""
    if nothing_left_out():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need_torch() -> None:
    """Skip the running test if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        leave_out("torch is not installed: run `make torch`")


class _WithoutTorch(pytest.File):
    """Represents a file of tests that cannot be imported as one test, which is skipped."""

    def collect(self) -> Iterator[pytest.Item]:
        yield _LeftOut.from_parent(self, name="torch")


class _LeftOut(pytest.Item):
    def runtest(self) -> None:
        need_torch()


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Without torch, replace each file of tests that need it by a skipped test."""
    if importlib.util.find_spec("torch") is None and _is_of_torch(module_path):
        return _WithoutTorch.from_parent(parent, path=module_path)
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    if _is_of_torch(item.path):
        item.add_marker("torch")


@cache
def _is_of_torch(path: Path) -> bool:
    return any(path.is_relative_to(directory) for directory in OF_TORCH)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test that uses a backend, a PostgreSQL server or the recordings, or is slow.

    Tests of the groups that `--matrix` does not name are deselected. Of several workers, each
    starts the longest tests first.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        for name in fixtures & set(MATRIX_FIXTURES):
            item.add_marker(pytest.mark.matrix(MATRIX_FIXTURES[name]))
        if fixtures & BACKEND_FIXTURES:
            item.add_marker("backends")
        if "recorded_spools" in fixtures:
            item.add_marker("recorded")
        if fixtures & POSTGRES_FIXTURES or "postgresql" in _parameters(item):
            item.add_marker("postgres")
        if is_slow(item):
            item.add_marker("slow")
        if shares_module_fixture(item) and item.get_closest_marker("xdist_group") is None:
            # Only one worker then sets up the fixture.
            group = "/".join(item.path.relative_to(TESTS).with_suffix("").parts)
            item.add_marker(pytest.mark.xdist_group(group))
    _deselect_matrix(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        measured = [slow().get(function_of(item.nodeid), 0.0) for item in items]
        items[:] = [items[at] for at in longest_first([*map(group_of, items)], measured)]


def _deselect_matrix(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = matrix.parse(config.getoption("--matrix"))
    left_out = set()
    for item in items:
        marker = item.get_closest_marker("matrix")
        if marker is not None:
            (group,) = marker.args
            if group not in matrix.GROUPS:
                raise pytest.UsageError(f"{item.nodeid}: {group!r} is not in tests/kit/matrix.py")
            if group not in chosen:
                left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, which would take a fifth of the time of the imports."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which the oldest torch runs without
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of `--dist loadgroup`; pytest-xdist has the others."""
    if config.getoption("dist") != "loadgroup":
        return None
    from .kit.scheduling import GroupScheduling

    return GroupScheduling(config, log)


def pytest_collection_finish() -> None:
    """Exclude the modules and the tests, about 900,000 objects, from garbage collection.

    With them, a full collection takes half a second. `gc.get_objects()` does not return them, so a
    model that a test searches for must be created in the test.
    """
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length, because every report of the test contains its id."""
    return f"{argname}-{len(val)}" if isinstance(val, bytes | str) and len(val) > 100 else None


def _parameters(item: pytest.Item) -> list[object]:
    """Return the parameters of a test that are text."""
    call = getattr(item, "callspec", None)
    return [value for value in call.params.values() if isinstance(value, str)] if call else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs torch or real backends if they are missing or not as pinned."""
    if item.get_closest_marker("torch") is not None:
        need_torch()
    if item.get_closest_marker("backends") is not None:
        reasons = [reason for name in BACKENDS if (reason := missing(name))]
        if reasons:
            leave_out(f"{' and '.join(reasons)}: run `make backends`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that leaves a span current: the traces of later tests would belong to it.

    Scopes that were recorded without a session are dropped: the session of a later test would
    contain them.
    """
    try:
        yield
    finally:
        if "cirron_otel.sdk.tracing.scope" in sys.modules:
            from cirron_otel.sdk.tracing import buffers, scope, state

            if state.state.session is scope.NO_SESSION and (
                buffers.local.b.scopes or buffers.local.b.marks
            ):
                buffers.reset_after_fork()
    span = get_current_span()
    if span.get_span_context().is_valid:
        context.attach(context.Context())
        pytest.fail(f"{item.nodeid} leaves the span {span} current", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_HAS_FAILED] = report.failed
    is_over = report.when == "teardown" and not report.failed
    if is_over and _DIRECTORY in item.stash and not item.stash.get(_HAS_FAILED, True):
        shutil.rmtree(item.stash[_DIRECTORY], ignore_errors=True)
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new directory for one test, with the name that pytest's own fixture gives it.

    Pytest finds the number of the name by reading the directories of all earlier tests. The
    directory of a test that passes is deleted: together they take several gigabytes.
    """
    prefix = re.sub(r"\W", "_", request.node.name)[:30]
    path = _new_directory(tmp_path_factory.getbasetemp(), prefix)
    request.node.stash[_DIRECTORY] = path
    return path


def _new_directory(base: Path, prefix: str) -> Path:
    while True:
        path = base / f"{prefix}{next(_numbers[prefix])}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path


_HAS_FAILED = pytest.StashKey[bool]()
_DIRECTORY = pytest.StashKey[Path]()
_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run.Jaeger]:
    """One Jaeger for all tests of a worker: trace ids keep the tests apart."""
    with run.jaeger(tmp_path_factory.mktemp("jaeger")) as backend:
        yield backend


@pytest.fixture(scope="session")
def tempo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tempo_backend.Tempo]:
    """One Tempo for all tests of a worker, at its default limits: trace ids keep them apart."""
    with tempo_backend.tempo(tmp_path_factory.mktemp("tempo")) as backend:
        yield backend


@pytest.fixture(scope="session")
def scripts() -> Iterator[ForkedScripts]:
    """Runs scripts that use torch; the interpreter starts with the first one."""
    with ForkedScripts() as interpreter:
        yield interpreter


@pytest.fixture
def otelcol_file(tmp_path: Path) -> Iterator[run.Otelcol]:
    """A Collector for one test, which writes each request unchanged to a file."""
    directory = tmp_path / "otelcol-file"
    directory.mkdir()
    with run.otelcol(run.FILE, directory) as backend:
        yield backend


@pytest.fixture
def otelcol_split(tmp_path: Path) -> Iterator[run.Otelcol]:
    """A Collector for one test, which splits and merges requests into batches of 7 spans."""
    directory = tmp_path / "otelcol-split"
    directory.mkdir()
    with run.otelcol(run.SPLIT, directory) as backend:
        yield backend


@pytest.fixture(scope="session")
def recorded_spools(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """Every recording as (name, directory of its `.cirron/spool`), made once per test run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "recordings.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            recordings: list[Recording] = record.record_all(shared / "recordings")
        except EnvironmentUnavailableError as error:
            leave_out(str(error))
    return [(recording.name, recording.directory) for recording in recordings]
