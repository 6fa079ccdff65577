"""Measure how long each test takes, and choose the slow tests that `make check` leaves out.

`make test` loads this module as a plugin of pytest: at the end, the seconds of each test and of
each shared fixture are in build/test-times.tsv. `make test-times` (`python -m tests.kit.times`)
derives tests/slow.txt from that file, and `tests/conftest.py` marks the tests that are listed
there `slow`.
Write the list on an idle machine only.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMES = ROOT / "build" / "test-times.tsv"
SLOW = ROOT / "tests" / "slow.txt"
BUDGET = 330.0
"""The seconds that all tests of `make check` may take together, in one process."""
LONG = 3.0
"""The seconds from which on a test, or a group of tests, starts ahead of the shorter ones."""
LEFT_OUT = ("backends", "postgres")
"""The markers of tests that `make check` leaves out, however fast they are."""
_HEADER = """\
# Tests that `make check` leaves out: seconds per test, and the test function.
# Written by `make test-times` from the times of the last `make test`; do not edit.
"""


def function_of(node_id: str) -> str:
    """Return the test function of a node id, without parameters and the group of pytest-xdist."""
    return node_id.partition("[")[0].partition("@")[0]


def _definitions(item: pytest.Item) -> list[Any]:
    info = getattr(item, "_fixtureinfo", None)
    return [] if info is None else [each[-1] for each in info.name2fixturedefs.values() if each]


def shared_fixtures(item: pytest.Item) -> set[str]:
    """Return the fixtures that a test shares with other tests, as `folder or module::name`."""
    return {_id(each) for each in _definitions(item) if each.scope != "function"}


def shares_module_fixture(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture that is set up once for its module."""
    return any(each.scope in ("class", "module") for each in _definitions(item))


def _id(fixture: Any) -> str:
    return f"{fixture.baseid}::{fixture.argname}"


@cache
def slow() -> dict[str, float]:
    """Return the listed test functions, each with the seconds that one of its tests takes."""
    lines = [line.split(maxsplit=1) for line in SLOW.read_text().splitlines() if line[0] != "#"]
    return {name: float(seconds) for seconds, name in lines}


def is_slow(item: pytest.Item) -> bool:
    """Return whether the function of a test is listed as slow."""
    return function_of(item.nodeid) in slow()


def group_of(item: pytest.Item) -> str:
    """Return the group of tests that one worker runs; a test without a group is one of its own."""
    marker = item.get_closest_marker("xdist_group")
    if marker is None:
        return item.nodeid
    return str(marker.args[0] if marker.args else marker.kwargs["name"])


def longest_first(groups: list[str], seconds: list[float]) -> list[int]:
    """Return the order of tests, given each one's group and seconds, in which to start them.

    The groups that take at least `LONG` come first, the longest ahead, so that the workers end at
    about the same time. The order is otherwise kept, because neighbours share fixtures.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    for group, each in zip(groups, seconds, strict=True):
        totals[group] += each
    long = {group: total for group, total in totals.items() if total >= LONG}
    return sorted(range(len(groups)), key=lambda number: -long.get(groups[number], 0.0))


# The plugin: each process records the set-up of shared fixtures, and the reports collect them.

_setups: list[tuple[str, float]] = []
_inner: list[float] = []
_seconds: defaultdict[str, float] = defaultdict(float)
_users: dict[str, tuple[str, bool]] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    """Record how long a shared fixture takes, without the fixtures that it requests itself."""
    _inner.append(0.0)
    started = time.monotonic()
    try:
        return (yield)
    finally:
        seconds = time.monotonic() - started
        own = seconds - _inner.pop()
        if _inner:
            _inner[-1] += seconds
        if fixturedef.scope != "function":
            _setups.append((_id(fixturedef), own))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "setup":
        left_out = any(item.get_closest_marker(name) for name in LEFT_OUT)
        item.user_properties.append(("shared", [sorted(shared_fixtures(item)), left_out]))
    if _setups:
        item.user_properties.append((f"setups {call.when}", list(_setups)))
        _setups.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of a test; with pytest-xdist, the reports of all processes arrive here."""
    properties = dict(report.user_properties)
    if report.skipped:
        _users.pop(report.nodeid, None)
        return
    if report.when == "setup":
        fixtures, left_out = properties["shared"]
        _users[report.nodeid] = (";".join(fixtures), left_out)
    setups = properties.get(f"setups {report.when}", [])
    for name, seconds in setups:
        _seconds[f"fixture {name}"] += seconds
    _seconds[report.nodeid] += max(0.0, report.duration - sum(seconds for _, seconds in setups))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not _users:
        return
    TIMES.parent.mkdir(exist_ok=True)
    with TIMES.open("w") as file:
        for node_id, seconds in _seconds.items():
            if node_id not in _users and not node_id.startswith("fixture "):
                continue
            fixtures, left_out = _users.get(node_id, ("", False))
            file.write(f"{seconds:.3f}\t{node_id}\t{fixtures}\t{'out' if left_out else ''}\n")


# The list.


def choose(rows: list[list[str]], budget: float = BUDGET) -> dict[str, float]:
    """Return the functions to leave out so that the other tests take at most `budget` seconds.

    The value is the average of the function's tests in seconds, with each test's share of the
    shared fixtures that it uses. The functions with the highest averages are left out.
    """
    fixtures = {row[1][8:]: float(row[0]) for row in rows if row[1].startswith("fixture ")}
    tests = [row for row in rows if not row[1].startswith("fixture ")]
    users: defaultdict[str, int] = defaultdict(int)
    for row in tests:
        for name in filter(None, row[2].split(";")):
            users[name] += 1
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for seconds, node_id, shared, left_out in tests:
        if not left_out:
            share = sum(
                fixtures.get(name, 0.0) / users[name] for name in filter(None, shared.split(";"))
            )
            costs[function_of(node_id)].append(float(seconds) + share)
    left: dict[str, float] = {}
    total = 0.0
    for function, each in sorted(costs.items(), key=lambda item: sum(item[1]) / len(item[1])):
        total += sum(each)
        if total > budget:
            left[function] = sum(each) / len(each)
    return left


def main() -> None:
    """Write tests/slow.txt, and print what `make check` will take."""
    rows = [line.split("\t") for line in TIMES.read_text().splitlines()]
    chosen = choose(rows)
    measured = {function_of(row[1]) for row in rows}
    chosen |= {name: seconds for name, seconds in slow().items() if name not in measured}
    lines = [f"{seconds:8.2f}  {name}\n" for name, seconds in sorted(chosen.items())]
    SLOW.write_text(_HEADER + "".join(lines))
    least = min(chosen.values(), default=0.0)
    print(f"{SLOW.relative_to(ROOT)}: {len(chosen)} test functions, from {least:.2f} s per test on")


if __name__ == "__main__":
    main()
