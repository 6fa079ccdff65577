"""Bad input: one clear line, the documented exit code, and no half-written target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.core.importers.stormlog import file_reading
from cirron_otel.errors import TargetError
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.convert import ConvertRequest, convert

from .conftest import EVENTS, SIMULATED
from .returning import files_of, imported, records_in


def problems(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on stderr."""
    return [line for line in capsys.readouterr().err.splitlines() if line]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"5", b'"x"', b"[1, 2", b'{"events": 5}', b"\xff\xfe"]
)
def test_a_file_without_events(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.json"
    path.write_bytes(content)
    code = run_command(["convert", f"stormlog:{path}", str(tmp_path / "out")])
    assert code in (1, 3)
    found = problems(capsys)
    assert found
    assert all("Traceback" not in line and "internal error" not in line for line in found)


@pytest.mark.parametrize(
    "changes",
    [{"schema_version": 99}, {"schema_version": 3.0}, {"rank": 5}, {"timestamp_ns": 2**63}],
)
def test_a_record_that_is_not_valid_is_skipped(
    changes: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "segment-000001.jsonl"
    bad = json.dumps(json.loads(EVENTS[0]) | changes, sort_keys=True).encode() + b"\n"
    path.write_bytes(EVENTS[0] + bad + EVENTS[1])
    assert run_command(["convert", f"stormlog:{path}", str(tmp_path / "out")]) == 1
    assert len([line for line in problems(capsys) if path.name in line]) == 1
    assert len(records_in(tmp_path / "out", "marks")) == 2


def with_metadata(**values: object) -> dict[str, object]:
    return {"metadata": json.loads(EVENTS[0])["metadata"] | values}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (with_metadata(x=float("nan")), "not-finite"),
        (with_metadata(x=2**70), "large-integer"),
        ({"allocator_allocated_bytes": 2**70, "device_used_bytes": 2**70,
          "device_total_bytes": None}, "large-integer"),
        ({"allocator_change_bytes": -(2**70)}, "large-integer"),
        ({"rank": 2**70, "world_size": 2**71}, "large-integer"),
        ({"context": "\ud800"}, "lone-surrogate"),
        ({"session_id": "\ud800"}, "lone-surrogate"),
        ({"host": "\ud800"}, "lone-surrogate"),
    ],
)  # fmt: skip
def test_record_that_other_readers_change_is_preserved_and_reported(
    changes: dict[str, object], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For every command; and the file comes back."""
    path = tmp_path / "segment-000001.jsonl"
    odd = json.dumps(json.loads(EVENTS[0]) | changes, sort_keys=True).encode() + b"\n"
    path.write_bytes(EVENTS[0] + odd + EVENTS[1])
    assert_reported(path, code, tmp_path, capsys)
    spool = tmp_path / "out"
    assert len(records_in(spool, "marks")) == 3
    convert(ConvertRequest(str(spool), f"stormlog:{tmp_path}/back.jsonl"))
    assert (tmp_path / "back.jsonl").read_bytes() == path.read_bytes()


def assert_reported(
    path: Path, code: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command reports exactly one problem, and its exit code is 1."""
    assert run_command(["stormlog", "verify", str(path)]) == 1
    assert capsys.readouterr().out.count(f"[{code}]") == 1
    for command in (
        ["convert", f"stormlog:{path}", str(folder / "out")],
        ["convert", f"stormlog:{path}", str(folder / "traces.jsonl")],
        ["report", f"stormlog:{path}", "--run", "all"],
        ["stormlog", "sessions", str(path)],
        ["stormlog", "timeline", str(path)],
    ):
        assert run_command(command) == 1
        lines = problems(capsys)
        assert len(lines) == 1, lines
        assert f"[{code}]" in lines[0]


def test_repeated_keys_are_preserved_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "segment-000001.jsonl"
    path.write_bytes(EVENTS[0] + b'{"rank": 0, ' + EVENTS[1][1:] + EVENTS[2])
    assert_reported(path, "repeated-key", tmp_path, capsys)
    convert(ConvertRequest(str(tmp_path / "out"), f"stormlog:{tmp_path}/back.jsonl"))
    assert (tmp_path / "back.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "changes",
    [{"schema_version": 99}, {"schema_version": 3.0}, {"allocator_allocated_bytes": float("nan")}],
)
def test_an_invalid_record_is_one_line_for_every_command(
    changes: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "segment-000001.jsonl"
    bad = json.dumps(json.loads(EVENTS[0]) | changes, sort_keys=True).encode() + b"\n"
    path.write_bytes(EVENTS[0] + bad + EVENTS[1])
    assert_reported(path, "invalid", tmp_path, capsys)


def test_a_manifest_that_names_files_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = tmp_path / "inner" / "sink"
    sink.mkdir(parents=True)
    (tmp_path / "segment-000009.jsonl").write_bytes(b"".join(EVENTS[5:]))
    (sink / "segment-000001.jsonl").write_bytes(b"".join(EVENTS[:3]))
    manifest = json.loads((SIMULATED / "sink" / "manifest.json").read_bytes())
    manifest["segments"].append(
        {**manifest["segments"][0], "filename": "../../segment-000009.jsonl"}
    )
    (sink / "manifest.json").write_text(json.dumps(manifest))
    assert_reported(sink, "outside", tmp_path, capsys)
    assert len(records_in(tmp_path / "out", "marks")) == 3


def test_a_line_of_300_mb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "segment-000001.jsonl"
    with path.open("wb") as file:
        file.write(EVENTS[0] + b'{"x": "')
        for _ in range(300):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + EVENTS[1])
    assert_reported(path, "too-long", tmp_path, capsys)
    assert len(records_in(tmp_path / "out", "marks")) == 2


def test_an_empty_directory_and_a_missing_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        code = run_command(["convert", f"stormlog:{tmp_path}/{name}", str(tmp_path / "out")])
        assert code == 3
        assert len(problems(capsys)) == 1
    assert not (tmp_path / "out").exists()


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the file is read; the file is not claimed to be complete."""
    monkeypatch.setattr(file_reading, "MAX_RECORD_BYTES", 3_000)
    monkeypatch.setattr(file_reading, "_BLOCK", 1_000)
    path = tmp_path / "segment-000001.jsonl"
    path.write_bytes(EVENTS[0] + b"x" * 50_000 + b"\n" + EVENTS[1] + EVENTS[2])
    spool, report = imported(path, tmp_path)
    assert len(records_in(spool, "marks")) == 3
    assert [finding.code for finding in report.skipped] == ["too-long"]
    written = convert(ConvertRequest(str(spool), f"stormlog:{tmp_path}/back.jsonl"))
    assert written.exit_code == 1
    assert (tmp_path / "back.jsonl").read_bytes() == b"".join(EVENTS[:3])


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    spool, _ = imported(SIMULATED, tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("kept")
    with pytest.raises(TargetError, match="not empty"):
        convert(ConvertRequest(str(spool), f"stormlog:{target}"))
    assert files_of(target) == {"mine": b"kept"}
    assert {path.name for path in tmp_path.iterdir()} == {"imported", "target"}


@pytest.mark.parametrize("name", ["../escaped.json", "/tmp/escaped.json", "a/../../b", ""])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    spool, _ = imported(SIMULATED / "sink", tmp_path)
    (file,) = (spool / "spool").iterdir()
    batch = json.loads(file.read_bytes())
    batch["stormlog"]["documents"][0][0] = name
    file.write_text(json.dumps(batch))
    target = tmp_path / "inner" / "target"
    assert run_command(["convert", str(spool), f"stormlog:{target}"]) == 3
    assert not list(tmp_path.rglob("*escaped*"))
    assert not target.exists()


def test_a_batch_with_an_unexpected_object_is_reported(tmp_path: Path) -> None:
    spool, _ = imported(SIMULATED / "sink", tmp_path)
    (file,) = (spool / "spool").iterdir()
    batch = json.loads(file.read_bytes())
    batch["stormlog"]["at"] = [["x", None, 5]]
    file.write_text(json.dumps(batch))
    report = convert(ConvertRequest(str(spool), f"stormlog:{tmp_path}/out"))
    assert [finding.code for finding in report.skipped] == ["not-written"]
