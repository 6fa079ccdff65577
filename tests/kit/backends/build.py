"""Build the real backends that the tests run against: `make backends`.

Sources come from the Go module proxy at the versions pinned under collector-config/, and are
checked against the checksums kept there (so Go asks no checksum database for them). The binaries
go to `${XDG_CACHE_HOME:-~/.cache}/cirron-otel/backends/bin/`, each beside a stamp that says what
it was built from; a binary is built again when its own pins or the version of Go have changed.
Apache Kafka is fetched, not built, if Java and Maven are found (see jars.py).

Standard library only: it runs before there is a virtual environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import jars
from .cache import (
    PINS,
    BuildError,
    folder,
    listed,
    locked,
    run_logged,
    say,
)

CLIENT = Path(__file__).parents[2] / "system" / "clients" / "go"
OCB = "go.opentelemetry.io/collector/cmd/builder@v0.159.0"
JAEGER = "github.com/jaegertracing/jaeger/cmd/jaeger"
TEMPO = "github.com/grafana/tempo/cmd/tempo"
PROMETHEUS = "github.com/prometheus/prometheus/cmd/prometheus"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw"
GO_MINIMUM = "1.25"
# The environment's own settings for these would change what is built.
GO_SETTINGS = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false", "GOWORK": "off"}
LDFLAGS = "-s -w"


@dataclass(frozen=True)
class Backend:
    """One binary and where it comes from."""

    name: str
    about: str
    source: str
    """What Go is asked for, beside the files of `pins`."""
    pins: tuple[str, ...]
    """The files under collector-config/ that decide what is built."""
    recipe: Callable[[Path, Path], Path]
    """Builds in an empty folder, writing to a log; returns the binary."""
    seconds: int
    """About how long a cold build takes on two cores."""


def binary(name: str) -> Path:
    """Where the binary of that name is, or would be."""
    return folder() / "bin" / name


def missing(name: str) -> str | None:
    """Why the binary cannot be used, in a few words, or None where it can."""
    stamp = _read_stamp(name)
    if stamp is None:
        return f"{name} is not built"
    if stamp.get("pins") != _pins(BACKENDS[name]):
        return f"{name} was built from other pins than collector-config/ holds now"
    return None


def _otelcol(work: Path, log: Path) -> Path:
    shutil.copy(PINS / "manifest.yaml", work)
    (work / "out").mkdir()
    sums = PINS / "otelcol.sum"
    if sums.exists():
        shutil.copy(sums, work / "out" / "go.sum")
    _go(["run", OCB, "--config", "manifest.yaml"], work, log)
    if not sums.exists():
        shutil.copy(work / "out" / "go.sum", sums)
    return work / "out" / "otelcol"


def _jaeger(work: Path, log: Path) -> Path:
    # `go install …@version` refuses a module whose go.mod replaces another: so a module of ours.
    return _tool("jaeger", JAEGER, work, log)


def _tempo(work: Path, log: Path) -> Path:
    return _tool("tempo", TEMPO, work, log)


def _prometheus(work: Path, log: Path) -> Path:
    return _tool("prometheus", PROMETHEUS, work, log)


def _versitygw(work: Path, log: Path) -> Path:
    return _tool("versitygw", VERSITYGW, work, log)


def _client(work: Path, log: Path) -> Path:
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(CLIENT / name, work)
    _go(["build", "-mod=readonly", "-ldflags", LDFLAGS, "-o", "client", "."], work, log)
    return work / "client"


def _tool(name: str, package: str, work: Path, log: Path) -> Path:
    """A program of a module of ours, which pins every version and checksum."""
    for file in ("go.mod", "go.sum"):
        shutil.copy(PINS / name / file, work)
    _go(["build", "-mod=readonly", "-ldflags", LDFLAGS, "-o", name, package], work, log)
    return work / name


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "otelcol",
            "OpenTelemetry Collector 0.159",
            OCB,
            ("manifest.yaml", "otelcol.sum"),
            _otelcol,
            200,
        ),
        Backend("jaeger", "Jaeger 2.13", JAEGER, ("jaeger/go.mod", "jaeger/go.sum"), _jaeger, 230),
        Backend(
            "tempo",
            "Grafana Tempo, between 2.8 and 2.9",
            TEMPO,
            ("tempo/go.mod", "tempo/go.sum"),
            _tempo,
            160,
        ),
        Backend(
            "prometheus",
            "Prometheus 3.5",
            PROMETHEUS,
            ("prometheus/go.mod", "prometheus/go.sum"),
            _prometheus,
            280,
        ),
        Backend(
            "versitygw",
            "versitygw 1.8, an S3 server",
            VERSITYGW,
            ("versitygw/go.mod", "versitygw/go.sum"),
            _versitygw,
            70,
        ),
        Backend(
            "goclient",
            "a client with OpenTelemetry's SDK for Go 1.44",
            "tests/system/clients/go",
            tuple(f"../tests/system/clients/go/{name}" for name in ("main.go", "go.mod", "go.sum")),
            _client,
            20,
        ),
    )
}


def _go(arguments: list[str], work: Path, log: Path) -> None:
    run_logged(["go", *arguments], work, log, GO_SETTINGS)


def _go_version() -> str | None:
    if shutil.which("go") is None:
        return None
    result = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd=PINS / "jaeger"
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"`go env` failed ({reason}): install Go {GO_MINIMUM} or newer")
    return result.stdout.strip()


def _pins(backend: Backend) -> str:
    digest = hashlib.sha256(repr((backend.source, sorted(GO_SETTINGS.items()), LDFLAGS)).encode())
    for name in backend.pins:
        path = PINS / name
        digest.update(name.encode() + b"\0" + (path.read_bytes() if path.exists() else b"") + b"\0")
    return digest.hexdigest()


def _read_stamp(name: str) -> dict[str, str] | None:
    path = binary(name)
    if not os.access(path, os.X_OK):
        return None
    try:
        stamp = json.loads(path.with_name(f"{name}.stamp").read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _is_current(backend: Backend, go: str | None) -> bool:
    stamp = _read_stamp(backend.name)
    if stamp is None or stamp.get("pins") != _pins(backend):
        return False
    return go is None or stamp.get("go") == go


def _build(backend: Backend, go: str) -> None:
    say(f"{backend.name}: building {backend.about} (about {backend.seconds} s the first time)")
    started = time.monotonic()
    target = binary(backend.name)
    log = folder() / f"{backend.name}.log"
    log.write_bytes(b"")
    with tempfile.TemporaryDirectory(dir=folder(), prefix=f"build-{backend.name}-") as work:
        built = backend.recipe(Path(work), log)
        built.chmod(0o755)
        # The stamp goes first: without one, or beside an older binary, it is built again.
        stamp = target.with_name(f"{backend.name}.stamp")
        stamp.unlink(missing_ok=True)
        built.replace(target)
    fresh = stamp.with_suffix(".stamp.tmp")
    fresh.write_text(json.dumps({"pins": _pins(backend), "go": go}) + "\n")
    fresh.replace(stamp)
    say(f"{backend.name}: built in {time.monotonic() - started:.0f} s: {target}")


def build(names: list[str], optional: bool) -> None:
    """Build what is not there or not current; BuildError says why it cannot be done.

    Without Go, binaries of the right pins are kept as they are, and `optional` turns the error
    about the others into a message.
    """
    go = _go_version()
    if go is None:
        gone = [name for name in names if not _is_current(BACKENDS[name], None)]
        text = f"Go is not found on the PATH: install Go {GO_MINIMUM} or newer"
        if gone and not optional:
            raise BuildError(f"{text}, to build {listed(gone)}")
        if gone:
            say(f"LEFT OUT: the tests against {listed(gone)}. {text}.")
        return
    (folder() / "bin").mkdir(parents=True, exist_ok=True)
    with locked(folder() / "lock"):
        for leftover in folder().glob("build-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for name in names:
            if _is_current(BACKENDS[name], go):
                say(f"{name}: ready: {binary(name)}")
            else:
                _build(BACKENDS[name], go)


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    known = [*BACKENDS, jars.NAME]
    parser = argparse.ArgumentParser(prog="make backends", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--optional", action="store_true", help="without Go, only say so")
    arguments = parser.parse_args(argv)
    names = arguments.names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no backend {unknown[0]!r}: choose from {', '.join(known)}")
    try:
        if built := [name for name in names if name in BACKENDS]:
            build(built, arguments.optional)
        if jars.NAME in names:
            jars.fetch()
    except BuildError as error:
        print(f"backends: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"backends: cannot write to {folder()}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
