"""The exit code, the streams, the environment and the signals of the command are those of `run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sessions.processes import environment, until

from .running import (
    command,
    job_of,
    others,
    program,
    run,
    spool_of,
    start_to_end,
)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["true"], 0),
        (["false"], 1),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["no-such-command"], 127),
        (["/"], 126),
    ],
)
def test_the_exit_code_is_the_commands(tmp_path: Path, words: list[str], code: int) -> None:
    done = run(tmp_path, "--", *words)
    assert (done.returncode, done.stdout) == (code, "")
    spool = spool_of(tmp_path)
    attrs = job_of(spool).record["attrs"]
    assert attrs["process.exit.code"] == code
    assert attrs["process.command"] == words[0]
    status = job_of(spool).record.get("otel", {}).get("status")
    assert (status is not None and status["code"] == 2) == (code != 0)
    assert job_of(spool).record["rank"] is None
    assert others(spool) == []
    if code in (126, 127):
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith(f"cirron-otel: error: {words[0]}: ")
    else:
        assert f"cirron-otel: {words[0]}: exit code {code}" in done.stderr
        assert spool.batches


def test_empty_command_word_exits_with_127(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "")
    assert done.returncode == 127
    assert done.stderr == "cirron-otel: error: (no word): no such command\n"
    assert job_of(spool_of(tmp_path)).record["attrs"]["process.exit.code"] == 127


def test_a_stdout_that_is_closed_is_the_commands_affair(tmp_path: Path) -> None:
    done = start_to_end(["sh", "-c", '"$@" >&-', "-", *command("-q", "true")], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_streams_are_the_commands(tmp_path: Path) -> None:
    text = "é\0" * 100_000
    done = run(tmp_path, "--quiet", "--", "cat", input=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, text, "")
    assert run(tmp_path, "-q", "sh", "-c", "echo out >&2").stderr == "out\n"


def test_options_end_at_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, "--quiet", "echo", "--quiet", "--output", "x", "--", "-q")
    assert done.stdout == "--quiet --output x -- -q\n"
    assert not (tmp_path / "x").exists()
    for wrong in ([], ["--nonsense", "true"], ["--output"]):
        done = run(tmp_path, *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("cirron-otel: error: ")


def environment_below(directory: Path, *options: str, **given: str) -> dict[str, str]:
    done = run(directory, "-q", *options, "--", "env", "-0", env=given)
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def test_environment_differs_only_by_the_propagated_variables(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    given = {
        "TRACEPARENT": f"00-{trace}-b7ad6b7169203331-01",
        "TRACESTATE": "vendor=1",
        "BAGGAGE": "user=x%20y,odd",
        "PYTHONPATH": "/somewhere::/else",
    }
    below = environment_below(tmp_path, **given)
    before = environment(OMP_NUM_THREADS="1", **given)
    before.pop("_", None)
    below.pop("_", None)
    changed = {name for name in {*below, *before} if below.get(name) != before.get(name)}
    assert changed == {
        "TRACEPARENT", "CIRRON_OTEL_JOB_PID", "CIRRON_OTEL_RUN_ID", "CIRRON_OUTPUT_DIR",
        "PYTHONPATH",
    }  # fmt: skip
    ours, _, theirs = below["PYTHONPATH"].partition(os.pathsep)
    assert Path(ours).name == "bootstrap"
    assert [each.name for each in Path(ours).iterdir() if each.suffix == ".py"] == [
        "sitecustomize.py"
    ]
    assert theirs == given["PYTHONPATH"]
    assert below["CIRRON_OUTPUT_DIR"] == str(tmp_path / ".cirron")
    job = job_of(spool_of(tmp_path)).record
    assert below["TRACEPARENT"] == f"00-{trace}-{job['id'][:16]}-01"
    (session,) = spool_of(tmp_path).sessions
    assert session.record["otel"]["parent_span_id"] == "b7ad6b7169203331"


def test_without_hooks_python_starts_as_ever(tmp_path: Path) -> None:
    below = environment_below(tmp_path, "--no-hooks")
    assert below.get("PYTHONPATH") == environment().get("PYTHONPATH")
    assert "TRACEPARENT" in below


def test_a_run_within_a_run_is_its_child(tmp_path: Path) -> None:
    done = run(tmp_path, "-q", *command("-q", "sh", "-c", 'echo "$PYTHONPATH"'))
    assert done.stdout.count("bootstrap") == 1
    jobs = [found for each in spool_of(tmp_path).sessions for found in each.find("cirron.job")]
    inner, outer = sorted(jobs, key=lambda each: -each.record["start_ns"])
    (session,) = [each for each in spool_of(tmp_path).sessions if inner in each.children]
    assert session.record["otel"]["parent_span_id"] == outer.record["id"][:16]


def test_disabled_tracing_runs_the_command_untraced(tmp_path: Path) -> None:
    for variable, value in (("CIRRON_ENABLED", "false"), ("OTEL_SDK_DISABLED", "true")):
        done = run(tmp_path, "--", "sh", "-c", 'echo "$TRACEPARENT"; exit 3', env={variable: value})
        assert (done.returncode, done.stdout) == (3, "\n")
        assert "untraced" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_cannot_be_had_stops_no_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "--", "sh", "-c", "exit 3", env={"CIRRON_OUTPUT_DIR": "file"})
    assert done.returncode == 3
    assert "the command runs untraced: " in done.stderr


@pytest.mark.parametrize("output", ["none", "stdout"])
def test_no_spool_path_is_printed_when_no_spool_is_written(tmp_path: Path, output: str) -> None:
    done = run(tmp_path, "--", "true", env={"CIRRON_OUTPUT": output})
    assert "no spool is written" in done.stderr
    assert "cirron-otel: spool " not in done.stderr
    assert list(tmp_path.iterdir()) == []


class Running:
    """`cirron-otel run` around a program that counts signals, without a terminal."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            command("-q", "--", *program("signalled")),
            cwd=directory, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready, pid, group = self.process.stdout.readline().split()
        assert ready == "ready"
        self.child, self.group = int(pid), int(group)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        out, _ = self.process.communicate("\n", timeout=180)
        return out.strip()


