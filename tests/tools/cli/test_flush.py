"""`spool recover` and `spool flush`, after real processes were killed, with real servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.delivery.delivery_stats import ExportStats
from cirron_otel.core.delivery.follow import Follower
from cirron_otel.core.spool.delivered import Delivered
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.remainder import Left, RemainderFile, left_line
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp.config import OtlpConfig, target_key
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.tools.convert.flush import FlushReport, flush
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.servers.server import OtlpServer
from tests.kit.spools.journals import journal
from tests.kit.spools.made import (
    encoded,
    made,
    snapshot,
    span,
    span_id,
)
from tests.kit.spools.processes import Process
from tests.tools.conftest import Run, one_line

PROGRESS = "CIRRON_OTEL_PROGRESS"

# A recording process that is in the middle of a step.
RECORD = """
owner = Owner.acquire(paths)
data, name = sealed(owner, 1, spans=[span(3, 2), span(4, 2)], marks=[mark(8, 2)])
OwnerJournal(paths, owner).write(journal(owner.prefix, [
    open_span(1, None, name="cirron.session"), open_span(2, 1, name="epoch")], next_batch=name))
SpoolWriter(paths.root).write(data, name)
(paths.spool / f"{5:020d}-{owner.new_batch_id()}.json.tmp").write_bytes(b"{")
say(owner.prefix)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, so that the user's own configuration has no effect on the targets."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def killed(root: Path) -> str:
    with Process(RECORD, root) as process:
        prefix = process.line()
    return prefix


def snapshots_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.json")}


