"""docs/spool-format.md is executed: its batches are valid, its program runs, its codes exist."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cirron_otel.core.records import schema
from cirron_otel.core.records.validate import validate_batch
from tests.conftest import leave_out
from tests.kit.spools.recorded import copy_of

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "spool-format.md").read_text()

# Cirron's schemas page, "Reading the spool", word for word.
PROGRAM = """\
import json
from pathlib import Path
from safetensors import safe_open

for batch_file in sorted(Path("./.cirron/spool").glob("*.json")):
    batch = json.loads(batch_file.read_text())

    for span in batch["spans"]:
        print(span["name"], span["end_ns"] - span["start_ns"])

    for snap in batch["snapshots"]:
        if snap["blob_uri"] is None:
            continue
        path = snap["blob_uri"].removeprefix("file://")
        with safe_open(path, framework="pt") as f:
            tensor = f.get_tensor(snap["tensor_name"])
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def batches_of(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((root / "spool").glob("*.json"))]


def printed(program: str, directory: Path) -> list[str]:
    if importlib.util.find_spec("safetensors") is None:
        leave_out("the reading program imports safetensors, which is not installed")
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def expected(root: Path) -> list[str]:
    spans = [span for batch in batches_of(root) for span in batch["spans"]]
    return [f"{span['name']} {span['end_ns'] - span['start_ns']}" for span in spans]


def test_reading_program_matches_the_schemas_page() -> None:
    assert blocks("python") == [PROGRAM]


def test_the_program_reads_a_recorded_spool(tmp_path: Path) -> None:
    """Verbatim, on a spool whose snapshots have no blobs: so it does not need torch."""
    root = copy_of("01_torch_basic", tmp_path)
    assert any(batch["snapshots"] for batch in batches_of(root))
    assert printed(blocks("python")[0], tmp_path) == expected(root)


def with_its_blobs(root: Path) -> None:
    """Make recording 18 what it was where it was recorded, before its blobs were uploaded.

    blob_uri gets the copy's path, and gradients the keys that the format asks for (cirron-sdk
    0.3.0 stored them under the parameter's name).
    """
    for path in sorted((root / "spool").glob("*.json")):
        batch = json.loads(path.read_bytes())
        for snap in batch["snapshots"]:
            kind = "gradients" if snap["tensor_name"].endswith(".grad") else "weights"
            blob = root / "snapshots" / snap["span_id"] / f"{kind}.safetensors"
            snap["blob_uri"] = f"file://{blob}"
        path.write_text(json.dumps(batch))
    for blob in (root / "snapshots").glob("*/gradients.safetensors"):
        data = blob.read_bytes()
        size = int.from_bytes(data[:8], "little")
        tensors = {f"{key}.grad": value for key, value in json.loads(data[8 : 8 + size]).items()}
        header = json.dumps(tensors).encode()
        header += b" " * (-len(header) % 8)
        blob.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


def test_the_program_reads_the_blobs_of_a_recorded_spool(tmp_path: Path) -> None:
    """With torch as it stands; without it, through numpy, which reads the same files."""
    root = copy_of("18_http_wire", tmp_path)
    with_its_blobs(root)
    program = blocks("python")[0]
    if importlib.util.find_spec("torch") is None:
        if importlib.util.find_spec("numpy") is None:
            leave_out("reading blobs needs torch or numpy, and neither is installed")
        program = program.replace('framework="pt"', 'framework="np"')
    program += '            print("tensor", snap["tensor_name"], list(tensor.shape))\n'
    lines = printed(program, tmp_path)
    tensors = [line for line in lines if line.startswith("tensor ")]
    assert sorted(tensors) == sorted(
        f"tensor {snap['tensor_name']} {snap['shape']}"
        for batch in batches_of(root)
        for snap in batch["snapshots"]
    )
    assert len(tensors) == 32
    assert [line for line in lines if not line.startswith("tensor ")] == expected(root)


@pytest.mark.parametrize("number", range(2))
def test_the_batches_in_the_text_are_valid(number: int) -> None:
    compact = json.dumps(json.loads(blocks("json")[number]), separators=(",", ":"))
    assert validate_batch(compact.encode()) == []


def table_below(heading: str) -> list[str]:
    """The first column of the first table below a heading."""
    part = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first = part.partition("\n|")[2].split("\n\n")[0]
    return re.findall(r"^\|? ?`(\w+)` \|", first, re.MULTILINE)


@pytest.mark.parametrize(
    ("heading", "record"),
    [("A batch", schema.Batch), ("Spans", schema.Span), ("Marks", schema.Mark),
     ("Snapshots", schema.Snapshot)],
)  # fmt: skip
def test_every_field_has_its_line(heading: str, record: type[msgspec.Struct]) -> None:
    assert table_below(heading) == list(record.__struct_fields__)


def test_every_code_is_listed_and_no_other() -> None:
    rows = TEXT.split("## Verification")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|([^|]*)\|", rows, re.M))))
    core = ROOT / "cirron_otel/core"
    folders = (core / name for name in ("records", "spool", "analysis"))
    source = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    pattern = r'(?:Remark|Problem|_aggregate|code=)\(?\s*(?:name, |\s)*"?([a-z]+(?:-[a-z]+)*)"'
    found = set(re.findall(pattern, source))
    by_key = {"kind", "mode", "value-type", "value-nonfinite"}
    assert listed == found | by_key


def test_constants_match_the_documented_figures() -> None:
    from cirron_otel.core.spool import eviction, reader
    from cirron_otel.core.spool.reader import MAX_BATCH_BYTES
    from cirron_otel.core.spool.writer import DEFAULT_MAX_BYTES

    assert DEFAULT_MAX_BYTES == 10**9
    assert MAX_BATCH_BYTES == 256 * 2**20
    assert eviction._RESCAN_SECONDS == 30
    assert reader._LOCKED_WITHIN_SECONDS == 2
