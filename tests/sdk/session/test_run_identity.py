"""The run that a process belongs to: its id, its name, and what is recorded about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.config.options import Config
from cirron_otel.sdk.session.identity import Identity
from cirron_otel.sdk.session.run_identity import command_name, command_run, run_identity
from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import read_spool

PROGRAM = """
import sys
import cirron_otel as ci

for name in sys.argv[1].split(","):
    ci.profile(name=name or None, config={"lr": 0.1, "net": {"layers": [1, 2]}, "hf_token": "x"},
               hyperparameters={"workers": 4, "shuffle": True}, frameworks="none")
    with ci.scope("work"):
        pass
    ci.shutdown()
"""


def ran(directory: Path, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """The resources of the batches of a program that ran in `directory`."""
    script = directory / "train.py"
    script.write_text(PROGRAM)
    words = [sys.executable, str(script), *arguments]
    done = subprocess.run(
        words, cwd=directory, env=environment(CIRRON_QUIET="true", **variables),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return resources(directory)


def resources(directory: Path) -> list[dict[str, Any]]:
    batches = read_spool(directory / ".cirron").batches
    return [each["otel"]["resource"]["attributes"] for each in batches]


def git(directory: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    command = ["git", *named, *words]
    return subprocess.run(
        command, cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_two_sessions_of_a_program_are_two_runs(tmp_path: Path) -> None:
    first, second = ran(tmp_path, ",baseline", "--api-key", "secret", "--epochs=3")
    ids = [each["cirron.run.id"] for each in (first, second)]
    assert len({*ids}) == 2
    assert all(len(each) == 32 for each in ids)
    assert first["cirron.run.name"] == f"train-{ids[0][:8]}"
    assert second["cirron.run.name"] == "baseline"
    assert first["service.name"] == first["cirron.run.script"] == "train"
    arguments = first["process.command_args"]
    assert arguments[1:] == [",baseline", "--api-key", "***", "--epochs=3"]
    assert first["telemetry.distro.name"] == "cirron-otel"
    found = {key: first[key] for key in first if key.startswith("cirron.config.")}
    assert found == {
        "cirron.config.lr": 0.1,
        "cirron.config.net.layers": "[1, 2]",
        "cirron.config.hf_token": "***",
        "cirron.config.workers": 4,
        "cirron.config.shuffle": True,
    }


def test_details_are_switched_off(tmp_path: Path) -> None:
    (found,) = ran(tmp_path, "a", CIRRON_RUN_DETAILS="none", CIRRON_RUN_NAME="b")
    assert found["cirron.run.name"] == "a"
    assert not [key for key in found if key.startswith(("cirron.config.", "vcs.", "cirron.gpu"))]
    assert {"process.command_args", "host.name", "process.runtime.version"} & {*found} == set()
    assert found["service.name"] == "train"


def test_the_service_that_is_set_stays(tmp_path: Path) -> None:
    (found,) = ran(tmp_path, "", OTEL_SERVICE_NAME="mine", CIRRON_RUN_NAME="of the variable")
    assert (found["service.name"], found["cirron.run.name"]) == ("mine", "of the variable")


def test_the_commit_and_the_tree(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", "data")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    last = ran(tmp_path, "a")[-1]
    assert (last["vcs.ref.head.revision"], last["vcs.ref.head.name"]) == (commit, "main")
    assert last["cirron.git.dirty"] is False
    (tmp_path / "data").write_text("2")
    git(tmp_path, "pack-refs", "--all")
    last = ran(tmp_path, "a")[-1]
    assert (last["vcs.ref.head.revision"], last["cirron.git.dirty"]) == (commit, True)
    git(tmp_path, "checkout", "--detach", "-q")
    last = ran(tmp_path, "a", CIRRON_RUN_DETAILS="git")[-1]
    assert last["vcs.ref.head.revision"] == commit
    assert "vcs.ref.head.name" not in last


def test_program_with_a_sigchld_handler_sees_no_sdk_child_processes(tmp_path: Path) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    script = "import signal\nsignal.signal(signal.SIGCHLD, lambda *_: print('child'))\n"
    (tmp_path / "train.py").write_text(script + PROGRAM)
    words = [sys.executable, "train.py", "a"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    (found,) = resources(tmp_path)
    assert "vcs.ref.head.revision" in found
    assert "cirron.git.dirty" not in found


LAUNCHER = f"""
import os, subprocess, sys
environ = dict(os.environ, WORLD_SIZE="2", **dict(each.split("=") for each in sys.argv[1:]))
ranks = [subprocess.Popen([{sys.executable!r}, "rank.py"], env=dict(environ, RANK=str(rank)),
         start_new_session=len(sys.argv) > 1) for rank in (0, 1)]
