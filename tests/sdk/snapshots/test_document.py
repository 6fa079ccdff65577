"""docs/snapshots.md: its program runs, and its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from cirron_otel.core.spool import snapshot_files
from cirron_otel.sdk.snapshots import batched, serial
from cirron_otel.sdk.snapshots import recorder as sdk
from tests.kit.forked_scripts import ForkedScripts

from .training import by_epoch

TEXT = (Path(__file__).parents[3] / "docs" / "snapshots.md").read_text()


def test_documented_program_records_the_stated_snapshots(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    (text,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)
    scripts.text(text, tmp_path)
    found = by_epoch(tmp_path / ".cirron")
    assert [list(records) for records in found] == [
        ["weight", "bias", "weight.grad", "bias.grad"]
    ] * 3


def test_documented_limits_match_the_code() -> None:
    limits = f"{sdk.MOST_BYTES >> 30} GiB of copies, or {sdk.MOST_WAITING:,} snapshots"
    assert f"At most {limits}, wait to be written" in TEXT
    buffers = serial.PORTION * (8 + 8 + 1)
    assert f"{buffers >> 20} MB of buffers" in TEXT
    assert f"matrices of {batched.ON_DEVICE / 1e6:.0f} million doubles" in TEXT
    assert "complex128" not in snapshot_files.DTYPES
