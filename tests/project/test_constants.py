"""A name that other programs see is spelled once in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import cirron_otel

ROOT = Path(cirron_otel.__file__).parent
PUBLIC = ("cirron.", "OTEL_", "CIRRON_", "x-", "https://api.")


def test_each_public_name_is_one_constant() -> None:
    homes = defaultdict(set)
    for module in ROOT.rglob("*.py"):
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.Constant
            ):
                value = node.value.value
                if isinstance(value, str) and value.startswith(PUBLIC):
                    homes[value].add(str(module.relative_to(ROOT)))
    assert {value: where for value, where in homes.items() if len(where) > 1} == {}
