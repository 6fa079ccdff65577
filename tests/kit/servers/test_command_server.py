"""The modules that command servers import ahead of their commands."""

from __future__ import annotations

import importlib.util

import pytest

from .command_server import COLLECTOR, COLUMNS


@pytest.mark.parametrize("module", sorted({*COLUMNS, *COLLECTOR}))
def test_a_module_that_is_imported_in_advance_exists(module: str) -> None:
    """A server ignores a missing module, and each command would import its replacement again."""
    if module.startswith("cirron_otel."):
        assert importlib.util.find_spec(module) is not None
