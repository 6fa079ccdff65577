"""`diagnose --live`: verdicts appear and go while a real job runs; the ring is bounded."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.verdicts.live import LiveRun, changes_of
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.analysis.verdicts.verdict import Verdict
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.tools.cli.main import run as run_command
from tests.kit.servers.serving import serving
from tests.kit.sessions.processes import ROOT, environment, running

from .growing import CALM, SLOW, GrowingSpool
from .records import MS, START

PROGRAM = [sys.executable, "tests/core/analysis/verdicts/programs/changing.py"]
COMMAND = [sys.executable, "-m", "cirron_otel", "diagnose"]
LIVE = [*COMMAND, "--live", "--rules", "traceml"]


def follow(
    spool: Path, seen: Path, *options: str, job: list[str]
) -> tuple[int, list[dict[str, Any]]]:
    """Follow a job from its start; return the exit code and the events."""
    (spool / "spool").mkdir(parents=True, exist_ok=True)
    before = set(spool.glob("state/owner-*.lock"))
    with running(job) as training:
        while not set(spool.glob("state/owner-*.lock")) - before and training.poll() is None:
            time.sleep(0.05)
        with follower(spool, seen, *options) as process:
            code, found = watch(process, seen)
        assert training.wait(180) == 0
    return code, found


@contextlib.contextmanager
def follower(source: object, seen: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run a follower of a job, whose errors are written to `seen`."""
    command = [*LIVE, str(source), "--json", "--window", "20", *options]
    with (
        (seen / "errors").open("w") as errors,
        running(command, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        yield process


def watch(process: subprocess.Popen[str], seen: Path) -> tuple[int, list[dict[str, Any]]]:
    """Create a file in `seen` for each verdict that appears or goes, until the follower ends.

    The job waits for these files, so a follower that ends before the job is an error.
    """
    found: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        found.append(event := json.loads(line))
        if "verdict" in event:
            mention(seen, event)
    code = process.wait()
    problem = f"exit code {code}: {found[-1:]}\n{(seen / 'errors').read_text()}"
    assert found[-1:], problem
    assert found[-1]["event"] == "ended", problem
    return code, found


def mention(seen: Path, event: dict[str, Any]) -> None:
    kind = event["verdict"]["kind"]
    appeared = seen / f"appeared {kind}"
    if event["event"] == "gone":
        if appeared.exists():
            (seen / f"gone {kind}").touch()
    elif kind != "STALLED" or is_of_the_job(event):
        appeared.touch()


def is_of_the_job(event: dict[str, Any]) -> bool:
    """Whether the job itself stalls: on a busy machine, a step may take as long."""
    verdict = event.get("verdict", {})
    return verdict.get("kind") == "STALLED" and verdict["phase"] in (None, "exchange")


def kinds(events: list[dict[str, Any]], change: str) -> list[str]:
    return [each["verdict"]["kind"] for each in events if each["event"] == change]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The events of a job that loads slowly for a while, and then stalls."""
    spool, seen = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("seen")
    job = [*PROGRAM, str(spool), str(seen), "stall"]
    code, found = follow(spool, seen, "--fail-on", "crit", job=job)
    assert code == 6
    return found


def test_a_verdict_appears_and_goes(events: list[dict[str, Any]]) -> None:
    appeared, gone = kinds(events, "appeared"), kinds(events, "gone")
    assert "INPUT_BOUND" in appeared
    assert "INPUT_BOUND" in gone
    assert len({json.dumps(each["run"]) for each in events}) == 1


def test_a_stall_names_the_open_scope(events: list[dict[str, Any]]) -> None:
    stall = next(filter(is_of_the_job, events))
    assert stall["event"] in ("appeared", "changed")
    assert stall["verdict"]["phase"] == "exchange"
    assert stall["verdict"]["evidence"]["open_scopes"][-2:] == ["step", "exchange"]
    assert "STALLED" in kinds(events, "gone")


def test_it_ends_with_the_run(events: list[dict[str, Any]]) -> None:
    assert [each["event"] for each in events].count("ended") == 1
    assert events[-1]["event"] == "ended"


def is_stored(database: Path) -> bool:
    """Whether the database has a batch."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened,
    ):
        return bool(opened.execute('SELECT count(*) FROM "TraceBatch"').fetchone()[0])
    return False


@pytest.fixture(scope="module")
def received(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """The exit codes and the events of two followers of a job that a collector receives."""
    folder = tmp_path_factory.mktemp("received")
    database = folder / "traces.db"
    with serving(folder / "received", "--storage", f"sqlite:///{database}") as collector:
        sources = {"storage": f"sqlite:///{database}", "spool": str(collector.folder)}
        variables = environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.http, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            CIRRON_EXPORTERS="otlp",
        )  # fmt: skip
        for place in sources:
            (folder / place).mkdir()
        job = [*PROGRAM, str(folder / "job"), *(str(folder / place) for place in sources), "stall"]
        # The pool waits for its threads, which end once the followers are killed.
        with ThreadPoolExecutor() as pool, contextlib.ExitStack() as processes:
            training = processes.enter_context(running(job, env=variables))
            while not is_stored(database) and training.poll() is None:
                time.sleep(0.05)
            watched = {}
            for place, source in sources.items():
                process = processes.enter_context(follower(source, folder / place))
                watched[place] = pool.submit(watch, process, folder / place)
            for each in as_completed(watched.values()):
                each.result()  # raises if this follower has failed, while the other one runs
            assert training.wait(180) == 0
    return {place: each.result() for place, each in watched.items()}


@pytest.mark.parametrize("place", ["spool", "storage"])
def test_a_run_that_a_collector_receives(
    received: dict[str, tuple[int, list[dict[str, Any]]]], place: str
) -> None:
    """The spool of the collector has no journal of the job, so open scopes are unknown."""
    code, found = received[place]
    assert code == 0
    assert "INPUT_BOUND" in kinds(found, "gone")
    stall = next(each["verdict"] for each in found if "STALLED" in str(each))
    assert (stall["phase"], stall["evidence"]["open_scopes"]) == (None, [])
    assert found[-1]["event"] == "ended"


def test_waiting_for_a_run_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    with subprocess.Popen(
        [*LIVE, str(tmp_path)], cwd=ROOT, env=environment(),
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        assert command.stderr is not None
        assert command.stderr.readline().endswith("the spool has no run yet: waiting for one\n")
        spool = GrowingSpool(tmp_path)
        spool.write(30, CALM)
        spool.end()
        out, err = command.communicate(timeout=180)
    assert command.returncode == 0
    assert "waiting" not in err
    assert "the run has ended" in out


def test_an_older_run_is_not_followed(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, str(tmp_path)], cwd=ROOT, env=environment(), check=True, capture_output=True
    )
    assert done.returncode == 0
    seen = tmp_path / "seen"
    seen.mkdir()
    code, found = follow(tmp_path, seen, job=[*PROGRAM, str(tmp_path), str(seen)])
    assert code == 0
    last = json.loads(_diagnosis(tmp_path))["runs"][0]
    assert len(last["other_runs"]) == 1
    assert found[-1] == {**found[-1], "event": "ended", "run": last["run"]}
    assert "INPUT_BOUND" in kinds([each for each in found if each["run"] == last["run"]], "gone")


def _diagnosis(spool: Path) -> str:
    return subprocess.run(
        [*COMMAND, str(spool), "--rules", "traceml", "--json"], cwd=ROOT, env=environment(),
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((str(ROOT / "tests/testdata/traceml/v050/ddp2_short/frames"),), ""),
        ((".", "--run", "all"), "--live follows one run"),
    ],
)
def test_wrong_usage(
    tmp_path: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "spool").mkdir()
    monkeypatch.chdir(tmp_path)
    code = run_command(["diagnose", *words, "--live"])
    err = capsys.readouterr().err
    assert code in (2, 3)
    assert message in err
    assert len(err.splitlines()) == 1


