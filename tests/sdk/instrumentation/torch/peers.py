"""The tools that ours is measured beside, each with the torch of the tests and out of our reach.

Each has an environment of its own, at whose path's end the packages of the tests' environment
stand: torch is there once, and no package of a neighbour's enters that environment.
"""

from __future__ import annotations

from pathlib import Path

from tests.kit.environments import SITE_PACKAGES, Environment

_PINS = Path(__file__).with_name("peers.txt")


def _beside(name: str, version: str) -> Environment:
    return Environment(
        f"peers/{name}", pins=_PINS, install=(f"{name}=={version}",), paths=(SITE_PACKAGES,)
    )


CIRRON_SDK = _beside("cirron-sdk", "0.3.0")
"""`import cirron`."""
TRACEML = _beside("traceml-ai", "0.5.0")
"""`import traceml_ai`, and the command `bin/traceml`."""
PEERS = {"cirron-sdk": CIRRON_SDK, "traceml-ai": TRACEML}
"""By their names on PyPI."""
