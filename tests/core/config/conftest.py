from __future__ import annotations

from pathlib import Path

import pytest

from .places import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path / "project" / "below", tmp_path / "home")
    found.cwd.mkdir(parents=True)
    found.home.mkdir()
    return found
