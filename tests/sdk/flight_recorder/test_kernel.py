"""The kernel's OOM killer: real cgroups where they can be made, and written files everywhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.spool import recovery
from cirron_otel.core.spool.journal import journal_path, read_journal
from cirron_otel.core.spool.oom_kills import OomKillCounter, kills_text, read_counter, risen
from cirron_otel.core.spool.owner import owners
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.recovery import MESSAGE, recover
from cirron_otel.tools.cli.main import run as cli
from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.sampling.proc_files import (
    make_proc,
    make_v1,
    make_v2,
    write_group,
)
from tests.tools.cli.run.running import command, job_of

from .cgroups import MIB, enter, memory_cgroup_of

PROGRAM = Path(__file__).parent / "programs" / "killed.py"
LIMIT = 160 * MIB
NOTE = "the kernel killed 1 process of its cgroup for lack of memory (oom_kill)"


def start(directory: Path, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory), *arguments],
        env=environment(), text=True, stdout=subprocess.PIPE, **more,
    )  # fmt: skip


def spans_of(directory: Path) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in read_spool(directory).spans}


def test_recovery_notes_the_kernels_kill(tmp_path: Path) -> None:
    with memory_cgroup_of(LIMIT) as group:
        process = start(tmp_path, preexec_fn=lambda: enter(group))
        out, _ = process.communicate(timeout=120)
        assert (out, process.returncode) == ("ready\n", -signal.SIGKILL)
        assert group.oom_kills() == 1
        (recovered,) = recover(SpoolPaths.under(tmp_path))
    assert (recovered.incomplete, recovered.oom_kills) == (3, 1)
    for span in spans_of(tmp_path).values():
        assert span["attrs"]["incomplete"] is True
        assert span["attrs"]["oom_kills"] == 1
        assert span["otel"]["status"]["message"] == MESSAGE + kills_text(1)


def test_a_kill_by_someone_else_is_not_the_kernels(tmp_path: Path) -> None:
    process = start(tmp_path, "gentle")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=60)
    (recovered,) = recover(SpoolPaths.under(tmp_path))
    assert (recovered.incomplete, recovered.oom_kills) == (3, 0)
    for span in spans_of(tmp_path).values():
        assert "oom_kills" not in span["attrs"]
        assert span["otel"]["status"]["message"] == MESSAGE


def test_run_names_the_kernels_kill(tmp_path: Path) -> None:
    words = command("--", sys.executable, PROGRAM, tmp_path / ".cirron", "run")
    with memory_cgroup_of(2 * LIMIT) as group:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240,
            check=False, preexec_fn=lambda: enter(group),
        )  # fmt: skip
        assert done.returncode == 128 + signal.SIGKILL, done.stderr
        assert group.oom_kills() == 1
    assert "out of memory: the kernel killed 1 process of this cgroup (oom_kill)" in done.stderr
    assert NOTE in " ".join(done.stderr.split())
    spool = read_spool(tmp_path / ".cirron")
    job = job_of(spool)
    assert job.record["attrs"]["oom_kills"] == 1
    assert job.record["otel"]["status"]["message"].startswith("exit code 137; the kernel killed")
    assert NOTE in spans_of(tmp_path / ".cirron")["step"]["otel"]["status"]["message"]


def test_the_commands_name_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal whose counter has risen, as the kernel leaves it, in report and runs."""
    directory = tmp_path / "killed"
    process = start(directory, "gentle")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=60)
    raise_counter(SpoolPaths.under(directory), 2)
    recover(SpoolPaths.under(directory))
    assert cli(["runs", "ls", str(directory)]) == 0
    assert "killed (out of memory)" in capsys.readouterr().out
    assert cli(["report", str(directory), "--full", "--no-pager"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "KILLED: rank 0: out of memory: the process ended without closing its session; the" in (
        shown
    )
    assert "killed 2 processes of its cgroup for lack of memory" in shown
    assert cli(["report", str(directory), "--json"]) == 0
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert (failure["cause"], failure["requested_bytes"]) == ("out of memory", None)


def raise_counter(paths: SpoolPaths, kills: int) -> OomKillCounter:
    """Let the counter of the only owner's journal be a file of ours that has risen by `kills`."""
    (prefix,) = owners(paths)
    file = paths.root / "memory.events"
    file.write_text(f"low 0\noom_kill {5 + kills}\n")
    path = journal_path(paths, prefix)
    document = json.loads(path.read_bytes())
    counter = document["oom_kills"]
    assert counter is not None, "this machine has a memory cgroup"
    counter |= {"file": str(file), "inode": file.stat().st_ino, "count": 5}
    path.write_text(json.dumps(document))
    journal = read_journal(paths, prefix)
    assert journal is not None
    assert journal.state.oom_kills is not None
    return journal.state.oom_kills


class CrashError(Exception):
    """The end of a process that was recovering."""


def test_a_second_recovery_writes_the_same_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read_counter() is None:
        pytest.skip("the kernel counts no kills here")
    process = start(tmp_path, "gentle")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=60)
    paths = SpoolPaths.under(tmp_path)
    raise_counter(paths, 1)

    def crash(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "_remove_traces", crash)
        with pytest.raises(CrashError):
            recover(paths)
    before = {path.name: path.read_bytes() for path in paths.spool.iterdir()}
    assert any(NOTE.encode() in data for data in before.values())
    # The kernel goes on killing until the next recovery.
    (tmp_path / "memory.events").write_text("oom_kill 99\n")
    (second,) = recover(paths)
    assert (second.name, second.incomplete) == (None, 0), "all is sealed"
    assert {path.name: path.read_bytes() for path in paths.spool.iterdir()} == before
    assert not owners(paths)


@pytest.mark.parametrize("v1", [True, False])
def test_oom_kill_counter_is_read_from_the_cgroup_of_the_process(tmp_path: Path, v1: bool) -> None:
    proc = make_proc(tmp_path / "proc")
    make = make_v1 if v1 else make_v2
    group = make(proc, tmp_path / "mount", "/jobs/7")
    write_group(group.parent, MIB, 2 * MIB, kills=90, v1=v1)
    write_group(group, MIB, None, kills=3, v1=v1)
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("one\n")
    counter = read_counter(proc / "self", boot_id)
    assert counter is not None
    assert (Path(counter.file).parent, counter.count) == (group, 3)
    assert risen(counter, boot_id) == 0
    write_group(group, MIB, None, kills=5, v1=v1)
    assert risen(counter, boot_id) == 2
    boot_id.write_text("two\n")
    assert risen(counter, boot_id) == 0, "after a restart, the counter is another one"


def test_replaced_or_missing_cgroup_file_counts_no_kills(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc")
    group = make_v2(proc, tmp_path / "mount", "/jobs/7")
    write_group(group, MIB, None, kills=3, v1=False)
    counter = read_counter(proc / "self")
    file = group / "memory.events"
    content = file.read_text().replace("oom_kill 3", "oom_kill 9")
    other = group / "new"
    other.write_text(content)
    other.replace(file)
    assert risen(counter) == 0
    file.unlink()
    assert risen(counter) == 0
    assert risen(None) == 0


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert read_counter(make_proc(tmp_path / "proc") / "self") is None
