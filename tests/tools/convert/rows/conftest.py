"""The rows of the tables, and one of a test, as places to read from and to write to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cirron_otel.tools.convert import tables

from . import tar_rows


@pytest.fixture(autouse=True)
def with_tar_rows() -> Iterator[None]:
    """Register the rows of the test, for its time."""
    tables.register_source(tar_rows.NAME, tar_rows.SOURCE)
    tables.register_target(tar_rows.NAME, tar_rows.TARGET)
    yield
    del tables.SOURCES[tar_rows.NAME], tables.TARGETS[tar_rows.NAME]
