"""Programs that train, without a word of tracing in them, below `cirron-otel run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.servers.server import OtlpServer
from tests.kit.sessions.spool_trees import Node

from .running import (
    BIN,
    job_of,
    others,
    program,
    run,
    spool_of,
    start_to_end,
)

pytestmark = pytest.mark.torch
PHASES = ["data_load", "zero_grad", "forward", "backward", "optimizer_step"]
SYNTHETIC = {"cirron.batch", "cirron.running"}
INSTRUMENT = str(BIN / "opentelemetry-instrument")


@pytest.fixture
def server() -> Iterator[OtlpServer]:
    with OtlpServer() as running:
        yield running


def check(session: Node, epochs: int = 2) -> None:
    """See that a session is a whole training."""
    assert [(each.name, each.record["index"]) for each in session.children] == [
        ("epoch", number) for number in range(epochs)
    ]
    for epoch in session.children:
        assert [each.name for each in epoch.children] == ["step"] * 2
        for step in epoch.children:
            assert [each.name for each in step.children] == PHASES


def sent(server: OtlpServer) -> dict[bytes, tuple[str, bytes, bytes]]:
    """Name, trace and parent of what a server got, by span id."""
    return {
        span.span_id: (span.name, span.trace_id, span.parent_span_id)
        for request in server.requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


@pytest.mark.slow
def test_torchrun_gives_one_trace(tmp_path: Path, server: OtlpServer) -> None:
    """Job, two ranks, epochs, steps, phases; the agent of torchrun has no session."""
    words = [str(BIN / "torchrun"), "--nproc-per-node=2", "--standalone"]
    words += program("training")[1:]
    done = run(tmp_path, "--", *words, env=server.environ)
    assert done.returncode == 0, done.stderr
    spool = spool_of(tmp_path)
    job = job_of(spool)
    ranks = others(spool)
    assert sorted(each.record["rank"] for each in ranks) == [0, 1]
    assert job.record["attrs"]["world_size"] == 2
    resources = [each["otel"]["resource"]["attributes"] for each in spool.batches]
    assert len({each["cirron.run.id"] for each in resources}) == 1
    assert {each["cirron.run.script"] for each in resources} == {"training"}
    for each in ranks:
        check(each)
        assert each.record["otel"]["parent_span_id"] == job.record["id"][:16]
    spans = sent(server)
    recorded = {bytes.fromhex(span["id"][:16]) for span in spool.spans}
    assert recorded <= set(spans)
    trace = bytes.fromhex(job.record["id"][16:])
    assert {each[1][8:] for each in spans.values()} == {trace}
    assert len({each[1] for each in spans.values()}) == 1, "one run, one trace"
    roots = {each[0] for each in spans.values() if not each[2]}
    assert roots - SYNTHETIC == {"cirron.session"}
    assert {each[2] for each in spans.values() if each[2]} <= set(spans)
    assert "sent to http://" in done.stderr
    assert "4 steps of 2 ranks" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_rank_that_is_killed_is_recovered_and_sent(tmp_path: Path, server: OtlpServer) -> None:
    words = program("training", "kill=0", "workers=1", "context=fork")
    done = run(tmp_path, "--", *words, env=server.environ)
    assert done.returncode == 137
    assert "1 process died" in done.stderr
    (session,) = others(spool_of(tmp_path))
    check(session, epochs=1)
    assert session.record["attrs"]["incomplete"] is True
    assert bytes.fromhex(session.record["id"][:16]) in sent(server)


@pytest.mark.slow
def test_workers_of_a_loader_leave_nothing(tmp_path: Path) -> None:
    """Spawned ones, which begin with our sitecustomize, too; and a program that fails, fails."""
    words = program("training", "workers=1", "context=spawn", "fail")
    done = start_to_end(
        ["sh", "-c", f'{BIN / "cirron-otel"} run -- "$@" 2>err; echo $?', "-", *words], tmp_path
    )
    assert done.stdout == "1\n"
    assert "RuntimeError: as it was told to" in (tmp_path / "err").read_text()
    (session,) = others(spool_of(tmp_path))
    check(session)


@pytest.mark.slow
def test_workers_have_sessions_if_enabled(tmp_path: Path) -> None:
    words = program("training", "workers=1", "context=fork")
    assert run(tmp_path, "-q", *words, env={"CIRRON_WORKERS": "true"}).returncode == 0
    workers = [each for each in others(spool_of(tmp_path)) if "worker" in each.record["attrs"]]
    (trained,) = [each for each in others(spool_of(tmp_path)) if each not in workers]
    check(trained)
    assert len(workers) == 2, "one in each epoch"
    for each in workers:
        assert [found.name for found in each.children] == ["fetch", "fetch"]
        (link,) = each.record["otel"]["links"]
        assert link["span_id"] == trained.record["id"][:16]


@pytest.mark.slow
def test_opentelemetry_instrument_records_the_training(tmp_path: Path, server: OtlpServer) -> None:
    """And what other instrumentation records in it, in one trace, sent by OTLP without a loss."""
    words = [INSTRUMENT, *program("training", f"ask=http://{server.address}/")]
    done = start_to_end(words, tmp_path, env=server.environ)
    assert done.returncode == 0, done.stderr
    (session,) = spool_of(tmp_path).roots
    check_with_requests(session)
    spans = sent(server)
    assert {span["id"][:16] for span in spool_of(tmp_path).spans} <= {s.hex() for s in spans}
    assert len({each[1] for each in spans.values()}) == 1
    assert {each[2] for each in spans.values() if each[2]} <= set(spans)


def check_with_requests(session: Node) -> None:
    steps = session.find("step")
    assert len(steps) == 4
    for step in steps:
        assert [each.name for each in step.children] == PHASES
        load = step.children[0]
        assert [each.name for each in load.children] == ["GET"] * 4
        assert [each.record["otel"]["kind"] for each in load.children] == [3] * 4
