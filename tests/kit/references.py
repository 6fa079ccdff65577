"""Results that traced programs are compared with, kept by the hash of everything they depend on.

An untraced run of a program gives the same result until the program, a package, Python or the
machine changes, so it is computed once. Results are kept in
`${XDG_CACHE_HOME:-~/.cache}/cirron-otel/references/`; those that have not been used for 30 days are
removed. `CIRRON_OTEL_REFERENCES=no` computes every result anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

SWITCH = "CIRRON_OTEL_REFERENCES"
_UNUSED_S = 30 * 24 * 3600


def directory() -> Path:
    """Return the directory of the results."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "cirron-otel" / "references"


def key_of(files: Iterable[Path], *names: str) -> str:
    """Return the hash of files, names, the installed packages, Python and the processor."""
    digest = hashlib.sha256(_installation().encode())
    for file in sorted(files):
        digest.update(f"\n{file.name}\n".encode() + file.read_bytes())
    digest.update("\n".join(names).encode())
    return digest.hexdigest()


@cache
def _installation() -> str:
    """Return the packages of this process, its Python, and the features of the processor.

    The features select the kernels of numerical libraries, whose sums differ in the last bit.
    """
    packages = {f"{each.name}=={each.version}" for each in importlib.metadata.distributions()}
    packages = {each for each in packages if not each.startswith("cirron-otel==")}
    features = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return "\n".join([sys.version, features, *sorted(packages)])


def load(key: str) -> Any:
    """Return the kept result, or None."""
    path = directory() / f"{key}.json"
    if os.environ.get(SWITCH) == "no":
        return None
    try:
        result = json.loads(path.read_text())
        path.touch()
    except (OSError, ValueError):
        return None
    return result


def store(key: str, result: Any) -> None:
    """Keep a result, a JSON value, for later runs."""
    folder = directory()
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{key}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(result))
    temporary.replace(folder / f"{key}.json")
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _UNUSED_S:
                path.unlink()