def test_a_signal_comes_to_the_command_once(tmp_path: Path) -> None:
    """Whether it was sent to the one process or to the whole group of it."""
    running = Running(tmp_path)
    assert running.group == running.child != running.process.pid
    for send in (os.kill, os.killpg):
        for number in (signal.SIGINT, signal.SIGUSR1):
            send(running.process.pid, number)
            assert running.said() == number.name
    os.killpg(running.process.pid, signal.SIGTERM)
    assert running.said() == "SIGTERM"
    assert running.end() == "counts 2 1 2 0"
    assert running.process.returncode == 5
    assert job_of(spool_of(tmp_path)).record["attrs"]["process.exit.code"] == 5


def state_of(pid: int) -> str:
    """`T` is stopped (proc(5), /proc/pid/stat)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_both_stop_and_go_on_together(tmp_path: Path) -> None:
    running = Running(tmp_path)
    os.kill(running.process.pid, signal.SIGTSTP)
    until(lambda: state_of(running.process.pid) == "T")
    os.kill(running.process.pid, signal.SIGCONT)
    assert running.said() == "SIGCONT"
    assert state_of(running.child) != "T"
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.said() == "SIGTERM"
    running.end()
    assert running.process.returncode == 5


def test_at_a_terminal_it_is_a_job_like_any(tmp_path: Path) -> None:
    """Ctrl-C reaches the command once; Ctrl-Z stops both, and `fg` lets both go on."""
    done = subprocess.run(
        program("terminal", *command("-q", "--", *program("signalled"))),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "SIGINT",
        "stopped, and the command too",
        "SIGCONT",
        "SIGTERM",
        "exit code 5 and counts 1 1 0 1",
    ]
    assert job_of(spool_of(tmp_path)).record["attrs"]["process.exit.code"] == 5


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_signals_that_were_ignored_or_held_are_so_below(tmp_path: Path) -> None:
    """`nohup cirron-otel run …` outlives its terminal."""
    words = ["sh", "-c", "trap '' HUP; exec \"$@\"", "-", *command("-q", "--", "grep", "^Sig")]
    done = subprocess.run(
        [*words, "/proc/self/status"], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    masks = dict(line.split(":\t") for line in done.stdout.splitlines())
    assert int(masks["SigBlk"], 16) == 0
    # Above those with names: glibc's own two, which posix_spawn leaves ignored.
    assert int(masks["SigIgn"], 16) & 0x7FFFFFFF == 1 << (signal.SIGHUP - 1)


def test_script_as_a_command_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = run(tmp_path, "--", "train.py", "--lr", "1")
    assert done.returncode == 127
    assert done.stderr == (
        "cirron-otel: error: train.py: no such command;"
        " to run a script: cirron-otel run -- python train.py --lr 1\n"
    )
