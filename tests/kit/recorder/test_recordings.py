"""The recordings hold what they were made for: without this, a round trip could prove nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .record import (
    SCRIPTS,
    VERSIONS,
    RecorderError,
    Recording,
    check,
    record,
)

Spools = list[tuple[str, Path]]


def batches(spools: Spools, name: str) -> list[dict[str, Any]]:
    directory = dict(spools)[name] / ".cirron" / "spool"
    return [json.loads(path.read_bytes()) for path in sorted(directory.glob("*.json"))]


def records(spools: Spools, name: str, key: str) -> list[dict[str, Any]]:
    return [record for batch in batches(spools, name) for record in batch[key]]


def test_every_script_was_recorded_with_every_version(recorded_spools: Spools) -> None:
    assert [name for name, _ in recorded_spools] == [
        f"{version}-{script}" for version in VERSIONS for script in SCRIPTS
    ]
    for name, _ in recorded_spools:
        found = batches(recorded_spools, name)
        assert {batch["sdk_version"] for batch in found} == {name.split("-")[0]}
        assert sum(len(batch["spans"]) for batch in found) >= 2


@pytest.mark.parametrize("version", VERSIONS)
class TestContent:
    def test_the_loop_has_marks_in_batches_without_their_span(
        self, recorded_spools: Spools, version: str
    ) -> None:
        name = f"{version}-loop"
        spans = Counter(span["name"] for span in records(recorded_spools, name, "spans"))
        assert spans["epoch"] == 3
        assert spans["step"] == spans["forward"] == 12
        apart = [
            mark["name"]
            for batch in batches(recorded_spools, name)
            for mark in batch["marks"]
            if mark["span_id"] not in {span["id"] for span in batch["spans"]}
        ]
        assert "lr" in apart

    def test_four_threads(self, recorded_spools: Spools, version: str) -> None:
        spans = records(recorded_spools, f"{version}-threads", "spans")
        assert len({span["thread_id"] for span in spans if span["name"] == "step"}) == 4

    def test_more_marks_than_a_span_may_carry(self, recorded_spools: Spools, version: str) -> None:
        marks = records(recorded_spools, f"{version}-many_marks", "marks")
        assert Counter(mark["span_id"] for mark in marks).most_common(1)[0][1] == 2500

    def test_a_fork_records_one_id_twice(self, recorded_spools: Spools, version: str) -> None:
        spans = records(recorded_spools, f"{version}-fork", "spans")
        assert max(Counter(span["id"] for span in spans).values()) == 2

    def test_two_ranks(self, recorded_spools: Spools, version: str) -> None:
        spans = records(recorded_spools, f"{version}-ranks", "spans")
        assert {span["rank"] for span in spans} == {0, 1}

    def test_the_killed_run_has_no_session(self, recorded_spools: Spools, version: str) -> None:
        names = {span["name"] for span in records(recorded_spools, f"{version}-killed", "spans")}
        assert "epoch" in names
        assert not names & {"cirron.session", "never flushed"}

    def test_requests_run_side_by_side(self, recorded_spools: Spools, version: str) -> None:
        spans = records(recorded_spools, f"{version}-requests", "spans")
        requests = [span for span in spans if span["name"] == "request"]
        assert len(requests) == 6
        assert requests[0]["start_ns"] < requests[1]["end_ns"]

    def test_odd_names_and_indexes(self, recorded_spools: Spools, version: str) -> None:
        spans = records(recorded_spools, f"{version}-names", "spans")
        assert {"", "\ud800", 7, None, "cirron.marks"} <= {span["name"] for span in spans}
        assert {2**70, 1.5, "3"} <= {span["index"] for span in spans}


def test_non_finite_values_differ_between_the_versions(recorded_spools: Spools) -> None:
    spools = dict(recorded_spools)
    old = b"".join(p.read_bytes() for p in (spools["0.1.0-marks"] / ".cirron/spool").iterdir())
    assert b'"value":NaN' in old
    assert b'"value":-Infinity' in old
    marks = {m["name"]: m for m in records(recorded_spools, "0.3.0-marks", "marks")}
    assert {n: marks[n].get("value_nonfinite") for n in ("nan", "inf", "ninf", "zero")} == {
        "nan": "nan",
        "inf": "inf",
        "ninf": "-inf",
        "zero": None,
    }
    assert marks["int70"]["value"] == 2**70


@pytest.mark.usefixtures("recorded_spools")
def test_record_runs_a_custom_script(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text("import cirron as ci\nci.profile(snapshots=None)\nci.shutdown()\n")
    spool = record("0.3.0", script, tmp_path / "run") / ".cirron" / "spool"
    assert len(list(spool.glob("*.json"))) == 1


def test_an_incomplete_recording_is_an_error(recorded_spools: Spools, tmp_path: Path) -> None:
    """It is raised ahead of storing the recordings."""
    shutil.copytree(dict(recorded_spools)["0.3.0-loop"], tmp_path / "loop")
    recording = Recording("0.3.0", "loop", tmp_path / "loop")
    check(recording)
    recording.batch_files()[1].unlink()
    with pytest.raises(RecorderError, match=r"0\.3\.0-loop has .*, not 53 spans and 33 marks"):
        check(recording)


@pytest.mark.usefixtures("recorded_spools")
def test_a_failing_script_is_an_error_that_shows_its_output(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("raise SystemExit('went wrong on purpose')\n")
    with pytest.raises(RecorderError, match=r"failing\.py ended with 1, not 0:\nwent wrong"):
        record("0.3.0", script, tmp_path / "run")


def test_cirron_sdk_is_not_installed_in_this_environment() -> None:
    assert importlib.util.find_spec("cirron") is None
