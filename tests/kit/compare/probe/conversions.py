"""Conversions of every file of the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .command_line import (
    CommandLine,
    Output,
    content,
    fresh,
)

WORK = Path("work")
TARGETS = ("out.jsonl", "out.binpb")
LAYOUTS = ("segmented", "session")
_ONE_WORKER = ("--jobs", "1")


def outputs(cli: CommandLine, corpus: Path) -> Iterator[Output]:
    """Convert each file to every format, and the result back."""
    spools = [path for path in sorted((corpus / "spools").iterdir()) if path.is_dir()]
    for source in [*spools, *sorted((corpus / "files").iterdir())]:
        if ".otlp." in source.name:
            yield from _from_otlp(cli, source)
        else:
            yield from _to_otlp(cli, source)


def _from_otlp(cli: CommandLine, source: Path) -> Iterator[Output]:
    name = f"convert {source.name}"
    with fresh(WORK):
        yield from cli.outputs(name, "convert", str(source), f"{WORK}/spool", *_ONE_WORKER)
        yield f"{name} | spool", content(WORK / "spool")
        if (WORK / "spool").exists():
            cli.run("convert", f"{WORK}/spool", f"{WORK}/back.binpb", *_ONE_WORKER)
            yield f"{name} | back", content(WORK / "back.binpb")


def _to_otlp(cli: CommandLine, source: Path) -> Iterator[Output]:
    for target in TARGETS:
        for layout in LAYOUTS:
            name = f"convert {source.name} {target} {layout}"
            options = ("--trace-layout", layout, "--json", *_ONE_WORKER)
            with fresh(WORK):
                yield from cli.outputs(name, "convert", str(source), f"{WORK}/{target}", *options)
                yield f"{name} | file", content(WORK / target)
                if (WORK / target).exists():
                    cli.run("convert", f"{WORK}/{target}", f"{WORK}/spool", *_ONE_WORKER)
                    yield f"{name} | back", content(WORK / "spool")
