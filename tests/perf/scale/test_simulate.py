"""Simulated ranks send to a real collector: nothing is lost, and the straggler is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.targets.sql.conftest import postgres_server
from tests.kit.servers.serving import serving
from tests.kit.spools.comparing import cirron_otel

from .ranks import Job, SimulatedRank
from .simulate import (
    IdSet,
    await_stored,
    main,
    requests_of,
)

__all__ = ["postgres_server"]

RANKS, SECONDS, SEED = 64, 12, 11


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_store_holds_everything_64_ranks_sent(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_server").new_database()
    job = Job.of(RANKS, SECONDS, SEED, 4)
    options = [f"--ranks={RANKS}", f"--minutes={SECONDS / 60}", f"--seed={SEED}", "--budget=4"]
    with serving(tmp_path / "data", "--storage", url) as here:
        assert main([*options, "--to", here.http, "--by-rank"]) == 0
        sent = json.loads(capsys.readouterr().out)
        await_stored(url, sent["batches"], 600)
        assert here.end() == 0
    assert main([*options, "--check", url]) == 0
    assert json.loads(capsys.readouterr().out)["is_equal"] is True
    assert sent["ranks"] == RANKS - 1
    assert sent["requests"] >= RANKS / 8 * SECONDS
    assert sent["spans"] < sent["recorded_spans"] / 4
    assert sent["steps"] > 4 * SECONDS * (RANKS - 1)

    (run,) = cirron_otel("diagnose", url)["runs"]
    assert run["run"]["ranks"] == job.present
    report = cirron_otel("report", url)
    assert report["findings"] == run["findings"]
    stragglers = [each for each in report["findings"] if each["kind"] == "COMPUTE_STRAGGLER"]
    assert stragglers[0]["ranks"] == [job.straggler]
    assert report["summarised_units"] > sent["steps"] / 2
    failures = {(each["rank"], each["state"]) for each in report["failures"]}
    assert failures == {(rank, "killed") for rank in job.restarted}


def test_everything_follows_from_the_seed() -> None:
    def batches(seed: int) -> list[Any]:
        return [each.batch for one in requests_of(Job.of(16, 3, seed, 5)) for each in one.batches]

    assert batches(1) == batches(1)
    assert batches(1) != batches(2)


def test_requests_contain_the_ranks_of_one_node_in_time_order() -> None:
    job = Job.of(20, 4, 2, None)
    requests = list(requests_of(job, per_node=4))
    assert [one.second for one in requests] == sorted(one.second for one in requests)
    assert {one.node for one in requests} == set(range(5))
    for one in requests:
        for each in one.batches:
            ranks = {span["rank"] for span in json.loads(each.batch.data)["spans"]}
            assert all(rank // 4 == one.node for rank in ranks)


def test_the_ranks_of_a_job() -> None:
    job = Job.of(16, 8, 4, None)
    spans: dict[int, list[dict[str, Any]]] = {}
    for rank in job.present:
        batches = [each.batch for each in SimulatedRank(job, rank).batches()]
        spans[rank] = [s for batch in batches for s in json.loads(batch.data)["spans"]]
    assert set(range(16)) - spans.keys() == job.missing
    starts = {rank: min(s["start_ns"] for s in some) for rank, some in spans.items()}
    assert len(set(starts.values())) == len(starts)  # the clocks differ
    (restarted,) = job.restarted
    assert len({span["pid"] for span in spans[restarted]}) == 2
    errors = [(rank, s["name"]) for rank, some in spans.items() for s in some if "otel" in s]
    assert sorted(errors) == sorted(
        [(job.failing, "step"), (restarted, "epoch"), (restarted, "cirron.session")]
    )


def test_a_set_of_ids_does_not_depend_on_the_order() -> None:
    class Span:
        def __init__(self, id_: str) -> None:
            self.id, self.name, self.rank = id_, "step", 0

    one, other = IdSet(), IdSet()
    for id_ in ("01", "02", "ff"):
        one.add(Span(id_))  # type: ignore[arg-type]
    for id_ in ("ff", "01", "02"):
        other.add(Span(id_))  # type: ignore[arg-type]
    assert one == other
    other.add(Span("01"))  # type: ignore[arg-type]
    assert one != other
