"""The command that shows what needs a GPU: how it answers where there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import need_torch
from tests.gpu import __doc__ as documented
from tests.gpu import __main__ as command
from tests.sdk.processes import ROOT, environment


@pytest.fixture(autouse=True)
def _torch() -> None:
    need_torch()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_without_a_gpu_it_measures_nothing_and_says_so() -> None:
    done = _run()
    assert done.returncode == command.NO_GPU == 3
    assert done.stdout == "no GPU: nothing measured\n"
    assert done.stderr == ""


def test_it_names_its_checks_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == command.OK
    assert capsys.readouterr().out.split() == list(command.CHECKS)
    assert command.main(["truth", "tempo"]) == command.USAGE
    assert "no such check: tempo" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        command.main(["--quickly"])
    assert left.value.code == command.USAGE


def test_what_it_needs_and_lacks_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_is_there", lambda name: name != "msgspec")
    assert command.main([]) == command.NO_IMPORT
    assert capsys.readouterr().out.startswith("msgspec cannot be imported")


def test_checks_and_statuses_are_documented() -> None:
    assert documented is not None
    rows = [line.split("|")[1].strip() for line in documented.splitlines() if line[:2] == "| "]
    assert rows == ["check", "---", *command.CHECKS]
    for status in (command.SOME_FAILED, command.USAGE, command.NO_GPU, command.NO_IMPORT):
        assert f"; {status}, " in documented


def test_a_rehearsal_runs_the_programs_of_all_checks() -> None:
    done = _run("--rehearse", "--here")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(command._MARK)]
    told = [json.loads(line.removeprefix(command._MARK)) for line in lines]
    found = {name: each["status"] for name, each in zip(command.CHECKS, told, strict=True)}
    assert found == dict.fromkeys(command.CHECKS, command.PASSED), [each["said"] for each in told]


def test_a_check_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {"truth": command._result(command.PASSED), "cost": command._result(command.FAILED)}
    monkeypatch.setattr(command, "_has_gpu", lambda: True)
    monkeypatch.setattr(command, "_machine", dict)
    monkeypatch.setattr(command, "_run_apart", lambda name, **_: results[name])
    assert command.main(["truth", "cost"]) == command.SOME_FAILED
    assert "1 passed, 1 failed, 0 not shown" in capsys.readouterr().out
    assert command.main(["truth"]) == command.OK