def test_only_the_last_batches_are_indexed(tmp_path: Path) -> None:
    spool = GrowingSpool(tmp_path)
    live = LiveRun(SpoolReader(tmp_path), None, thresholds_of("live", ["window.steps=20"]))
    assert live.poll(START) is None
    for number in range(200):
        spool.write(5, SLOW if 100 <= number < 150 else CALM)
        found = live.poll(spool.records.at)
        assert found is not None
        assert found.steps == min(5 * (number + 1), 20)
        assert len(live.followed.recent.names()) <= 9
        if number in (99, 110, 155):
            assert (found.primary.kind == "INPUT_BOUND") == (number == 110)
    assert not live.followed.has_ended
    spool.end()
    live.poll(spool.records.at)
    assert live.followed.has_ended


def test_a_large_spool_is_read_batch_by_batch(tmp_path: Path) -> None:
    spool, size = GrowingSpool(tmp_path), 0
    for _ in range(100):
        spool.write(5, CALM | {"x" * 50_000: 1})
        size += 250_000
    live = LiveRun(SpoolReader(tmp_path), None, thresholds_of("live", ["window.steps=20"]))
    tracemalloc.start()
    try:
        assert live.poll(spool.records.at) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 4


def test_long_batches_of_one_rank_may_arrive_first(tmp_path: Path) -> None:
    """A batch with more steps than two windows does not displace those of the other ranks."""
    ranks = [GrowingSpool(tmp_path, rank) for rank in (0, 1)]
    live = LiveRun(SpoolReader(tmp_path), None, thresholds_of("live", ["window.steps=20"]))
    for rank in ranks:
        rank.write(60, CALM)
    for _ in range(8):
        for rank in ranks:
            rank.write(60, CALM)
            found = live.poll(rank.records.at)
            assert found is not None
            assert found.steps == 20
    assert len(live.followed.recent.names()) <= 10


