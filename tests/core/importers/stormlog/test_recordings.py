"""Recordings that both releases make now: they come back, and ours are read by both."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cirron_otel.core.importers.stormlog import load_telemetry_sessions
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.conftest import leave_out
from tests.kit.backends.run import Otelcol
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.spools.comparing import assert_same, batches
from tests.system.backends.test_round_trips import through

from .peers import RELEASES, STORMLOG, Peer
from .programs.remembering import INTERVAL_S, REQUESTED
from .real_recordings import KINDS, own_runs, record
from .returning import (
    batches_in,
    files_of,
    imported,
    records_in,
    written,
)

pytestmark = pytest.mark.xdist_group("stormlog-recordings")


@pytest.fixture(scope="module", params=RELEASES)
def version(request: pytest.FixtureRequest) -> str:
    """Each release."""
    return str(request.param)


@pytest.fixture(scope="module")
def recordings(version: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The recordings of a release."""
    return record(version, tmp_path_factory.mktemp(f"stormlog-{version}") / "kinds")


@pytest.fixture(scope="module")
def peer(version: str) -> Iterator[Peer]:
    """A process with the release."""
    try:
        started = Peer(version)
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    yield started
    started.close()


@pytest.mark.backends
@pytest.mark.parametrize("kind", KINDS)
def test_current_stormlog_recordings_round_trip_through_a_collector(
    kind: str, recordings: dict[str, Path], splitting: Otelcol, tmp_path: Path
) -> None:
    """The Collector splits everything into batches of seven."""
    path = recordings[kind]
    spool, _ = imported(path, tmp_path)
    through(splitting, spool, "segmented", "grpc", tmp_path)
    assert written(tmp_path / splitting.output.name, path, tmp_path) == files_of(path)


@pytest.mark.parametrize("kind", KINDS)
def test_current_stormlog_recordings_round_trip(
    kind: str, recordings: dict[str, Path], tmp_path: Path
) -> None:
    path = recordings[kind]
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 0
    assert report.marks
    assert written(spool, path, tmp_path) == files_of(path)
    for layout, suffix in (("segmented", ".jsonl"), ("session", ".binpb")):
        file = tmp_path / f"traces{suffix}"
        convert(ConvertRequest(f"stormlog:{path}", str(file), layout=layout))
        back = tmp_path / layout
        convert(ConvertRequest(str(file), f"{back}/"))
        assert_same(batches(back), batches(spool))
        back.joinpath("files").mkdir()
        assert written(file, path, back / "files") == files_of(path)
    _, again = imported(path, tmp_path)
    assert again.written == 0


def test_the_ranks_of_a_job_are_sessions(recordings: dict[str, Path], tmp_path: Path) -> None:
    spool, _ = imported(recordings["torchrun"], tmp_path)
    sessions = [s for s in records_in(spool, "spans") if s["name"] == "cirron.session"]
    assert sorted(session["rank"] for session in sessions) == [0, 1]
    resources = [batch["otel"]["resource"]["attributes"] for batch in batches_in(spool)]
    assert {each["cirron.world_size"] for each in resources} == {2}


def test_a_killed_run_is_incomplete(recordings: dict[str, Path], tmp_path: Path) -> None:
    statuses = {}
    for kind in ("killed", "recovered"):
        (tmp_path / kind).mkdir()
        spool, _ = imported(recordings[kind], tmp_path / kind)
        spans = [s for s in records_in(spool, "spans") if s["name"] == "cirron.session"]
        statuses[kind] = sorted(span["attrs"]["status"] for span in spans)
    assert statuses == {"killed": ["running"], "recovered": ["completed", "interrupted"]}


def test_an_error_for_lack_of_memory_is_on_its_phase(
    recordings: dict[str, Path], tmp_path: Path
) -> None:
    spool, report = imported(recordings["oom"], tmp_path)
    (span,) = (s for s in records_in(spool, "spans") if s["name"] == "too large")
    (event,) = span["otel"]["events"]
    assert event["attributes"]["exception.type"] == "RuntimeError"
    assert "allocate" in event["attributes"]["exception.message"]
    assert report.duplicates  # the events of the bundle


