"""`cirron-otel stormlog sessions`, `timeline` and `verify`, and their bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions.spool_trees import read_spool
from tests.tools.conftest import Run, one_line

from .conftest import (
    ANSWERS,
    EVENTS,
    RECORDINGS,
    SEGMENT,
    SIMULATED,
)

EVENT = json.loads(EVENTS[10])
SESSION = EVENT["session_id"]


def test_sessions_in_json(run: Run) -> None:
    expected = json.loads((ANSWERS / "sessions.json").read_text())["sim_gpu/sink"]
    done = run("stormlog", "sessions", SIMULATED / "sink", "--json")
    assert done.returncode == 0
    (session,) = expected["sessions"]
    assert json.loads(done.stdout) == {
        "default_session": expected["default_session"],
        "sessions": [
            {
                **session["summary"],
                "event_count": session["event_count"],
                "event_types": session["event_types"],
            }
        ],
    }


def test_sessions_of_a_directory_with_several_recordings(run: Run) -> None:
    done = run("stormlog", "sessions", RECORDINGS)
    assert done.returncode == 0
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + 8
    assert [line for line in lines if line.startswith("*")] == [
        line for line in lines if "a94b2367-a669-4cb1-b947-97c7b0638e97" in line
    ]


def test_sessions_from_standard_input(run: Run) -> None:
    content = (RECORDINGS / "v039" / "cli_track" / "track.json").read_bytes()
    done = run("stormlog", "sessions", "-", "--json", stdin=content)
    assert done.returncode == 0
    (session,) = json.loads(done.stdout)["sessions"]
    assert session["event_count"] == 21


def test_a_pipe_is_read_like_a_file(run: Run, tmp_path: Path) -> None:
    path, pipe = RECORDINGS / "v039" / "cli_track" / "track.json", tmp_path / "pipe"
    os.mkfifo(pipe)
    counts = []
    for source in (path, pipe):
        reports = []
        for arguments in (["convert", f"stormlog:{source}", f"out-{source.name}"],
                          ["stormlog", "verify", source]):  # fmt: skip
            writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
            if source is pipe:
                writer.start()
            done = run(*arguments, "--json")
            if source is pipe:
                writer.join()
            assert done.returncode == 0
            reports.append(json.loads(done.stdout))
        counts.append([reports[0][key] for key in ("spans", "marks")] + [reports[1]["errors"]])
    assert counts[0] == counts[1]
    assert counts[0][1] > 0


def test_timeline_in_json(run: Run) -> None:
    done = run("stormlog", "timeline", SIMULATED, "--json")
    assert done.returncode == 0
    (session,) = json.loads(done.stdout)["sessions"]
    assert list(session) == ["session_id", "markers", "markers_by_rank", "attribution"]
    (markers,) = json.loads((ANSWERS / "markers__sim_gpu__sink.json").read_text()).values()
    assert session["markers"] == markers
    assert session["markers_by_rank"] == {"0": markers}
    stored = (ANSWERS / "phase_attribution__sim_gpu__sink.json").read_text()
    (expected,) = json.loads(stored).values()
    assert session["attribution"] == [
        {
            "timestamp_ns": each["timestamp_ns"],
            "rank": 0,
            "event_type": each["event_type"],
            "phase_attribution": each["phase_attribution"],
        }
        for each in expected
    ]


def test_timeline_of_one_session(run: Run) -> None:
    done = run("stormlog", "timeline", RECORDINGS, "--session", SESSION, "--json")
    assert [each["session_id"] for each in json.loads(done.stdout)["sessions"]] == [SESSION]
    assert "has no session 'none'" in one_line(
        run("stormlog", "timeline", RECORDINGS, "--session", "none"), 3
    )


def test_timeline_for_people(run: Run) -> None:
    done = run("stormlog", "timeline", SIMULATED)
    assert done.returncode == 0
    assert "Phase: train / forward" in done.stdout
    assert "OOM detected" in done.stdout
    assert "samples and alerts: " in done.stdout
    assert "1 exact" not in done.stdout


@pytest.mark.parametrize("path", [SIMULATED, RECORDINGS / "v043", RECORDINGS / "v039/diagnose"])
def test_verify_of_recordings(run: Run, path: Path) -> None:
    done = run("stormlog", "verify", path)
    assert done.returncode == 0
    assert done.stdout.endswith(": 0 errors, 0 notes\n")


def test_verify_reports_legacy_records(run: Run) -> None:
    done = run("stormlog", "verify", RECORDINGS / "v039" / "legacy_records.json", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["errors"], result["notes"], result["findings_left_out"]) == (6, 0, 0)
    assert {each["code"] for each in result["findings"]} == {"legacy"}
    assert {each["message"] for each in result["findings"]} == {
        "schema_version is missing: expected 2, 3 or 4"
    }


def test_verify_notes_a_torn_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(EVENTS[0] + EVENTS[1][:99])
    done = run("stormlog", "verify", SEGMENT)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"note: {SEGMENT} line 2: the last line is incomplete [torn]",
        f"{SEGMENT}: 0 errors, 1 note",
    ]


def _record(**fields: Any) -> bytes:
    return json.dumps({**EVENT, **fields}).encode()


BAD_RECORDS = {
    "version 99": (_record(schema_version=99), "invalid"),
    "version 3.0": (_record(schema_version=3.0), "invalid"),
    "NaN": (_record(metadata={"x": float("nan")}), "not-finite"),
    "a repeated key": (_record().replace(b'"host"', b'"pid": 1, "host"'), "repeated-key"),
    "70 bits": (_record(allocator_allocated_bytes=2**70), "large-integer"),
    "a time of 70 bits": (_record(timestamp_ns=2**70), "large-integer"),
    "half of a pair": (_record(context="\ud800"), "lone-surrogate"),
}


@pytest.mark.parametrize("command", ["sessions", "timeline", "verify"])
def test_a_line_of_300_mb(run: Run, tmp_path: Path, command: str) -> None:
    with (tmp_path / SEGMENT).open("wb") as file:
        file.write(EVENTS[0] + b'{"a":"')
        file.seek(300_000_000, 1)  # a hole, which reads as zero bytes
        file.write(b'"}\n' + EVENTS[1])
    done = run("stormlog", command, SEGMENT, "--json")
    assert done.returncode == 1
    if command == "verify":
        (finding,) = json.loads(done.stdout)["findings"]
        assert (finding["code"], finding["path"]) == ("too-long", "line 2")
    else:
        assert "line 2: 300000008 bytes" in one_line(done, 1)


@pytest.mark.parametrize("command", ["sessions", "timeline", "verify"])
@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_bad_record(run: Run, tmp_path: Path, name: str, command: str) -> None:
    text, code = BAD_RECORDS[name]
    (tmp_path / SEGMENT).write_bytes(EVENTS[0] + text + b"\n" + EVENTS[1])
    done = run("stormlog", command, SEGMENT)
    assert done.returncode == 1
    if command == "verify":
        lines = done.stdout.splitlines()[:-1]
        assert not done.stderr
    else:
        lines = done.stderr.splitlines()
    codes = {line.rpartition("[")[2].rstrip("]") for line in lines}
    assert code in codes
    assert codes <= {code, "invalid"}
    assert all("line 2" in line for line in lines)
    assert len(done.stdout.splitlines()) > 1


@pytest.mark.parametrize("command", ["sessions", "timeline", "verify"])
def test_a_manifest_that_points_outside(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "evil.jsonl").write_bytes(_record(session_id="evil") + b"\n")
    folder = tmp_path / "sink"
    folder.mkdir()
    (folder / SEGMENT).write_bytes(EVENTS[0])
    names = [{"filename": "../evil.jsonl"}, {"filename": "../.."}]
    (folder / "manifest.json").write_text(json.dumps({"segments": names}))
    done = run("stormlog", command, "sink")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("not opened [outside]") == 2
    assert "evil " not in done.stdout


@pytest.mark.parametrize("command", ["sessions", "timeline", "verify"])
@pytest.mark.parametrize("kind", ["missing", "empty", "binary", "text", "spool", "closed"])
def test_input_that_is_not_a_recording_is_reported(
    run: Run, tmp_path: Path, kind: str, command: str
) -> None:
    path = tmp_path / kind
    if kind == "empty":
        path.mkdir()
    elif kind == "spool":
        (path / "spool").mkdir(parents=True)
        (path / "spool" / "1.json").write_text('{"schema_version": 1, "spans": []}')
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 99)
    elif kind == "text":
        path.write_text("hello\n")
    elif kind == "closed":
        path.mkdir(mode=0o000)
    done = run("stormlog", command, path)
    if kind in ("binary", "text"):
        assert done.returncode == 1
        assert "[not-json]" in done.stdout + done.stderr
    else:
        one_line(done, 3)
    if kind == "closed":
        path.chmod(0o700)


def test_without_a_path(run: Run) -> None:
    one_line(run("stormlog", "sessions"), 2)


OWN_RUN = """
import time
import cirron_otel as ci

