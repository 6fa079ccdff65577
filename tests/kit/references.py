"""Results of untraced programs, which those of traced programs are compared with.

An untraced run of a program gives the same result until the program, a package, Python or the
processor changes, so it is computed once. The same applies to the files that another package
records, such as cirron-sdk or Stormlog, and to the site of the documentation. Results are stored by
the hash of these, in `${XDG_CACHE_HOME:-~/.cache}/cirron-otel/references/`; those that have not
been used for 30 days are removed. `CIRRON_OTEL_REFERENCES=no` computes every result anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SWITCH = "CIRRON_OTEL_REFERENCES"
_UNUSED_S = 30 * 24 * 3600


def directory() -> Path:
    """Return the directory of the results."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "cirron-otel" / "references"


def key_of(files: Iterable[Path], *names: str, uses_package: bool = False) -> str:
    """Return the hash of files, names, the installed packages, Python and the processor.

    With `uses_package`, it includes the source of cirron_otel: the program calls it without a
    session, which must not change the program.
    """
    digest = hashlib.sha256(_installation().encode())
    contents = {str(file): file.read_bytes() for file in files}
    for name, content in sorted(contents.items()):
        digest.update(f"\n{Path(name).name}\n".encode() + content)
    if uses_package:
        digest.update(_package().encode())
    digest.update("\n".join(names).encode())
    return digest.hexdigest()


@cache
def _package() -> str:
    """Return the hash of the package's source."""
    digest = hashlib.sha256()
    for file in sorted(ROOT.joinpath("cirron_otel").rglob("*.py")):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
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
    """Return the stored result, or None."""
    path = directory() / f"{key}.json"
    if os.environ.get(SWITCH) == "no":
        return None
    try:
        result = json.loads(path.read_text())
        os.utime(path)
    except (OSError, ValueError):
        return None
    return result


def store(key: str, result: Any) -> None:
    """Store a result, a JSON value, for later runs, if the directory can be written."""
    _write(f"{key}.json", lambda path: path.write_text(json.dumps(result)))


def fill(folder: Path, key: str, make: Callable[[Path], object]) -> None:
    """Fill a new directory with stored files, or by `make`, whose files are stored for later runs.

    The files must not depend on the path of the directory.
    """
    archive = directory() / f"{key}.tar.gz"
    if os.environ.get(SWITCH) != "no" and archive.exists():
        try:
            with tarfile.open(archive) as stored:
                # An attribute, because the parameter `filter` needs Python 3.11.4.
                stored.extraction_filter = lambda member, _: member
                stored.extractall(folder)
            os.utime(archive)
        except (EOFError, OSError, tarfile.TarError, zlib.error):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return
    folder.mkdir(parents=True)
    make(folder)

    def pack(path: Path) -> None:
        with tarfile.open(path, "w:gz") as stored:
            stored.add(folder, ".")

    _write(archive.name, pack)


def _write(name: str, write: Callable[[Path], object]) -> None:
    """Write a file of the directory atomically, if possible, and remove the unused ones."""
    folder = directory()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{name}.{os.getpid()}.tmp"
        write(temporary)
        temporary.replace(folder / name)
        for path in folder.iterdir():
            if path.stat().st_mtime < time.time() - _UNUSED_S:
                path.unlink(missing_ok=True)
