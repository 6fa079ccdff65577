"""Runs the real programs and their healthy twins, and scores the reports about them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.program_server import ProgramError
from tests.kit.sessions.processes import ROOT, environment

from .programs import PROGRAMS, Program
from .scoring import Finding, Outcome, is_placed, is_right, outcome
from .truth import NOTICE

_BIN: Final = Path(sys.executable).parent
_FORKED: Final = Path(__file__).parent / "programs" / "forked.py"
_LIMIT_S: Final = 240.0
"""The time limit of a program, far more than it takes."""
_SEVERE: Final = ("failure", "critical")


@dataclass(slots=True)
class RealResult:
    """The report about one run of a program, with its score."""

    program: Program
    is_sick: bool
    findings: Sequence[Finding] = ()
    error: str | None = None
    """Why there is no report."""

    @property
    def outcome(self) -> Outcome:
        """The outcome. Of a twin, only a critical finding or a failure is a false alarm."""
        if self.error is not None:
            return "wrong"
        if not self.is_sick:
            severe = any(each["severity"] in _SEVERE for each in self.findings)
            return "false alarm" if severe else "right first"
        expected, findings = self.program.expected, list(self.findings)
        if self.program.is_notice:
            # Other load on the machine may cause a warning.
            is_severe = any(each["severity"] in _SEVERE for each in findings)
            notices = [each for each in findings if each["severity"] == NOTICE]
            is_first = not is_severe and bool(notices) and is_right(expected, notices[0])
            return "right first" if is_first else "wrong"
        found = outcome([expected], findings)
        first = next((each for each in findings if each["severity"] != NOTICE), None)
        if found == "right first" and first is not None and not is_placed(expected, first):
            return "wrong"  # the units are a part of the truth
        return found

    @property
    def shown(self) -> str:
        """The first findings, for display."""
        if self.error is not None:
            return self.error
        names = ("kind", "severity", "share", "phase", "scope", "ranks", "steps", "every", "moving")
        shown = [
            {name: value for name in names if (value := each[name]) not in (None, [], False)}
            for each in self.findings[:4]
        ]
        return json.dumps(shown)


@dataclass(slots=True)
class RealScore:
    """The results of all runs of a program."""

    program: Program
    results: list[RealResult] = field(default_factory=list)

    def right(self, is_sick: bool) -> str:
        """Return the number of right runs of all runs of a twin."""
        outcomes = [each.outcome for each in self.results if each.is_sick is is_sick]
        return f"{outcomes.count('right first')}/{len(outcomes)}"


class Runner:
    """Runs programs, with an interpreter of its own for each thread of the runner."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._local = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def report_about(
        self, program: Program, is_sick: bool, folder: Path
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Run one twin of a program in an empty folder; return the findings of its report.

        Raises ProgramError if the exit code is not the expected one, or if there is no report.
        """
        recording = folder / "recording"
        words = [program.name, "sick" if is_sick else "twin", str(folder)]
        # Memory and CPU are sampled as in a user's run.
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        variables |= {"CIRRON_SAMPLE_INTERVAL": "1", **dict(program.variables)}
        if program.is_launched:
            done = _run([*_launcher(program, recording), *words], variables)
        else:
            done = self._interpreter.script(
                _FORKED, *words, recording, program.ranks, env=variables
            )
        expected = program.exit_code if is_sick else 0
        if done.returncode != expected and (expected is not None or not done.returncode):
            raise ProgramError(f"exit code {done.returncode}, expected {expected}: {_end_of(done)}")
        done = _run([str(_BIN / "cirron-otel"), "report", str(recording), "--json"], {})
        if done.returncode not in (0, 1):
            raise ProgramError(f"report: exit code {done.returncode}: {_end_of(done)}")
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return findings

    @property
    def _interpreter(self) -> ForkedScripts:
        found: ForkedScripts | None = getattr(self._local, "interpreter", None)
        if found is None:
            found = self._local.interpreter = self._stack.enter_context(ForkedScripts())
        return found


def _launcher(program: Program, recording: Path) -> list[str]:
    """Return the command that runs a program with its arguments in processes of its own."""
    launcher = [sys.executable]
    if program.ranks > 1 or program.restarts:
        launcher = [str(_BIN / "torchrun"), "--standalone", f"--nproc-per-node={program.ranks}",
                    f"--max-restarts={program.restarts}"]  # fmt: skip
    run = [str(_BIN / "cirron-otel"), "run", "--quiet", "--output", str(recording), "--"]
    return [*run, *launcher, "-m", f"{__package__}.programs"]


def _run(
    command: Sequence[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True,
            timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"the command did not end within {_LIMIT_S:.0f} s") from error


def _end_of(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr[-1500:] or done.stdout[-1500:]


def result_of(
    runner: Runner, program: Program, is_sick: bool, keep: Path | None = None
) -> RealResult:
    """Run one twin of a program; return its score. With `keep`, its files are copied there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            result = RealResult(program, is_sick, runner.report_about(program, is_sick, folder))
        except ProgramError as error:
            result = RealResult(program, is_sick, error=str(error))
        if keep is not None:
            target = keep / f"{program.name}-{'sick' if is_sick else 'twin'}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder, target)
        return result


@contextlib.contextmanager
def other_load() -> Iterator[None]:
    """Run a process on each core that uses the CPU all the time."""
    command = [sys.executable, "-S", "-E", "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def score_real(
    name: str, repeat: int, *, is_loaded: bool = False, jobs: int = 1, keep: Path | None = None
) -> int:
    """Run the programs with a text in their names; print a table and the score.

    `jobs` is the number of programs that run at the same time. Return 1 if no name has the text.
    """
    programs = [each for each in PROGRAMS.values() if name in each.name]
    if not programs:
        print(f"no program has a name with {name!r}")
        return 1
    scores = {each.name: RealScore(each) for each in programs}
    runs = [
        (each, is_sick) for _ in range(repeat) for each in programs for is_sick in (True, False)
    ]
    load = other_load() if is_loaded else contextlib.nullcontext()
    with load, Runner() as runner, ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda run: result_of(runner, *run, keep), runs):
            scores[result.program.name].results.append(result)
            _show(result)
    print(f"\n{'program':40s} {'ranks':>5}   sick   twin")
    for score in scores.values():
        shown = f"{score.right(True):>6} {score.right(False):>6}"
        print(f"{score.program.name:40s} {score.program.ranks:>5} {shown}")
    results = [each for score in scores.values() for each in score.results]
    for is_sick, title in ((True, "right first in"), (False, "no critical finding in")):
        of_twin = [each for each in results if each.is_sick is is_sick]
        right = sum(each.outcome == "right first" for each in of_twin)
        print(f"{title} {right} of {len(of_twin)} runs")
    return 0


def _show(result: RealResult) -> None:
    """Print a run that is not right, or whose twin has a warning."""
    twin = "sick" if result.is_sick else "twin"
    print(f"{result.program.name:40s} {twin}  {result.outcome}", flush=True)
    has_warning = any(each["severity"] != NOTICE for each in result.findings)
    if result.outcome != "right first" or (not result.is_sick and has_warning):
        if result.is_sick:
            print(f"    expected {json.dumps(result.program.expected.to_json())}")
        print(f"    found    {result.shown}", flush=True)
