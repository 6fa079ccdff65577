"""The real Stormlog from PyPI: 0.3.9 writes schema 3, and 0.4.3 writes schema 4.

Each release has an environment of its own, with its packages ahead of those of the tests'
environment, so that torch is there once. `make frameworks` makes both.
"""

from __future__ import annotations

from pathlib import Path

from tests.environments import SITE_PACKAGES, Environment

_PINS = Path(__file__).with_name("pins")


def _release(version: str) -> Environment:
    return Environment(
        f"peers/stormlog-{version}",
        pins=_PINS / f"stormlog-{version}.txt",
        paths=(SITE_PACKAGES,),
    )


STORMLOG_039 = _release("0.3.9")
"""`import stormlog`, and the commands `bin/gpumemprof` and `bin/stormlog`; schema 3."""
STORMLOG_043 = _release("0.4.3")
"""The same with schema 4."""
STORMLOG = {"0.3.9": STORMLOG_039, "0.4.3": STORMLOG_043}
"""Both releases by version."""