ci.profile(frameworks=[], output_dir={directory!r}, sample_interval={interval!r})
for epoch in ci.epochs(range(2)):
    ci.mark("note", f"epoch {{epoch}} begins")
    with ci.scope("forward"):
        time.sleep(0.1)
ci.shutdown()
"""


def recorded(directory: Path, interval: float | None) -> Path:
    """A spool of our own with text marks, sampled at `interval`."""
    program = OWN_RUN.format(directory=str(directory), interval=interval)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    return directory


def test_a_spool_is_shown_in_the_form_of_stormlog(run: Run, tmp_path: Path) -> None:
    spool = recorded(tmp_path / "own", 0.01)
    (root,) = [each for each in read_spool(spool).spans if each["name"] == "cirron.session"]
    session_id = str(uuid.UUID(root["id"]))
    done = run("stormlog", "sessions", spool, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["default_session"] == session_id
    done = run("stormlog", "verify", spool)
    assert (done.returncode, done.stderr) == (0, "")
    done = run("stormlog", "timeline", spool, "--session", session_id, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (session,) = json.loads(done.stdout)["sessions"]
    assert [(each["kind"], each["label"]) for each in session["markers"]] == [
        ("lifecycle", "Session start"),
        ("phase", "Phase: epoch"),
        ("annotation", "note: epoch 0 begins"),
        ("phase", "Phase: epoch / forward"),
        ("phase", "Phase: epoch"),
        ("annotation", "note: epoch 1 begins"),
        ("phase", "Phase: epoch / forward"),
        ("lifecycle", "Session stop"),
    ]
    texts = [each for each in session["markers"] if each["source"] == "annotation"]
    assert [each["start_ns"] for each in texts] == sorted(
        mark["ts_ns"] for mark in read_spool(spool).marks if mark["name"] == "note"
    )


def test_a_spool_without_a_sample(run: Run, tmp_path: Path) -> None:
    done = run("stormlog", "timeline", recorded(tmp_path / "own", None))
    assert "the run has no sample of its memory" in one_line(done, 3)
