"""A check that the packages of the extra `sql` are installed."""

from __future__ import annotations

from importlib.util import find_spec

from ...errors import MissingExtraError

_PACKAGES = ("duckdb", "ibis", "pyarrow")


def require(engine: str) -> None:
    """Raise MissingExtraError, which names the install command, if a package is missing."""
    if not all(map(find_spec, _PACKAGES)):
        raise MissingExtraError("sql", f"--engine {engine}")
