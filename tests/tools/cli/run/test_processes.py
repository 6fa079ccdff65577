"""Which Python processes below `cirron-otel run` leave a session: those that record something."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.sessions.processes import environment

from .running import (
    BIN,
    job_of,
    others,
    run,
    spool_of,
    start_to_end,
)

PYTHON = sys.executable


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_scope_alone_opens_the_session(tmp_path: Path) -> None:
    """No `profile()`: it is one of the run's all the same, in the run's trace."""
    program = "import cirron_otel as ci\nwith ci.scope('work'): ci.mark('a', 1)"
    done = run(tmp_path, "--name", "mine", "--", PYTHON, "-c", program)
    assert done.returncode == 0
    spool = spool_of(tmp_path)
    (session,) = others(spool)
    resources = [each["otel"]["resource"]["attributes"] for each in spool.batches]
    assert len({each["cirron.run.id"] for each in resources}) == 1
    assert {each["cirron.run.name"] for each in resources} == {"mine"}
    assert [each.name for each in session.children] == ["work"]
    job = job_of(spool).record
    assert session.record["otel"]["parent_span_id"] == job["id"][:16]
    assert session.record["id"][16:] == job["id"][16:]
    assert job["attrs"]["world_size"] == 1
    assert job["start_ns"] < session.record["start_ns"] < session.children[0].record["start_ns"]
    assert session.record["end_ns"] < job["end_ns"]


def test_a_program_that_profiles_itself_has_one_session_with_its_options(tmp_path: Path) -> None:
    program = """
import cirron_otel as ci
profiler = ci.profile(overhead_marks=False, frameworks="none")
assert ci.profile() is profiler
with ci.scope("work"): pass
assert ci.shutdown()
with ci.scope("after"): pass
"""
    assert run(tmp_path, "--", PYTHON, "-c", program).returncode == 0
    spool = spool_of(tmp_path)
    (session,) = others(spool)
    assert [each.name for each in session.children] == ["work"]
    assert session.marks == []


def test_a_program_that_switches_it_off_is_not_recorded(tmp_path: Path) -> None:
    program = "import cirron_otel as ci\nci.profile(enabled=False)\nwith ci.scope('a'): pass"
    done = run(tmp_path, "--", PYTHON, "-c", program)
    assert (done.returncode, others(spool_of(tmp_path))) == (0, [])
    assert "the command recorded nothing" in done.stderr


def test_processes_that_record_nothing_leave_no_session(tmp_path: Path) -> None:
    """Not even the imports: a process that has nothing to do with us starts as fast as ever."""
    program = """
import multiprocessing, subprocess, sys
import sitecustomize
ours = {name for name in sys.modules if name.partition(".")[0] in ("cirron_otel", "opentelemetry")}
assert not ours, ours
assert not [each for each in sys.path if each.endswith("bootstrap")]
def child(): print("child", flush=True)
if __name__ == "__main__":
    import os; os.environ["OTEL_X"] = "1"
    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start(); process.join()
        assert process.exitcode == 0
    subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=2, check=True)
    import cirron_otel.sdk.session.api
"""
    done = run(tmp_path, "--", PYTHON, str(write(tmp_path, "many.py", program)))
    assert (done.returncode, done.stdout) == (0, "child\n" * 3), done.stderr
    assert others(spool_of(tmp_path)) == []


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_program_of_a_framework_without_hooks_is_advised_if_nothing_was_recorded(
    tmp_path: Path, is_recorded: bool
) -> None:
    """Only the name of the module is read, so an empty one is enough."""
    write(tmp_path, "jax.py", "")
    scope = "import cirron_otel as ci\nwith ci.scope('step'): pass" if is_recorded else ""
    path = write(tmp_path, "train.py", f"import jax\n{scope}")
    done = run(tmp_path, "--", PYTHON, str(path))
    assert done.returncode == 0
    assert done.stderr.count("JAX is not hooked") == (not is_recorded)
    for env in ({"RANK": "1"}, {"RANK": "0"}):
        done = run(tmp_path, "--", PYTHON, str(path), env=env)
        is_first = env["RANK"] == "0"
        assert done.stderr.count("JAX is not hooked") == (is_first and not is_recorded)


def test_a_sitecustomize_that_is_there_runs_as_ever(tmp_path: Path) -> None:
    theirs = write(tmp_path, "theirs/sitecustomize.py", "import sys; sys.theirs = __name__")
    program = "import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__)"
    done = run(tmp_path, "-q", "--", PYTHON, "-c", program, env={"PYTHONPATH": str(theirs.parent)})
    assert done.stdout == f"sitecustomize {theirs}\n"
    theirs.write_text("raise RuntimeError('theirs')")
    done = run(tmp_path, "-q", "--", PYTHON, "-c", "", env={"PYTHONPATH": str(theirs.parent)})
    assert done.returncode == 0
    assert "RuntimeError: theirs" in done.stderr


def test_flags_that_leave_it_out_leave_it_out(tmp_path: Path) -> None:
    """-E and -I ignore PYTHONPATH, -S starts without site: the program runs, unrecorded."""
    packages = sysconfig.get_path("purelib")
    program = (
        f"import sys; sys.path += [{packages!r}, {str(Path(__file__).parents[4])!r}]\n"
        "import cirron_otel as ci\nwith ci.scope('a'): print('ran')"
    )
    for flag in ("-E", "-I", "-S"):
        place = tmp_path / flag[1]
        place.mkdir()
        done = run(place, "--", PYTHON, flag, "-c", program)
        assert (done.returncode, done.stdout) == (0, "ran\n")
        assert others(spool_of(place)) == []
        assert "the command recorded nothing" in done.stderr


def test_environment_without_cirron_otel_is_reported_in_one_line(tmp_path: Path) -> None:
    """Where torch is imported; a package of that name will do."""
    venv.create(tmp_path / "venv", with_pip=False)
    write(tmp_path, "torch/__init__.py", "")
    python = tmp_path / "venv" / "bin" / "python"
    env = {"PYTHONPATH": str(tmp_path)}
    done = run(tmp_path, "-q", "--", python, "-c", "import torch; print('ran')", env=env)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cirron-otel: {python} cannot import cirron-otel (ModuleNotFoundError")
    done = run(tmp_path, "-q", "--", python, "-c", "print('ran')", env=env)
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_interrupted_program_has_closed_its_open_scopes(tmp_path: Path) -> None:
    program = """
