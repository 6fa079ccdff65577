"""The fixtures of the tests of TraceML."""

from __future__ import annotations

from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.stormlog.conftest import splitting  # noqa: F401 - a fixture
