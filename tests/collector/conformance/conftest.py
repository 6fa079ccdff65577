"""One collector, as a user starts it, for all tests of a worker; and one with little room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.servers.serving import Serving, serving

SMALL = 1 << 20
"""What the small collector takes in one body, and in all that are in flight, bytes."""


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("conformance") / "data") as here:
        yield here


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Takes metrics, too, which it does not keep."""
    folder = tmp_path_factory.mktemp("small")
    file = folder / "collector.yaml"
    file.write_text(
        f"limits: {{request_bytes: {SMALL}, in_flight_bytes: {SMALL}, request_elements: 1000}}\n"
        "receivers: {signals: {metrics: accept}}\n"
    )
    with serving(folder / "data", "--config", str(file)) as here:
        yield here