import cirron_otel as ci, os, signal
with ci.scope("work"):
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = run(tmp_path, "--", PYTHON, "-c", program)
    assert done.returncode == 143
    spool = spool_of(tmp_path)
    (session,) = others(spool)
    assert [each.name for each in session.children] == ["work"]
    assert "exit code 143, as after SIGTERM" in done.stderr


def test_scopes_left_open_by_a_killed_process_are_closed(tmp_path: Path) -> None:
    program = """
import cirron_otel as ci, os, signal
with ci.scope("work"):
    ci.mark("a", 1)
    assert ci.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(tmp_path, "--", PYTHON, "-c", program)
    assert done.returncode == 137
    assert "1 process died" in done.stderr
    spool = spool_of(tmp_path)
    (session,) = others(spool)
    (work,) = session.children
    assert (session.record["attrs"], work.record["attrs"]) == ({"incomplete": True},) * 2
    assert not list((tmp_path / ".cirron" / "state").glob("journal-*"))


def test_process_that_died_in_another_run_is_not_reported(tmp_path: Path) -> None:
    program = """
import cirron_otel as ci, os, signal
del os.environ["TRACEPARENT"]
ci.profile(frameworks=[])
with ci.scope("work"):
    assert ci.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(tmp_path, "--", PYTHON, "-c", program)
    assert done.returncode == 137
    assert "process died" not in done.stderr
    assert len(others(spool_of(tmp_path))) == 1


def test_spans_are_counted_despite_a_slow_clock(tmp_path: Path) -> None:
    """That of another node, or one that was set during the run."""
    program = """
import time
real = time.time_ns
time.time_ns = lambda: real() - 7200 * 10**9
import cirron_otel as ci
with ci.scope("work"): pass
"""
    done = run(tmp_path, "--", PYTHON, "-c", program)
    assert "(2 spans of this run)" in done.stderr
    done = run(tmp_path, "--", "true")
    assert "(0 spans of this run)" in done.stderr


def test_a_child_forked_after_the_first_scope_is_in_the_runs_trace(tmp_path: Path) -> None:
    """And linked to its parent's session, as ever."""
    program = """
import cirron_otel as ci, os, sys
for _ in range(2):
    with ci.scope("work"): pass
    child = os.fork()
    if child:
        sys.exit(os.waitpid(child, 0)[1])
with ci.scope("work"): pass
"""
    done = run(tmp_path, "--", PYTHON, "-c", program)
    assert done.returncode == 0
    spool = spool_of(tmp_path)
    sessions = sorted(others(spool), key=lambda each: each.record["start_ns"])
    assert [[each.name for each in session.children] for session in sessions] == [["work"]] * 3
    job = job_of(spool).record
    for session in sessions:
        assert session.record["otel"]["parent_span_id"] == job["id"][:16]
        assert session.record["id"][16:] == job["id"][16:]
    for before, session in pairwise(sessions):
        (link,) = session.record["otel"]["links"]
        assert link["span_id"] == before.record["id"][:16]
    assert "(6 spans of this run)" in done.stderr


def test_opentelemetry_instrument_below_a_run(tmp_path: Path) -> None:
    """Its sitecustomize comes first, and ours not at all: the entry points do the same."""
    program = "import cirron_otel as ci\nwith ci.scope('work'): pass"
    words = [str(BIN / "opentelemetry-instrument"), PYTHON, "-c", program]
    assert run(tmp_path, "--", *words).returncode == 0
    (session,) = others(spool_of(tmp_path))
    job = job_of(spool_of(tmp_path)).record
    assert session.record["otel"]["parent_span_id"] == job["id"][:16]


def test_opentelemetry_instrument_around_a_run(tmp_path: Path) -> None:
    words = [str(BIN / "opentelemetry-instrument"), str(BIN / "cirron-otel"), "run", "-q", "false"]
    assert start_to_end(words, tmp_path).returncode == 1
    assert others(spool_of(tmp_path)) == []


def test_python_itself_starts_no_slower_than_its_standard_library(tmp_path: Path) -> None:
    """The module imports two small modules; the others are in the interpreter itself."""

    def modules(**env: str) -> set[str]:
        done = subprocess.run(
            [PYTHON, "-c", "import sys; print(*sys.modules)"], cwd=tmp_path,
            env=environment(**env), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return set(done.stdout.split())

    from cirron_otel.sdk.session.job import BOOTSTRAP

    more = modules(PYTHONPATH=str(BOOTSTRAP)) - modules()
    assert more <= {
        "sitecustomize",
        "atexit",
        "importlib.machinery",
        "importlib._bootstrap",
        "importlib",
        "_frozen_importlib_external",
        "warnings",
        "importlib._bootstrap_external",
    }
