"""A check that the packages of the extra `columns` are installed."""

from __future__ import annotations

from importlib.util import find_spec

from ...errors import MissingExtraError


def require() -> None:
    """Raise MissingExtraError, which names the install command, if pyarrow is missing.

    The other modules of this package that work with Arrow data import it.
    """
    if find_spec("pyarrow") is None:
        raise MissingExtraError("columns", "reading and writing Parquet")