def test_ranks_are_aligned_while_they_run(tmp_path: Path) -> None:
    ranks = [GrowingSpool(tmp_path, rank) for rank in (0, 1)]
    live = LiveRun(SpoolReader(tmp_path), None, thresholds_of("live", ["window.steps=20"]))
    for _ in range(10):
        ranks[0].write(5, CALM)
        ranks[1].write(5, CALM | {"data_load": 10})
    found = live.poll(ranks[1].records.at)
    assert found is not None
    assert (found.ranks, found.primary.kind) == ([0, 1], "INPUT_STRAGGLER")
    ranks[0].end()
    live.poll(ranks[1].records.at)
    assert not live.followed.has_ended


def test_the_silence_of_a_rank(tmp_path: Path) -> None:
    """It counts from the poll that saw the last step, and only while the rank runs."""
    spool, second = GrowingSpool(tmp_path), 1000 * MS
    live = LiveRun(SpoolReader(tmp_path), None, thresholds_of("live"))
    spool.write(30, CALM)
    now = spool.records.at + 3600 * second  # another clock
    spool.write(30, CALM)
    live.poll(spool.records.at)
    spool.write(1, CALM)
    for seconds, expected in ((0, False), (2.9, False), (3, True)):
        found = live.poll(now + round(seconds * second))
        assert found is not None
        assert ("STALLED" in {each.kind for each in found.verdicts}) == expected
    spool.end()
    found = live.poll(now + 5 * second)
    assert found is not None
    assert "STALLED" not in {each.kind for each in found.verdicts}


def test_changes() -> None:
    def verdict(kind: Any, severity: Any = "warn", ranks: tuple[int, ...] = (0,)) -> Verdict:
        return Verdict(kind, severity, "why", "next", list(ranks))

    def changes(before: list[Verdict], after: list[Verdict]) -> Iterator[tuple[str, str]]:
        return ((change, each.kind) for change, each in changes_of(before, after))

    one, other = verdict("INPUT_BOUND"), verdict("WAIT_HEAVY")
    assert list(changes([], [one])) == [("appeared", "INPUT_BOUND")]
    assert list(changes([one], [verdict("INPUT_BOUND")])) == []
    assert list(changes([one], [verdict("INPUT_BOUND", "crit")])) == [("changed", "INPUT_BOUND")]
    assert list(changes([one], [verdict("INPUT_BOUND", ranks=(1,))])) == [
        ("changed", "INPUT_BOUND")
    ]
    assert list(changes([one], [other])) == [("gone", "INPUT_BOUND"), ("appeared", "WAIT_HEAVY")]
