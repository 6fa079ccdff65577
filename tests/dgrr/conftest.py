"""What the tests of DGRR share."""

from __future__ import annotations

from tests.stormlog.conftest import splitting  # noqa: F401 - a fixture
