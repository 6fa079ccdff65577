"""cirron-sdk 0.3.0 in the benchmark's own process: the same interpreter, the same moment.

It lives in an environment of its own (tests/kit/recorder makes it), made by this interpreter, so
its packages are put at the end of the path of the benchmark's process and of no other.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.recorder.record import environment

VERSION = "0.3.0"


def load() -> Any:
    """The module `cirron`, or None (and a line about it) where it cannot be installed."""
    try:
        python = environment(VERSION)
    except EnvironmentUnavailableError as error:
        print(f"  without cirron-sdk: {error}")
        return None
    lib = Path(python).parent.parent / "lib"
    packages = lib / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    sys.path.append(str(packages))
    return importlib.import_module("cirron")


def start(**options: Any) -> Any:
    """The module with its session open, its spool in the working directory; None as in `load`."""
    cirron = load()
    if cirron is not None:
        # It warns of every mark that it drops on purpose.
        logging.getLogger("cirron").setLevel(logging.ERROR)
        cirron.profile(frameworks=[], snapshots=None, **options)
    return cirron
