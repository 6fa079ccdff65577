"""The schema of `report --json`."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

_SCHEMA = Path(__file__).parents[3] / "docs" / "report.schema.json"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
