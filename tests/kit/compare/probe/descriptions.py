"""The names that users depend on: of Python, of the command line, of a recorded spool."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import click

from .command_line import CommandLine, Output

_RECORDING = """
import cirron_otel as ci
ci.profile(output_dir="recorded", frameworks=[])
for epoch in ci.epochs(range(2)):
    for number in ci.batches(range(3)):
        with ci.scope("custom", kind="probe", numbers=[1, 2.5, None]):
            ci.mark("loss", 0.5 / (number + 1))
    ci.mark("note", "text")
try:
    with ci.scope("fails"):
        raise ValueError("probe")
except ValueError:
    pass
ci.shutdown()
"""
_VARYING = re.compile(r"[0-9a-f]{8,}|\d{4,}")
_CANONICAL = ("cirron.", "epoch", "step", "custom", "fails", "loss", "note", "data_load")


def outputs(cli: CommandLine) -> Iterator[Output]:
    """Yield all of them."""
    yield from _python()
    yield from _commands(cli)
    yield from _recording(cli)


def _python() -> Iterator[Output]:
    package = importlib.import_module("cirron_otel")
    for name in sorted(dir(package)):
        value = getattr(package, name)
        yield f"name {name}", _signature(value).encode()
        if not inspect.isclass(value):
            continue
        for member in sorted(each for each in dir(value) if not each.startswith("_")):
            shape = _signature(inspect.getattr_static(value, member))
            yield f"name {name}.{member}", shape.encode()
    for point in distribution("cirron-otel").entry_points:
        yield f"entry point {point.group} {point.name}", b""


def _signature(value: Any) -> str:
    """Describe a value by its kind and, if it can be called, by its parameters."""
    if isinstance(value, property):
        return f"property {_signature(value.fget)}"
    inner = getattr(value, "__func__", value)
    try:
        return f"{type(value).__name__} {inspect.signature(inner)}"
    except (TypeError, ValueError):
        return type(value).__name__


def _commands(cli: CommandLine) -> Iterator[Output]:
    pending: list[tuple[str, click.Command]] = [("cirron-otel", cli.root())]
    while pending:
        name, command = pending.pop()
        yield f"command {name}", b""
        for parameter in command.params:
            shape = {
                "options": [*parameter.opts, *parameter.secondary_opts],
                "type": _type(parameter.type),
                "default": parameter.default,
                "is required": parameter.required,
                "is repeated": getattr(parameter, "multiple", False),
                "arguments": parameter.nargs,
            }
            yield f"option {name} {parameter.name}", _dumped(shape)
        for key, inner in getattr(command, "commands", {}).items():
            pending.append((f"{name} {key}", inner))


def _type(parameter: click.ParamType) -> dict[str, Any]:
    """Describe a type; of a function, by its name."""
    described = parameter.to_info_dict()
    function = described.get("func")
    return described | ({"func": function.__name__} if function is not None else {})


def _recording(cli: CommandLine) -> Iterator[Output]:
    """Record a run; yield the shape of its batches and report, and the names of its files."""
    subprocess.run([sys.executable, "-c", _RECORDING], check=True, capture_output=True)
    folder = Path("recorded")
    yield "recording | files", file_names(folder)
    batches = [json.loads(path.read_text()) for path in sorted((folder / "spool").glob("*.json"))]
    yield "recording | batches", _dumped(_shape(batches))
    for command in (("report",), ("spool", "ls"), ("runs", "ls")):
        code, out, _ = cli.run(*command, str(folder), "--json")
        document = _shape(json.loads(out)) if code == 0 else "no document"
        yield f"recording | {' '.join(command)}", _dumped([code, document])


def _shape(value: Any) -> Any:
    """Replace the values of a document by their types, except names that are not random."""
    if isinstance(value, dict):
        return {varying(key): _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(each) for each in value]
    if isinstance(value, str) and value.startswith(_CANONICAL):
        return value
    return type(value).__name__


def file_names(folder: Path) -> bytes:
    """Return the paths below a folder, one a line, without ids and numbers."""
    paths = (varying(str(path.relative_to(folder))) for path in folder.rglob("*"))
    return "\n".join(sorted(set(paths))).encode()


def varying(name: str) -> str:
    """Replace ids and numbers in a name."""
    return _VARYING.sub("#", name)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1, default=str).encode()
