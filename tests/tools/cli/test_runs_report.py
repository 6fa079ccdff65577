"""`runs report`: the figures of many runs, by a key."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cirron_otel import exactjson
from cirron_otel.core.analysis.run_keys import KEYS
from cirron_otel.core.analysis.runs import read_runs
from cirron_otel.core.run.findings.conclude import findings_of
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.phase_times import PhaseTimes
from tests.kit.sessions.processes import environment
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    span,
)
from tests.kit.spools.recorded import SPOOLS
from tests.kit.spools.reports import reported
from tests.tools.convert.rows import places

DOCS = Path(__file__).parents[3] / "docs"
PROGRAM = """
import cirron_otel as ci

RUNS = (("resnet-a", "ResNet", 2), ("resnet-b", "ResNet", 5), ("plain", None, 3))
for name, model, steps in RUNS:
    config = {"lr": 0.1} | ({"model": model} if model else {})
    ci.profile(name=name, frameworks="none", config=config)
    for epoch in ci.epochs(range(2)):
        for step in ci.batches(range(steps)):
            with ci.scope("forward"):
                pass
    ci.shutdown()
"""
KILLED = """
import os
import cirron_otel as ci

ci.profile(name="killed", frameworks="none", config={"model": "ResNet"})
with ci.scope("step", 0):
    pass
ci.flush()
with ci.scope("step", 1):
    os.kill(os.getpid(), 9)
"""
FAILED = """
import cirron_otel as ci

ci.profile(name="failed", frameworks="none", config={"model": "ResNet"})
with ci.scope("step", 0):
    raise ValueError("too large")