@pytest.mark.parametrize("command", ["recover", "flush"])
def test_help(run: Run, command: str) -> None:
    result = run("spool", command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: cirron-otel spool {command} [OPTIONS] [DIR]")


def test_recover(run: Run, tmp_path: Path) -> None:
    prefix = killed(tmp_path / ".cirron")
    result = run("spool", "recover", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["path"] == ".cirron/spool"
    [done] = document["recovered"]
    assert (done["owner"], done["session"]) == (prefix, span_id(1))
    assert (done["incomplete"], done["closed"], len(done["torn"])) == (2, 0, 1)
    assert (tmp_path / ".cirron" / "spool" / done["batch"]).exists()
    assert run("spool", "verify").returncode == 0
    before = snapshots_of(tmp_path)
    again = run("spool", "recover")
    assert again.stdout == ".cirron/spool: nothing to recover\n"
    assert snapshots_of(tmp_path) == before


def test_recover_in_words(run: Run, tmp_path: Path) -> None:
    killed(tmp_path / ".cirron")
    result = run("spool", "recover")
    lines = result.stdout.splitlines()
    assert lines[0] == (
        ".cirron/spool: 1 process that died: 2 open scopes closed as incomplete, 0 ended scopes"
        " saved, 1 unfinished file removed"
    )
    assert lines[1].startswith("wrote 0")


def test_recover_seals_a_remainder(run: Run, tmp_path: Path) -> None:
    paths = SpoolPaths.under(tmp_path / ".cirron")
    file = RemainderFile(paths, "00000000dead")
    file.add(encoded(made(1, spans=[span(1)], marks=[])))
    file.add(left_line(Left(3, 2, 0)))
    file.close()
    result = run("spool", "recover")
    lines = result.stdout.splitlines()
    assert lines[0] == (
        ".cirron/spool: 1 process that died: 0 open scopes closed as incomplete, 0 ended scopes"
        " saved, 1 unsealed batch sealed, 3 spans and 2 marks lost, 0 unfinished files removed"
    )
    assert lines[1].startswith("wrote ")
    assert run("spool", "verify").returncode == 0
    assert run("spool", "recover").stdout == ".cirron/spool: nothing to recover\n"


def test_recover_leaves_the_living_and_recordings_alone(run: Run, spool: Path) -> None:
    before = snapshots_of(spool)
    with Process(RECORD, spool) as process:
        process.line()
        result = run("spool", "recover")
        assert (result.returncode, result.stdout) == (0, ".cirron/spool: nothing to recover\n")
    assert before.items() <= snapshots_of(spool).items()


def test_recover_works_without_any_batch(run: Run, tmp_path: Path) -> None:
    state = tmp_path / ".cirron" / "state"
    state.mkdir(parents=True)
    (state / "journal-00000000dead.json").write_bytes(
        journal("00000000dead", [span(1, None, end_ns=0)])
    )
    assert "1 open scope closed" in run("spool", "recover").stdout
    assert len(list((tmp_path / ".cirron" / "spool").iterdir())) == 1


def test_recover_sets_a_damaged_journal_aside(run: Run, spool: Path) -> None:
    (spool / "state").mkdir()
    (spool / "state" / "journal-00000000dead.json").write_bytes(b"{")
    result = run("spool", "recover")
    assert result.returncode == 1
    assert "set aside: journal " in result.stderr
    assert run("spool", "recover").returncode == 0


def test_recover_without_a_spool(run: Run, tmp_path: Path) -> None:
    assert "missing" in one_line(run("spool", "recover", "missing"), 3)
    assert "missing" in one_line(run("spool", "flush", "missing", env={"CIRRON_API_KEY": "k"}), 3)


def test_flush_sends_remaining_batches_once(
    run: Run, spool: Path, home: Path, server: OtlpServer
) -> None:
    killed(spool)
    first = run("spool", "flush", "--json", env=server.environ)
    assert (first.returncode, first.stderr) == (0, "")
    [target] = json.loads(first.stdout)["targets"]
    assert (target["batches"], target["spans"], target["left"]) == (7, 177, 0)
    ids = server.span_ids()
    assert len(ids) == len(set(ids)) >= 177
    # The scopes of the killed process, which recovery closed, are among them.
    assert {bytes.fromhex(span_id(number))[:8] for number in (1, 2, 3, 4)} <= set(ids)
    again = run("spool", "flush", env=server.environ)
    assert again.returncode == 0
    assert "0 batches (0 spans, 0 marks, 0 snapshots), 0 B sent to" in again.stdout
    assert len(server.span_ids()) == len(ids)


def test_flush_keeps_the_cursor_that_follow_keeps(
    run: Run, spool: Path, home: Path, server: OtlpServer
) -> None:
    config = OtlpConfig.from_env(server.environ)
    assert run("spool", "flush", env=server.environ).returncode == 0
    assert Delivered(SpoolPaths.under(spool), target_key(config)).acknowledged_count == 5
    stats = ExportStats("test")
    stop = threading.Event()
    Follower(str(spool), config, Options(), stats, stop=stop, say=print).once()
    assert stats.sent_batches == 0


HOLD = RECORD.replace("say(owner.prefix)", "").replace(
    "sys.stdin.read()",
    """
from cirron_otel.core.spool.lease import claim_delivery
lease = claim_delivery(paths, sys.argv[2], owner.prefix)
say(owner.prefix)
sys.stdin.read()
""",
)


def test_flush_reports_batches_left_to_live_processes(
    run: Run, spool: Path, home: Path, server: OtlpServer
) -> None:
    key = target_key(OtlpConfig.from_env(server.environ))
    with Process(HOLD, spool, key) as process:
        process.line()
        result = run("spool", "flush", env=server.environ)
        assert result.returncode == 1
        assert "; 1 batch left\n" in result.stdout
        assert "left to the processes that send them already" in result.stderr
    assert run("spool", "flush", env=server.environ).returncode == 0


def test_flush_requires_a_destination(run: Run, spool: Path, home: Path) -> None:
    assert "no destination is configured" in one_line(run("spool", "flush"), 2)
    assert not (spool / "state").exists()


def test_flush_to_an_endpoint_that_answers_401_leaves_the_batches(
    run: Run, spool: Path, home: Path, server: OtlpServer
) -> None:
    server.status = 401
    result = run("spool", "flush", env=server.environ)
    assert result.returncode == 5
    assert "; 5 batches left\n" in result.stdout
    assert "401" in result.stderr
    server.status = 200
    assert run("spool", "flush", env=server.environ).returncode == 0


@pytest.mark.parametrize("is_listening", [False, True])
def test_flush_reports_at_once_that_an_endpoint_does_not_answer(
    spool: Path, home: Path, is_listening: bool
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if is_listening:
            silent.listen()
        environ = {name: value for name, value in os.environ.items() if name != PROGRESS} | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        command = [str(Path(sys.executable).parent / "cirron-otel"), "spool", "flush", str(spool)]
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            expected = "still working" if is_listening else "(Connection refused)"
            lines = iter(process.stderr.readline, "")
            assert next(line for line in lines if expected in line)
            assert process.poll() is None
            process.kill()


def test_flush_that_is_refused_a_batch(
    run: Run, spool: Path, home: Path, server: OtlpServer
) -> None:
    server.status = 400
    result = run("spool", "flush", env=server.environ)
    assert result.returncode == 1
    assert result.stderr.count("[refused]") == 5
    assert "; 0 batches left\n" in result.stdout


def flushed(root: Path, **environ: str) -> FlushReport:
    return flush(str(root), environ=environ, stop=threading.Event(), patience=0)


def test_one_target_fails_and_the_other_gets_everything(
    spool: Path, home: Path, server: OtlpServer
) -> None:
    platform = CirronServer()
    with platform.running():
        platform.faults += [Fault(503)]
        environ = {
            **server.environ,
            "CIRRON_API_KEY": "secret-key",
            "CIRRON_API_ENDPOINT": platform.url,
        }
        report = flushed(spool, **environ)
        otlp, cirron = report.targets
        assert (otlp.exit_code, cirron.exit_code, report.exit_code) == (0, 5, 5)
        assert "503" in cirron.failure
        assert (cirron.batches, cirron.left) == (0, 5)
        report = flushed(spool, **environ)
        assert [each.batches for each in report.targets] == [0, 5]
        assert report.exit_code == 0
    files = {path.name: json.loads(path.read_bytes()) for path in (spool / "spool").iterdir()}
    assert platform.batches == {batch["batch_id"]: batch for batch in files.values()}
    assert len(platform.accepted) == 5


def with_snapshot(root: Path) -> dict[str, bytes]:
    record: dict[str, Any] = snapshot(1, 1, mode="full")
    content = {}
    records = []
    for name in ("one", "two"):
        path = root / "snapshots" / name / "weights.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(name.encode() * 1000)
        content[f"snapshots/{name}/weights.safetensors"] = path.read_bytes()
        records.append(record | {"blob_uri": f"file://{path}"})
    spans = [span(1, name="cirron.session")]
    SpoolWriter(root).write(encoded(made(1, spans=spans, snapshots=records)))
    return content


def test_flush_sends_snapshot_files(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "run"
    content = with_snapshot(root)
    (root / "snapshots" / "two" / "weights.safetensors").unlink()
    platform = CirronServer()
    with platform.running():
        environ = {"CIRRON_API_KEY": "secret-key", "CIRRON_API_ENDPOINT": platform.url}
        [target] = flushed(root, **environ).targets
        assert (target.batches, target.files, target.exit_code) == (1, 1, 1)
        assert [(each.name, each.code) for each in target.skipped] == [
            ("two/weights.safetensors", "evicted")
        ]
        [target] = flushed(root, **environ).targets
        assert (target.batches, target.files, target.exit_code) == (0, 0, 0)
    stored = {name: bytes(data) for name, data in platform.blobs.items()}
    assert list(stored.values()) == [content["snapshots/one/weights.safetensors"]]


def test_flush_skips_a_file_that_is_not_a_batch(tmp_path: Path, home: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "bad.json").write_bytes(b"{")
    platform = CirronServer()
    with platform.running():
        environ = {"CIRRON_API_KEY": "secret-key", "CIRRON_API_ENDPOINT": platform.url}
        [target] = flushed(tmp_path, **environ).targets
    assert (target.left, [each.name for each in target.skipped]) == (0, ["bad.json"])
    assert platform.requests == []


def test_stopped_flush_sends_nothing(spool: Path, home: Path, server: OtlpServer) -> None:
    stop = threading.Event()
    stop.set()
    report = flush(str(spool), environ=server.environ, stop=stop)
    assert [each.left for each in report.targets] == [5]
    assert server.requests == []
