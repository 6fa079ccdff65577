"""What the tests of DGRR share."""

from __future__ import annotations

from tests.core.importers.stormlog.conftest import splitting  # noqa: F401 - a fixture
