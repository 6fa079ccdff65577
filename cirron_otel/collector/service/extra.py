"""A check that the packages of the extra `collector` are installed."""

from __future__ import annotations

from importlib.util import find_spec

from ...errors import MissingExtraError

_MODULES = ("aiohttp", "grpc", "google.rpc", "prometheus_client", "cramjam", "lz4")


def is_installed() -> bool:
    """Return whether the packages that a collector needs are installed."""
    try:
        return all(find_spec(name) is not None for name in _MODULES)
    except ModuleNotFoundError:  # `google`, the parent of `google.rpc`, is missing
        return False


def require() -> None:
    """Raise MissingExtraError, which names the install command, if a package is missing."""
    if not is_installed():
        raise MissingExtraError("collector", "the collector")
