"""`diff` and `diagnose` print by an engine what they print in Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.core.columns.helpers import of_run
from tests.kit.generators.trees import training
from tests.kit.spools.made import encoded
from tests.kit.spools.recorded import SPOOLS, own_spool
from tests.tools.cli.comparing import job
from tests.tools.conftest import Run, one_line, run

from .test_command import written

__all__ = ["run"]

Same = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def same(run: Run, tmp_path: Path) -> Same:
    """Check that DuckDB and Python have the same output, messages and exit code; return them."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        expected = run(*arguments)
        env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = run(*arguments, "--engine", "duckdb", env=env)
        assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout), done.stderr
        assert done.stderr == expected.stderr
        return done

    return call


TRACEML = ("--rules", "traceml")


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """A spool with two runs of a few steps."""
    files = [of_run(1, "first", records=30), of_run(2, "second", records=30)]
    return written(tmp_path / "two", files)


@pytest.mark.parametrize(
    ("a", "b"),
    [("01_torch_basic", "11_diverged_nan"), ("11_diverged_nan", "18_http_wire"),
     ("18_http_wire", "23_sigkill_plus_stray_tmp"), ("07_ranks", "01_torch_basic")],
)  # fmt: skip
def test_recordings(a: str, b: str, same: Same, tmp_path: Path) -> None:
    done = same("diff", own_spool(a, tmp_path), own_spool(b, tmp_path), "--json")
    assert len(json.loads(done.stdout)["phases"]) > 2


def test_texts(same: Same, tmp_path: Path) -> None:
    one, other = (own_spool(name, tmp_path) for name in ("01_torch_basic", "11_diverged_nan"))
    assert "loss" in same("diff", one, other).stdout
    done = same("diagnose", other, *TRACEML, "--set", "warmup.steps=5")
    assert "NON_FINITE" in done.stdout
    assert "NON_FINITE" in same("diagnose", other).stdout


@pytest.mark.parametrize(("forward", "kind", "codes"), [(5, "SAME", (0, 0)), (7, "SLOWER", (6, 6))])
def test_a_slower_run(
    forward: float, kind: str, codes: tuple[int, int], same: Same, tmp_path: Path
) -> None:
    a, b = job(tmp_path / "a", 5), job(tmp_path / "b", forward)
    done = same("diff", a, b, "--fail-on", "warn", "--json")
    assert json.loads(done.stdout)["verdict"] == kind.lower()
    assert (done.returncode, same("diff", a, b, "--fail-on", "crit").returncode) == codes


def test_several_ranks_of_different_length(same: Same, tmp_path: Path) -> None:
    """The medians are those of all ranks; each has its own tenths."""
    files = training(3, 37, seed=1)[:-1]
    a, b = written(tmp_path / "a", training(2, 45)), written(tmp_path / "b", files)
    document = json.loads(same("diff", a, b, "--json").stdout)
    assert document["noise"] > 0
    assert [each["steps"] for each in (document["a"], document["b"])] == [180, 5 * 37]


def test_runs_of_one_spool(same: Same, two_runs: Path) -> None:
    document = json.loads(
        same("diff", two_runs, "--run", "first", "--run", "second", "--json").stdout
    )
    assert [document[side]["run"]["id"] for side in "ab"] == ["first", "second"]
    assert "2 runs; this is the last" in same("diff", two_runs, two_runs).stderr
    document = json.loads(same("diagnose", two_runs, "--run", "all", "--json").stdout)
    assert [each["run"]["id"] for each in document["runs"]] == ["first", "second"]
    verdicts = same("diagnose", two_runs, *TRACEML, "--run", "all", "--json").stdout
    steps = [each["window"]["first"]["step"] for each in json.loads(verdicts)["runs"]]
    assert steps == ["100", "200"]
    assert same("diagnose", two_runs, "--run", "first").stderr == ""
    same("diagnose", two_runs, "--run", "nothing")


def test_a_torn_file_is_reported_once(same: Same, two_runs: Path) -> None:
    (two_runs / "spool" / "0-torn.json").write_bytes(b'{"spans": [')
    done = same("diagnose", two_runs, "--run", "all", "--json")
    assert (done.returncode, done.stderr.count("0-torn.json")) == (1, 1)
    [finding] = json.loads(done.stdout)["skipped"]
    assert finding["name"] == "0-torn.json"
    same("diagnose", two_runs, "--run", "first")
    same("report", two_runs, "--run", "last")
    same("diff", two_runs, two_runs, "--json")


def test_a_spool_without_batches(same: Same, two_runs: Path, tmp_path: Path) -> None:
    empty, torn = written(tmp_path / "empty", []), written(tmp_path / "torn", [("1.json", b"{")])
    assert "0 aligned steps" in same("diagnose", empty, *TRACEML, "--run", "all").stdout
    assert "No step is recorded" in same("diagnose", empty, "--run", "all").stdout
    assert same("diagnose", empty, "--run", "last").returncode == 2
    assert same("diff", empty, two_runs, "--json").returncode == 0
    assert same("diagnose", torn, "--json").returncode == 1
    assert same("report", empty).returncode == 0


