"""The output of `report --json` is valid by docs/report.schema.json, and has no other fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.main import run
from tests.tools.conftest import SPOOLS

_SCHEMA = Path(__file__).parents[3] / "docs" / "report.schema.json"


def documents(capsys: pytest.CaptureFixture[str], *sources: Path) -> list[dict[str, Any]]:
    for source in sources:
        run(["report", str(source), "--json"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_recording(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    sources = [RECORDING, *(each for each in sorted(SPOOLS.iterdir()) if each.is_dir())]
    found = documents(capsys, *sources)
    assert len(found) == len(sources)
    for document in found:
        validator.validate(document)
        ledger = document["ledger"]
        if ledger is not None:
            assert sum(row["ns"] for row in ledger["accounts"]) == ledger["total_ns"]
        for rank in [] if ledger is None else ledger["ranks"]:
            assert sum(rank["accounts"].values()) == rank["total_ns"]
