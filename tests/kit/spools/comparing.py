"""What the integration tests share: the command as a process, and spools held side by side."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel import exactjson
from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import format_of
from tests.kit.servers.command_server import shared_server

RECORDED = Path(__file__).parents[2] / "testdata" / "spools"
COMMAND = Path(sys.executable).with_name("cirron-otel")


def recorded() -> list[Path]:
    """The recordings that stand in the checkout."""
    return sorted(path for path in RECORDED.iterdir() if path.is_dir())


def cirron_otel(*arguments: object, expected: int = 0, **environment: str) -> Any:
    """Run the command; returns its `--json` document."""
    command = [str(COMMAND), *map(str, arguments), "--json"]
    done = shared_server().run(command, Path.cwd(), os.environ | environment, timeout=300)
    assert done.returncode == expected, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return json.loads(done.stdout)


def batches(spool: Path) -> dict[str, Any]:
    """The batches of a spool by file name, exactly."""
    for folder in (spool / "spool", spool / ".cirron" / "spool"):
        if folder.is_dir():
            files = folder.glob("*.json")
            return {file.name: exactjson.loads(file.read_bytes()) for file in files}
    raise AssertionError(f"no spool in {spool}")


def assert_same(found: dict[str, Any], truth: dict[str, Any]) -> None:
    """Every batch equal as a JSON value, in files of the same names."""
    assert found.keys() == truth.keys()
    for name, batch in truth.items():
        assert exactjson.equal(found[name], batch), name


def spans_of(path: Path) -> list[Span]:
    """Every span of an OTLP file."""
    form = format_of(path)
    assert form is not None
    with path.open("rb") as file:
        messages = [TracesData.FromString(m.data) for m in read_messages(file, form)]
    return [s for m in messages for r in m.resource_spans for c in r.scope_spans for s in c.spans]
