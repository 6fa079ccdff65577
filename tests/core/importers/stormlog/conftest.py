"""The command, and the recordings of the real Stormlog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.kit.backends import run as run_backends
from tests.kit.environments import EnvironmentUnavailableError
from tests.tools.conftest import run  # noqa: F401 - a fixture

from .peers import RELEASES, Peer

RECORDINGS = Path(__file__).parents[3] / "testdata" / "stormlog"
"""Recordings of Stormlog 0.3.9 and 0.4.3, with the answers of 0.3.9."""
SIMULATED = RECORDINGS / "v039" / "sim_gpu"
ANSWERS = RECORDINGS / "v039" / "answers"
SEGMENT = "segment-000001.jsonl"
EVENTS = (SIMULATED / "sink" / SEGMENT).read_bytes().splitlines(keepends=True)
"""The lines of a segment."""


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run_backends.Otelcol]:
    """A Collector for all tests of a module, which sends batches of seven spans."""
    folder = tmp_path_factory.mktemp("splitting")
    with run_backends.otelcol(run_backends.SPLIT, folder) as collector:
        yield collector


@pytest.fixture(scope="module", params=RELEASES)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A process with a real release of Stormlog, for each release."""
    try:
        started = Peer(request.param)
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    yield started
    started.close()