def test_the_window_and_the_severity(same: Same, tmp_path: Path) -> None:
    spool = written(tmp_path / "s", training(3, 40))
    done = same("diagnose", spool, *TRACEML, "--window", "60", "--fail-on", "crit", "--json")
    [found] = json.loads(done.stdout)["runs"]
    assert (done.returncode, found["window"]["steps"]) == (6, 60)
    assert found["primary"] == "COMPUTE_STRAGGLER"
    assert same("diagnose", spool, *TRACEML, "--set", "warmup.steps=100").returncode == 0
    done = same("diagnose", spool, "--fail-on", "critical", "--json")
    [found] = json.loads(done.stdout)["runs"]
    severities = {each["severity"] for each in found["findings"]}
    assert (done.returncode == 6) == bool(severities & {"critical", "failure"})


def test_columnar_tables(same: Same, run: Run, tmp_path: Path) -> None:
    spool = written(tmp_path / "s", training(2, 30))
    columns = f"parquet:{tmp_path / 'columns'}"
    assert run("convert", spool, columns).returncode == 0
    same("diff", columns, spool, "--json")
    same("diagnose", columns)


def test_runs_of_columnar_tables(same: Same, run: Run, two_runs: Path, tmp_path: Path) -> None:
    """Other runs are named if only the files of one are read."""
    columns = f"parquet:{tmp_path / 'columns'}"
    assert run("convert", two_runs, columns).returncode == 0
    done = same("diff", columns, "--run", "first", "--run", "second")
    assert [line.split(", ")[1] for line in done.stdout.splitlines()[:2]] == [
        "first: 1 step of 1 rank", "second: 1 step of 1 rank",
    ]  # fmt: skip
    done = same("diagnose", columns, *TRACEML, "--run", "first")
    assert "run first: 1 aligned step" in done.stdout
    for source in (columns, two_runs):
        [found] = json.loads(same("diagnose", source, "--run", "first", "--json").stdout)["runs"]
        assert found["other_runs"] == ["second"]


def test_digests_need_python(run: Run, same: Same, tmp_path: Path) -> None:
    """The verdicts by the rules of TraceML do not depend on digests."""
    plain = training(1, 30)
    files = [(name, data.replace(b'"loss"', b'"digest.loss"')) for name, data in plain]
    a, b = written(tmp_path / "a", plain), written(tmp_path / "b", files)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for sides in ((a, b), (b, a)):
        done = run("diff", *sides, "--json", "--engine", "duckdb", env=env)
        assert done.stdout == run("diff", *sides, "--json").stdout
        note = "note: the run has digests; --engine python computes the comparison"
        assert note in done.stderr
        assert done.stderr.count("\n") == 1
    done = run("diagnose", b, "--engine", "duckdb", env=env)
    assert done.stdout == run("diagnose", b).stdout
    assert "note: the run has digests; --engine python computes the diagnosis" in done.stderr
    same("diagnose", b, *TRACEML)


def test_dropped_marks(same: Same, tmp_path: Path) -> None:
    files = []
    for name, data in training(2, 20):
        batch = json.loads(data)
        for span in batch["spans"]:
            if span["name"] == "cirron.session":
                span["attrs"] = {"drops.marks_buffer_full": 3}
        files.append((name, encoded(batch)))
    spool = written(tmp_path / "s", files)
    document = json.loads(same("diff", spool, spool, "--json").stdout)
    assert document["digests"]["dropped"] == {"a": 6, "b": 6}
    done = same("diff", spool, spool, "--fail-on", "divergence")
    assert (done.returncode, "A dropped 6 marks" in done.stderr) == (1, True)


def test_wrong_use_is_one_line(run: Run, tmp_path: Path) -> None:
    shutil.copytree(SPOOLS / "01_torch_basic", tmp_path / "s")
    (tmp_path / "a.otlp.jsonl").write_text("{}")
    for arguments, message in (
        (("diagnose", "s", "--live"), "--live needs --engine python"),
        (("diagnose", "a.otlp.jsonl"), "convert a.otlp.jsonl to parquet:DIR first"),
        (("diff", "s", "a.otlp.jsonl"), "convert a.otlp.jsonl to parquet:DIR first"),
        (("diff", "s", "-", "--from", "otlp-json"), "convert - to parquet:DIR first"),
    ):
        assert message in one_line(run(*arguments, "--engine", "duckdb"), 2)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run("diff", "s", "nowhere", "--engine", "duckdb", env=env)
    assert "nowhere" in one_line(done, 3)
