"""Record the outputs: `python -m probe CORPUS OUT`, in an empty working directory."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from . import (
    collector,
    conversions,
    descriptions,
    reports,
    traces,
)
from .command_line import CommandLine, Output


def outputs(corpus: Path) -> Iterator[Output]:
    """Yield every output of this version."""
    cli = CommandLine()
    yield from descriptions.outputs(cli)
    yield from conversions.outputs(cli, corpus)
    yield from reports.outputs(cli, corpus)
    yield from traces.outputs(cli, corpus)
    yield from collector.outputs(cli, corpus)


def main() -> None:
    """Write the outputs, one JSON document a line: `name`, and `output` as base64."""
    corpus, target = sys.argv[1:]
    with Path(target).open("w", encoding="utf-8") as file:
        for name, output in outputs(Path(corpus)):
            line = {"name": name, "output": base64.b64encode(output).decode()}
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