assert [rank.wait() for rank in ranks] == [0, 0]
"""
RANK = """
import os
from cirron_otel.core.config.options import Config
from cirron_otel.sdk.session import run_details
from cirron_otel.sdk.session.identity import Identity
from cirron_otel.sdk.session.run_identity import run_identity
identity = Identity.from_environment(os.environ)
ids = [run_identity(Config(), os.environ, identity).id for _ in range(2)]
os.write(1, (" ".join(ids) + os.linesep).encode())
"""


@pytest.mark.parametrize(
    ("variables", "is_unique"),
    [
        (["TORCHELASTIC_RUN_ID=none", "LOCAL_WORLD_SIZE=2"], True),
        ([], True),
        (["SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0"], False),
        (["PMIX_NAMESPACE=host-77", "PMIX_RANK=0"], False),
        (["LOCAL_WORLD_SIZE=1", "MASTER_ADDR=a", "MASTER_PORT=1"], False),
    ],
    ids=["torchrun", "script", "slurm", "pmix", "nodes"],
)
def test_ranks_derive_one_id_for_each_session(
    tmp_path: Path, variables: list[str], is_unique: bool
) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    seen = []
    for _ in range(2):
        words = [sys.executable, "-c", LAUNCHER, *variables]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment(), start_new_session=True, capture_output=True,
            text=True, check=True, timeout=60,
        )  # fmt: skip
        first, second = done.stdout.splitlines()
        assert first == second
        seen.append(first)
    assert len({*" ".join(seen).split()}) == (4 if is_unique else 2)


def test_the_ids_of_others_go_first() -> None:
    given = {"CIRRON_OTEL_RUN_ID": "shared"}
    assert run_identity(Config(run_id="platform's"), given, Identity()).id == "platform's"
    assert run_identity(Config(), given, Identity()).id == "shared"
    assert command_run(Config(), given, ["true"]).id == "shared"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "--nproc-per-node", "8", "dir/train.py", "--x.py"], "train"),
        (["/usr/bin/python3", "-m", "pkg.train"], "pkg.train"),
        (["sh", "-c", "python train.py"], "sh"),
        (["./train"], "train"),
        (["srun", "-m", "x"], "srun"),
    ],
)
def test_the_name_of_a_command(command: list[str], name: str) -> None:
    assert command_name(command) == name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["-m", "pkg"], "pkg"),
        (["-m", "pkg.inner"], "pkg.inner"),
        (["pkg"], "pkg"),
        (
            ["-c", "import cirron_otel.sdk.session.run_identity as r; print(r.script_name())"],
            "python",
        ),
        (["ipykernel_launcher.py"], "lesson"),
    ],
)
def test_the_name_of_a_script(tmp_path: Path, words: list[str], name: str) -> None:
    text = "import cirron_otel.sdk.session.run_identity as r; print(r.script_name())"
    for path in ("pkg/__init__.py", "pkg/__main__.py", "pkg/inner.py", "ipykernel_launcher.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("" if "init" in path else text)
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=environment(JPY_SESSION_NAME="/home/me/lesson.ipynb"),
    )  # fmt: skip
    assert done.stdout == f"{name}\n"


def test_a_generated_id_selects_no_transport(tmp_path: Path) -> None:
    program = """
import json, cirron_otel as ci
profiler = ci.profile(frameworks="none")
print(json.dumps([len(profiler.runtime.pipeline.exporters), profiler.platform_context]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(CIRRON_OTEL_RUN_ID="a"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [0, {}]
    assert [each.name for each in tmp_path.iterdir()] == [".cirron"]


OUTLASTED = """
from pathlib import Path
from cirron_otel.sdk.session import run_details

run_details._LAST_WAIT_S = 0.0
for _ in range(20):
    tree = run_details.TreeState(Path.cwd())
    assert tree.is_pending
    assert tree.result(is_last=True) == {}
    assert not tree.is_pending
"""


def test_git_that_outlasts_the_session_and_its_own_end_is_left_behind(tmp_path: Path) -> None:
    """A process that waits for a disk ends some time after it is killed."""
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o755)
    # In a process of its own: a DataLoader of an earlier test leaves a handler of SIGCHLD.
    subprocess.run(
        [sys.executable, "-c", OUTLASTED], cwd=tmp_path, check=True, timeout=60,
        env=environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"),
    )  # fmt: skip