@pytest.fixture(scope="module")
def sdk_spools(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of our own SDK with its flight recorder, with and without its sampler."""
    pytest.importorskip("torch")
    return own_runs(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def sdk_spool(sdk_spools: tuple[Path, Path]) -> Path:
    """The run with the sampler."""
    return sdk_spools[0]


@pytest.fixture
def sdk_sink(sdk_spool: Path, tmp_path: Path) -> Path:
    """Its sink."""
    report = convert(ConvertRequest(str(sdk_spool), f"stormlog:{tmp_path}/sink"))
    assert report.exit_code == 0
    return tmp_path / "sink"


def scopes_of(spool: Path) -> dict[str, dict[str, Any]]:
    """The scopes of a run by id, without its session."""
    spans = records_in(spool, "spans")
    return {span["id"]: span for span in spans if span["name"] != "cirron.session"}


def test_both_releases_load_our_run(sdk_spool: Path, sdk_sink: Path, peer: Peer) -> None:
    (session,) = (s for s in records_in(sdk_spool, "spans") if s["name"] == "cirron.session")
    answer = peer.ask("sessions", str(sdk_sink))
    (found,) = answer["sessions"]
    assert found["session_id"].replace("-", "") == session["id"]
    assert answer["default_session"] == found["session_id"]
    assert found["status"] == "completed"
    assert (found["started_at_ns"], found["ended_at_ns"]) == (
        session["start_ns"], session["end_ns"],
    )  # fmt: skip
    scopes = scopes_of(sdk_spool)
    assert found["event_types"] == {
        "start": 1, "stop": 1, "sample": len(samples_of(sdk_spool)), "warning": 1, "error": 2,
        "phase_enter": len(scopes), "phase_exit": len(scopes),
    }  # fmt: skip
    for event in found["events"]:
        assert peer.ask("verify", event) is True
        assert event["sampling_interval_ms"] == 1000 * INTERVAL_S


def samples_of(spool: Path) -> list[dict[str, Any]]:
    """The marks of the sampler in the order of time."""
    found = [mark for mark in records_in(spool, "marks") if mark["name"] == "memory"]
    return sorted(found, key=lambda mark: int(mark["ts_ns"]))


def ooms_of(spool: Path) -> list[dict[str, Any]]:
    """The marks of the flight recorder."""
    found = [mark for mark in records_in(spool, "marks") if mark["name"] == "oom"]
    return sorted(found, key=lambda mark: int(mark["ts_ns"]))


def test_both_releases_find_our_phases_and_markers(
    sdk_spool: Path, sdk_sink: Path, peer: Peer
) -> None:
    scopes = scopes_of(sdk_spool)
    (answer,) = peer.ask("timeline", str(sdk_sink))
    phases = {scope_id: (start, end) for _, scope_id, start, end, _ in answer["spans"]}
    assert phases == {key: (span["start_ns"], span["end_ns"]) for key, span in scopes.items()}
    assert not any(is_synthetic for *_, is_synthetic in answer["spans"])
    kinds = [marker["kind"] for marker in answer["markers"]]
    assert kinds.count("phase") == len(scopes)
    assert kinds.count("alert") == 1
    ooms = [marker for marker in answer["markers"] if marker["kind"] == "oom"]
    assert [marker["start_ns"] for marker in ooms] == [mark["ts_ns"] for mark in ooms_of(sdk_spool)]
    memory = {mark["ts_ns"]: mark for mark in (*samples_of(sdk_spool), *ooms_of(sdk_spool))}
    names = set()
    for each in answer["attribution"]:
        if each["event_type"] not in ("sample", "error"):
            continue
        scope = scopes.get(memory[each["timestamp_ns"]]["span_id"])
        if scope is not None:
            attribution = each["phase_attribution"]
            assert attribution["phase_source"] == "exact"
            assert attribution["scope_id"] == scope["id"]
            names.add(scope["name"])
    assert {"forward", "large"} <= names


def test_both_releases_analyse_our_run(version: str, sdk_spool: Path, tmp_path: Path) -> None:
    export = tmp_path / "run.json"
    convert(ConvertRequest(str(sdk_spool), f"stormlog:{export}"))
    command = STORMLOG[f"stormlog-{version}"].make().with_name("gpumemprof")
    done = subprocess.run(
        [command, "analyze", export], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    (session,) = (s for s in records_in(sdk_spool, "spans") if s["name"] == "cirron.session")
    assert f"selected: {UUID(session['id'])} (completed" in done.stdout
    assert "Gap findings: 0" in done.stdout


def test_records_of_our_run_have_the_values_of_samples(sdk_spool: Path, sdk_sink: Path) -> None:
    marks = {mark["ts_ns"]: mark for mark in samples_of(sdk_spool)}
    text = (sdk_sink / "segment-000001.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert [each["timestamp_ns"] for each in events] == sorted(e["timestamp_ns"] for e in events)
    last: dict[str, Any] | None = None
    first = marks[min(marks)]
    for event in events:
        if event["event_type"] == "sample":
            last = marks[event["timestamp_ns"]]
        assert event["allocator_allocated_bytes"] == (last or first)["value"]
        assert event["collector"] == "stormlog.cpu_tracker"
        host = (last or first)["attrs"]["host_used_bytes"]
        assert event["metadata"]["host_used_bytes"] == host
        assert bool(event["metadata"].get("telemetry_partial")) is (last is None)
    errors = [event for event in events if event["event_type"] == "error"]
    for error, mark in zip(errors, ooms_of(sdk_spool), strict=True):
        metadata = error["metadata"]
        assert metadata["oom_reason"] == "DefaultCPUAllocator"
        assert metadata["oom_requested_bytes"] == mark["value"] == REQUESTED
        assert (sdk_sink / metadata["oom_dump_path"] / "manifest.json").is_file()


def test_both_releases_list_the_bundles_of_our_run(
    version: str, sdk_spool: Path, sdk_sink: Path, peer: Peer
) -> None:
    """The flight recorder has written them into `oom/<span_id>/` beside the spool."""
    scopes = [scope for scope in scopes_of(sdk_spool).values() if scope["name"] == "large"]
    (session,) = (s for s in records_in(sdk_spool, "spans") if s["name"] == "cirron.session")
    command = STORMLOG[f"stormlog-{version}"].make().with_name("stormlog")
    done = subprocess.run(
        [command, "query", "ooms", sdk_sink, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    rows = answer if isinstance(answer, list) else answer["rows"]
    assert sorted(Path(row["bundle_path"]).name for row in rows) == sorted(
        scope["id"] for scope in scopes
    )
    for row in rows:
        assert row["session_id"].replace("-", "") == session["id"]
        assert (row["backend"], row["reason"]) == ("cpu", "DefaultCPUAllocator")
    for scope in scopes:
        assert scope["attrs"]["oom_bundle"] == f"oom/{scope['id']}"
        bundle = sdk_sink / "oom_dumps" / scope["id"]
        assert files_of(bundle) == files_of(sdk_spool / "oom" / scope["id"])
        for event in json.loads((bundle / "events.json").read_bytes()):
            assert peer.ask("verify", event) is True


def test_our_run_comes_back_from_stormlogs_form(
    sdk_spool: Path, sdk_sink: Path, tmp_path: Path
) -> None:
    """The events of the bundles are copies of the sink's: each counts once."""
    spool, report = imported(sdk_sink, tmp_path)
    assert report.exit_code == 0
    lines = (sdk_sink / "segment-000001.jsonl").read_text().splitlines()
    assert len(records_in(spool, "marks")) == len(lines)
    (session,) = load_telemetry_sessions(sdk_sink)
    assert len(session.events) == len(lines)
    bundled = [json.loads(path.read_bytes()) for path in sdk_sink.rglob("events.json")]
    assert report.duplicates == sum(map(len, bundled))
    back = {span["id"]: span for span in records_in(spool, "spans")}
    (root,) = (s for s in records_in(sdk_spool, "spans") if s["name"] == "cirron.session")
    assert back[root["id"]]["attrs"]["status"] == "completed"
    names = [span["name"] for span in back.values()]
    assert sorted(names) == sorted(span["name"] for span in records_in(sdk_spool, "spans"))
    failed = [span for span in back.values() if span["name"] == "large"]
    for span in failed:
        (event,) = span["otel"]["events"]
        assert event["attributes"]["exception.type"] == "RuntimeError"
        assert str(REQUESTED) in event["attributes"]["exception.message"]
    assert written(spool, sdk_sink, tmp_path) == files_of(sdk_sink)


def test_a_run_without_a_sample_is_refused(
    sdk_spools: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = sdk_spools[1]
    for name in ("out", "out.json", "out.jsonl"):
        target = tmp_path / name
        assert run_command(["convert", str(spool), f"stormlog:{target}"]) == 3
        assert not target.exists()
        with pytest.raises(InputError, match="no sample of its memory"):
            convert(ConvertRequest(str(spool), f"stormlog:{target}"))
    (line,) = {line for line in capsys.readouterr().err.splitlines() if line}
    assert "sample_interval" in line
    assert not list(tmp_path.iterdir())
