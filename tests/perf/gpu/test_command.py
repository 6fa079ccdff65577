"""The command for the checks that need a GPU, on a machine without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need_torch
from tests.kit.sessions.processes import ROOT, environment

from . import __doc__ as documented
from . import __main__ as command
from . import running


@pytest.fixture(autouse=True)
def _torch() -> None:
    need_torch()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.perf.gpu", *arguments],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_without_a_gpu_it_reports_that_nothing_was_measured() -> None:
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


def test_modules_that_cannot_be_imported_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bare_namespace").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(command, "NEEDED", ("json", "bare_namespace.sdk", "bare_namespace"))
    assert command.main([]) == command.NO_IMPORT
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bare_namespace.sdk cannot be imported: ModuleNotFoundError: ")
    assert lines[1:] == ["install what cirron-otel needs here"]


def test_checks_and_statuses_are_documented() -> None:
    assert documented is not None
    rows = [line.split("|")[1].strip() for line in documented.splitlines() if line[:2] == "| "]
    assert rows == ["check", "---", *command.CHECKS]
    text = documented.replace("\n", " ")
    for status in range(command.SOME_FAILED, command.SOME_NOT_SHOWN + 1):
        assert f"; {status}, " in text
    assert (
        f"within {running.TIMEOUT_S} s, `compiled` within {running.TIMEOUTS['compiled']} s" in text
    )


def test_a_rehearsal_runs_the_programs_of_all_checks() -> None:
    done = _run("--rehearse", "--here")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(running.MARK)]
    told = [json.loads(line.removeprefix(running.MARK)) for line in lines]
    found = {name: each["status"] for name, each in zip(command.CHECKS, told, strict=True)}
    assert found == dict.fromkeys(command.CHECKS, running.PASSED), [each["said"] for each in told]


class TestOutcomes:
    """What is printed, written and returned for checks that came to something."""

    @pytest.fixture(autouse=True)
    def _results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lacking = running.result(running.NOT_SHOWN, "it does not compile")
        failed = running.result(running.FAILED, "wrong") | {"traceback": "line 1", "stderr": "oh"}
        self.results: dict[str, dict[str, Any]] = {
            "truth": running.result(running.PASSED),
            "cost": failed,
            "compiled": lacking,
            "place": lacking | {"lacks": "a C compiler"},
        }
        monkeypatch.setattr(command, "_has_gpu", lambda: True)
        monkeypatch.setattr(command, "_machine", dict)
        monkeypatch.setattr(command, "run_apart", lambda name, **_: self.results[name])

    def test_failed_check_is_reported_with_its_traceback_and_stderr(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["truth", "cost", "compiled"]) == command.SOME_FAILED
        out = capsys.readouterr().out
        assert "failed    cost: wrong\n    line 1\n    oh\n" in out
        assert "1 passed, 1 failed, 1 not shown" in out
        assert command.main(["truth"]) == command.OK

    def test_check_not_shown_is_a_failure_unless_the_machine_lacks_something(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["truth", "compiled"]) == command.SOME_NOT_SHOWN
        assert "0 failed, 1 not shown (compiled: it does not compile)" in capsys.readouterr().out
        assert command.main(["truth", "place"]) == command.OK
        assert "(place: the machine lacks a C compiler)" in capsys.readouterr().out

    def test_results_so_far_are_written_after_each_check(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        path = tmp_path / "told.json"
        before: list[list[str]] = []

        def run(name: str, **_: Any) -> dict[str, Any]:
            before.append(list(json.loads(path.read_text())["checks"]) if path.exists() else [])
            return self.results[name]

        monkeypatch.setattr(command, "run_apart", run)
        command.main(["truth", "cost", "place", "--json", str(path)])
        assert before == [[], ["truth"], ["truth", "cost"]]
        assert json.loads(path.read_text())["checks"]["cost"] == self.results["cost"]