"""


class Reported(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    def groups(self, key: str) -> dict[Any, dict[str, Any]]:
        """The groups by their only key."""
        return {each["key"][key]: each for each in self.document["groups"]}


Report = Callable[..., Reported]


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Report:
    """Run `cirron-otel runs report` in the test's directory and in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Reported:
        capsys.readouterr()
        code = run_command(["runs", "report", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Reported(code, out, err)

    return call


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spool of five runs: three that ended well, one that failed, and one that was killed."""
    directory = tmp_path_factory.mktemp("runs")
    for program, code in ((PROGRAM, 0), (FAILED, 1), (KILLED, -9)):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=directory, env=environment(), check=False,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    return directory / ".cirron"


def stamped(folder: Path, name: str, number: int, **changes: Any) -> Path:
    """Write a spool with a run of one step; `changes` are resource attributes."""
    attributes = {"cirron.run.id": f"{number:032x}", "cirron.run.name": name, **changes}
    first = number * 1000
    batch = made(
        number * 86_400,
        spans=[
            span(first + n, start_ns=EPOCH_NS + number * 86_400 * 10**9, end_ns=EPOCH_NS + number
                 * 86_400 * 10**9 + 1000 * (n + 1))
            for n in range(3)
        ],
        otel={"session": f"{number:032x}", "resource": {"attributes": attributes}},
    )  # fmt: skip
    spool = folder / "spool"
    spool.mkdir(parents=True, exist_ok=True)
    path = spool / f"{batch['created_ns']:020d}-{number:032x}.json"
    path.write_bytes(encoded(batch))
    return path


def test_the_runs_of_a_spool_by_model(report: Report, recorded: Path) -> None:
    result = report(recorded, "--group-by", "model", "--json")
    assert (result.code, result.err) == (0, "")
    document = result.document
    groups = result.groups("model")
    assert [*groups] == ["ResNet", None]
    resnet, plain = groups["ResNet"], groups[None]
    assert resnet["statuses"] == {"closed": 2, "failed": 1, "killed": 1}
    assert (resnet["runs"], plain["runs"]) == (4, 1)
    assert (resnet["steps"]["times"], plain["steps"]["times"]) == (2 * 2 + 2 * 5 + 1 + 1, 2 * 3)
    assert resnet["oldest"]["name"] == "resnet-a"
    assert resnet["newest"]["name"] == "killed"
    assert (document["run_count"], document["runs_outside"]) == (5, 0)
    assert document["total"]["steps"]["times"] == 16 + 6
    runs = {run.name: run for run in read_runs(SpoolReader(recorded)).runs}
    durations = {name: run.duration_ns or 0 for name, run in runs.items()}
    assert plain["duration_ns"] == durations.pop("plain")
    assert resnet["duration_ns"] == sum(durations.values())
    for group in (resnet, plain):
        parts = [*(each["total_ns"] for each in group["phases"]), group["unattributed"]["total_ns"]]
        assert sum(parts) == group["steps"]["total_ns"]
        # The run with two ranks has the time of its extent for each of them.
        assert sum(row["ns"] for row in group["time"]) >= group["rank_ns"] > 0
        assert sum(row["share"] for row in group["time"]) == pytest.approx(1)


def test_totals_match_the_reports_of_the_individual_runs(report: Report) -> None:
    """For every recording: the steps, the phases and the findings of all of its runs."""
    for spool in (*sorted(SPOOLS.glob("*/.cirron")), RECORDING):
        reader = SpoolReader(spool)
        expected, phases = PhaseTimes("step"), Counter[str]()
        first, time, runs = Counter[str](), 0, read_runs(reader).runs
        for run in runs:
            of_run = reported(SpoolReader(spool, only=run.batches), durations=True)
            for rank in of_run.ranks:
                expected.durations.extend(rank.steps.steps.durations)
                phases.update({each.name: each.total_ns for each in rank.steps.phases})
            time += run.duration_ns or 0
            with open_run(SpoolReader(spool, only=run.batches)) as opened:
                found = findings_of(opened, world_size=run.world_size)
            first.update([each.kind for each in found if each.severity != "notice"][:1])
        result = report(spool, "--json")
        total = result.document["total"]
        assert total["runs"] == len(runs), spool
        assert total["duration_ns"] == time
        assert total["steps"] == expected.figures().to_json()
        assert {each["name"]: each["total_ns"] for each in total["phases"]} == phases
        assert total["first_findings"] == first
        assert sum(total["conclusions"].values()) == len(runs)
        assert result.code == (1 if reader.skipped else 0)


@pytest.mark.parametrize("name", sorted(places.SOURCES.keys() - {"tar"}))
def test_every_source_has_the_same_figures(report: Report, name: str, tmp_path: Path) -> None:
    spool = places.spool_for(name, tmp_path)
    expected = report(spool, "--group-by", "host", "--json").document
    with places.SOURCES[name].intact(spool, tmp_path) as source:
        options = () if source.format is None else ("--from", source.format)
        result = report(source.argument, *options, "--group-by", "host", "--json")
    assert (result.code, result.err) == (0, "")
    for key in ("groups", "total", "run_count", "batches_unassigned", "skipped"):
        assert result.document[key] == expected[key], key
    assert result.document["run_count"] > 0


def test_spools_at_any_depth(report: Report, recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "nightly" / "7" / ".cirron")
    stamped(tmp_path / "nightly" / "8", "bare", 1)
    stamped(tmp_path / ".cirron", "own", 2)
    stamped(tmp_path / "nightly" / ".git", "hidden", 3)
    (tmp_path / "loop").symlink_to(tmp_path / "nightly")
    (tmp_path / "nightly" / "data" / "spool").mkdir(parents=True)
    assert report(".", "--json").document["run_count"] == 5 + 1 + 1
    assert report("nightly", "--json").document["run_count"] == 5 + 1
    assert report("--json").document["run_count"] == 1
    result = report("nightly/data/spool")
    assert (result.code, result.out) == (0, "nightly/data/spool: 0 runs\n")


def test_a_directory_in_another_format(report: Report, recorded: Path, tmp_path: Path) -> None:
    convert(ConvertRequest(str(recorded), f"parquet:{tmp_path}/tables"))
    assert report("tables", "--from", "parquet", "--json").document["run_count"] == 5
    assert report("parquet:tables", "--json").document["run_count"] == 5


def test_parts_and_copies_of_a_run_are_one_run(report: Report, tmp_path: Path) -> None:
    """Two nodes that record into spools of their own, and a copy of one of these."""
    for node in ("one", "two"):
        path = stamped(tmp_path / node, "wide", 5, **{"host.name": node})
        if node == "two":
            batch = exactjson.loads(path.read_bytes())
            batch["batch_id"], batch["otel"]["session"] = "e" * 32, "f" * 32
            for number, each in enumerate(batch["spans"]):
                each.update(id=f"{number:032x}", rank=1)
            path.unlink()
            (path.parent / f"{batch['created_ns']:020d}-{'e' * 32}.json").write_bytes(
                exactjson.dumps(batch)
            )
    shutil.copytree(tmp_path / "one", tmp_path / "three")
    result = report(".", "--group-by", "host", "--group-by", "ranks", "--json")
    (group,) = result.document["groups"]
    assert group["key"] == {"host": ["one", "two"], "ranks": 2}
    assert (group["runs"], group["steps"]["times"]) == (1, 6)
    assert "one, two" in report(".", "--group-by", "host").out


def test_a_period(report: Report, tmp_path: Path) -> None:
    for number in range(1, 5):
        stamped(tmp_path / ".cirron", f"run-{number}", number)

    def names(*options: str) -> list[str]:
        result = report("--group-by", "name", "--json", *options)
        assert result.code == 0
        assert result.document["runs_outside"] == 4 - result.document["run_count"]
        return sorted(each["key"]["name"] for each in result.document["groups"])

    assert names() == ["run-1", "run-2", "run-3", "run-4"]
    assert names("--since", "2026-11-23") == ["run-3", "run-4"]
    assert names("--since", "2026-11-22", "--until", "2026-11-24T00:00:00Z") == ["run-2", "run-3"]
    assert names("--until", "2026-11-22") == ["run-1"]
    assert names("--since", "1s") == names("--until", "30000d") == []
    result = report("--since", "yesterday")
    assert (result.code, result.out) == (2, "")
    assert "--since" in result.err
    assert "'yesterday' is not a time" in result.err


def test_groups_are_equal_values_of_one_type(report: Report, tmp_path: Path) -> None:
    """1, 1.0, "1" and true are four values; runs without a value are a group, which is last."""
    for number, value in enumerate((1, 1.0, "1", True, None, ["a", "b"], {"a": 1}, 1), 1):
        changes = {} if value is None else {"cirron.config.size": value}
        stamped(tmp_path / ".cirron", "run", number, **changes)
    for key in ("size", "config.size", "cirron.config.size"):
        document = report("--group-by", key, "--json").document
        values = [(each["key"][key], each["runs"]) for each in document["groups"]]
        assert len(values) == 7
        assert values[-1] == (None, 1)
        assert sum(runs for _, runs in values) == document["run_count"] == 8
    assert report("--group-by", "nothing", "--json").groups("nothing")[None]["runs"] == 8


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("model", {"ResNet": 4, None: 1}),
        ("lr", {0.1: 3, None: 2}),
        ("name", {"resnet-a": 1, "resnet-b": 1, "plain": 1, "killed": 1, "failed": 1}),
        ("prefix", {"resnet": 2, "plain": 1, "killed": 1, "failed": 1}),
        ("ranks", {1: 5}),
        ("status", {"closed": 3, "failed": 1, "killed": 1}),
        ("gpu", {None: 5}),
        ("framework", {None: 5}),
    ],
)
def test_keys(report: Report, recorded: Path, key: str, expected: dict[Any, int]) -> None:
    groups = report(recorded, "--group-by", key, "--json").groups(key)
    assert {value: group["runs"] for value, group in groups.items()} == expected


def test_runs_are_grouped_by_their_first_finding(report: Report, recorded: Path) -> None:
    groups = report(recorded, "--group-by", "finding", "--json").groups("finding")
    assert (groups["FAILED"]["runs"], groups["KILLED"]["runs"]) == (1, 1)
    assert groups["FAILED"]["conclusions"] == {"failed": 1}
    assert sum(each["runs"] for each in groups.values()) == 5


def test_the_page_lists_the_keys() -> None:
    section = (DOCS / "cli.md").read_text().partition("\n## runs report")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ", section.partition("| KEY |")[2], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(KEYS)


def test_keys_of_the_machine(report: Report, recorded: Path) -> None:
    groups = report(recorded, "--group-by", "host", "--json").groups("host")
    assert {value: group["runs"] for value, group in groups.items()} == {os.uname().nodename: 5}


def test_model_without_a_configuration_is_taken_from_the_forward_spans(report: Report) -> None:
    assert [*report(RECORDING, "--group-by", "model", "--json").groups("model")] == ["Sequential"]
    assert [*report(RECORDING, "--group-by", "framework", "--json").groups("framework")] == [
        "torch"
    ]
    sdk = SPOOLS / "01_torch_basic"
    assert [*report(sdk, "--group-by", "framework", "--json").groups("framework")] == ["torch"]
    for key in ("name", "prefix"):  # cirron-sdk's runs have none
        assert [*report(sdk, "--group-by", key, "--json").groups(key)] == [None]


def test_trainers_are_recognised_by_their_configuration(report: Report, tmp_path: Path) -> None:
    recorded: tuple[dict[str, Any], ...] = (
        {"model.class": "Bert", "num_train_epochs": 3.0}, {"model": "M", "trainer.strategy": "ddp"},
        {"model": "M", "steps_per_execution": 1}, {"model": "M", "num_train_epochs": 3},
    )  # fmt: skip
    for number, values in enumerate(recorded, 1):
        attributes = {f"cirron.config.{key}": value for key, value in values.items()}
        stamped(
            tmp_path / ".cirron", "run", number, **attributes, **{"cirron.torch.version": "2.9"}
        )
    groups = report("--group-by", "framework", "--json").groups("framework")
    assert {*groups} == {"transformers", "lightning", "keras", "torch"}


def test_two_keys(report: Report, recorded: Path) -> None:
    result = report(recorded, "--group-by", "status", "--group-by", "model", "--json")
    keys = {tuple(each["key"].items()): each["runs"] for each in result.document["groups"]}
    assert keys[("status", "closed"), ("model", "ResNet")] == 2
    assert sum(keys.values()) == 5


def test_the_text(report: Report, recorded: Path) -> None:
    result = report(recorded, "--group-by", "model", "--since", "1d")
    assert (result.code, result.err) == (0, "")
    head, _, columns, _, *lines = result.out.splitlines()
    assert head.startswith(f"{recorded}: 5 runs, since ")
    assert columns.split() == ["model", "runs", "status", "time", "rank", "time", "GPU", "time"]
    assert [line.split()[0] for line in lines[:3]] == ["ResNet", "(none)", "all"]
    assert "2 closed, 1 failed, 1 killed" in lines[0]
    assert "failed 2" in result.out
    assert "FAILED 1" in result.out
    assert re.search(r" forward \d+\.\d %, unattributed \d+\.\d %$", result.out, re.MULTILINE)
    alone = report(recorded).out.splitlines()
    assert [line.split()[:2] for line in alone[4:5]] == [["all", "5"]]


def test_odd_names_cannot_reach_the_terminal(report: Report, tmp_path: Path) -> None:
    odd = "\x1b[31m[red]\n=cmd|' /C'!A0"
    stamped(tmp_path / ".cirron", odd, 1, **{"cirron.config.model": odd, odd: odd})
    for key in ("model", "name", odd):
        result = report("--group-by", key)
        assert result.code == 0
        assert "\x1b" not in result.out
        assert r"\x1b[31m[red]\n=cmd" in result.out
        assert [*report("--group-by", key, "--json").groups(key)] == [odd]


@pytest.mark.parametrize("name", sorted(places.SOURCES.keys() - {"postgresql", "tar"}))
def test_a_damaged_source_is_reported_and_the_others_count(
    report: Report, name: str, tmp_path: Path
) -> None:
    """`--from` is the format of all sources: a file that needs it is the only one."""
    stamped(tmp_path / "whole", "whole", 1)
    with places.SOURCES[name].damaged(tmp_path) as source:
        if source.format is not None:
            assert report(source.argument, "--from", source.format, "--json").code in (1, 3)
            return
        result = report(source.argument, "whole", "--group-by", "name", "--json")
    assert result.code == 1
    assert "cirron-otel: " in result.err
    assert result.document["skipped"]
    assert result.groups("name")["whole"]["runs"] == 1


def test_absent_sources(report: Report, tmp_path: Path) -> None:
    stamped(tmp_path / "whole", "whole", 1)
    result = report("absent", "whole", "sqlite:///absent.db", "--json")
    assert (result.code, result.document["run_count"]) == (1, 1)
    assert [each["name"] for each in result.document["skipped"]] == [
        "absent", "sqlite:///absent.db",
    ]  # fmt: skip
    result = report("absent", "sqlite:///absent.db")
    assert (result.code, result.out) == (3, "")
    (tmp_path / "empty").mkdir()
    result = report("empty")
    assert (result.code, result.out) == (3, "")
    assert "contains no spool, at any depth" in result.err
    (tmp_path / "empty" / "batches" / "run=r").mkdir(parents=True)
    assert "contains columnar tables: name them parquet:empty" in report("empty").err
    assert report("whole", "jaeger:nonsense").code == 2
    assert report("--group-by", "").code == 2


def test_a_torn_batch_is_a_finding_of_its_source(report: Report, tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = stamped(tmp_path / "all" / name, name, ord(name))
    (path.parent / "99999999999999999999-torn.json").write_bytes(b"{")
    result = report("all", "--json")
    assert (result.code, result.document["run_count"]) == (1, 2)
    (finding,) = result.document["skipped"]
    assert finding["name"].startswith("all/b: 9999")


def test_each_batch_is_read_twice_however_many_runs_there_are(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the list of the runs, and once for the figures of its run."""
    for number in range(1, 31):
        stamped(tmp_path / ".cirron", f"run-{number}", number)
    reads = Counter[str]()
    read = SpoolReader.read

    def counted(self: SpoolReader, name: str, *, check: bool = True) -> Any:
        reads[name] += 1
        return read(self, name, check=check)

    monkeypatch.setattr(SpoolReader, "read", counted)
    assert report("--group-by", "host").code == 0
    assert {*reads.values()} == {2}
    assert len(reads) == 30


def test_device_time_is_summed_over_phases_or_else_over_steps(
    report: Report, tmp_path: Path
) -> None:
    """A phase inside another one counts once; the job's process is no rank."""
    at = EPOCH_NS
    spans = [
        span(1, start_ns=at, end_ns=at + 1000, gpu_ns=700),
        span(2, 1, name="outer", start_ns=at, end_ns=at + 900, gpu_ns=600),
        span(3, 2, name="forward", start_ns=at, end_ns=at + 400, gpu_ns=250),
        span(4, start_ns=at + 2000, end_ns=at + 3000, gpu_ns=40),
        span(5, start_ns=at + 4000, end_ns=at + 5000),
        span(6, start_ns=at, end_ns=at + 1000, rank=1),
        span(7, name="cirron.job", index=None, start_ns=at, end_ns=at + 9000, rank=None),
    ]
    attributes = {"cirron.run.id": "a" * 32, "cirron.run.name": "device"}
    batch = made(1, spans=spans, otel={"session": "b" * 32, "resource": {"attributes": attributes}})
    (tmp_path / ".cirron" / "spool").mkdir(parents=True)
    name = f"{batch['created_ns']:020d}-{batch['batch_id']}.json"
    (tmp_path / ".cirron" / "spool" / name).write_bytes(encoded(batch))
    total = report("--json").document["total"]
    assert total["gpu_ns"] == 600 + 40
    assert total["rank_ns"] == 5000 + 1000
    assert total["duration_ns"] == 9000
    assert {each["name"]: each["total_ns"] for each in total["phases"]} == {
        "outer": 500, "forward": 400,
    }  # fmt: skip
    assert total["unattributed"]["total_ns"] == 4000 - 900
    assert "640 ns" in report().out


def test_without_a_run(report: Report, tmp_path: Path) -> None:
    (tmp_path / ".cirron" / "spool").mkdir(parents=True)
    result = report("--group-by", "model")
    assert (result.code, result.out, result.err) == (0, ".cirron: 0 runs\n", "")
    document = report("--json").document
    assert (document["groups"], document["total"]["runs"]) == ([], 0)


def test_medians_are_over_all_steps(report: Report, tmp_path: Path) -> None:
    durations = []
    for number in range(1, 6):
        stamped(tmp_path / ".cirron", "run", number)
        durations += [1000, 2000, 3000]
    steps = report("--json").document["total"]["steps"]
    assert steps["median_ns"] == statistics.median(durations)
    assert (steps["p95_ns"], steps["max_ns"]) == (3000, 3000)
