"""The real TraceML from PyPI: 0.3.1 sends no run stamp, and 0.5.0 does.

Each release has an environment of its own, with its packages ahead of those of the tests'
environment, so that torch is there once. `make frameworks` makes both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.environments import SITE_PACKAGES, Environment

_PINS = Path(__file__).with_name("pins")


def _release(version: str) -> Environment:
    return Environment(
        f"peers/traceml-{version}",
        pins=_PINS / f"traceml-{version}.txt",
        paths=(SITE_PACKAGES,),
    )


TRACEML_031 = _release("0.3.1")
"""`import traceml`, and the command `bin/traceml`."""
TRACEML_050 = _release("0.5.0")
"""`import traceml_ai` (also as `traceml`), and the command `bin/traceml`."""
TRACEML = {"traceml-0.3.1": TRACEML_031, "traceml-0.5.0": TRACEML_050}
"""Both releases by name."""
RELEASES = [pytest.param("traceml-0.3.1", marks=pytest.mark.matrix("other-peers")), "traceml-0.5.0"]
"""Both releases as parameters of tests."""
