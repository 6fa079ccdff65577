"""Fixtures and helpers of the tests of DGRR."""

from __future__ import annotations

from tests.core.importers.stormlog.conftest import splitting  # noqa: F401 - a fixture
