"""Real jobs of both releases of TraceML, through the collector and on to TraceML's aggregator."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec
import pytest

from cirron_otel.core.importers.traceml.reading import TraceMLImport
from tests.kit.backends import run
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.comparing import cirron_otel, spans_of

from .jobs import (
    AGGREGATOR_HOST,
    PROGRAM,
    Job,
    Reference,
    RunningJob,
    assert_complete,
    files_of,
    free_port,
    losses_without_traceml,
    reference,
    variables_of,
)
from .peers import RELEASES, TRACEML, TRACEML_050
from .recording_proxy import RecordingProxy
from .sending import stored, stored_steps
from .test_receiver import count, received, refused

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("peers")]
RANKS, STEPS = 2, 150
STEP_MEANS = {"traceml-0.3.1": None, "traceml-0.5.0": "traced_step_time_ms"}
"""The name in the summary of the mean of step_time; 0.3.1 adds the loading of data to it."""


class Pair(NamedTuple):
    """The results of a job without the collector, and the same job through it."""

    version: str
    alone: Reference
    through: Job
    spool: Path
    recorded: Path
    """A directory with the frames that the collector received."""
    metrics: dict[str, float]
    jaeger: run.Jaeger


@pytest.fixture(scope="module", params=RELEASES)
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    peers: None,
    jaeger: run.Jaeger,
) -> Pair:
    version = request.param
    environment, folder = TRACEML[version], tmp_path_factory.mktemp(version)
    alone = reference(version, folder / "alone", PROGRAM, STEPS, "1", ranks=RANKS)
    port = free_port()
    file = folder / "collector.yaml"
    file.write_text(
        "receivers:\n"
        f"  traceml: {{address: '127.0.0.1:0', forward: '{AGGREGATOR_HOST}:{port}'}}\n"
        f"exporters: [{{type: otlp, endpoint: 'http://{jaeger.otlp_grpc}'}}]\n"
    )
    with (
        serving(folder / "data", "--config", str(file)) as here,
        RecordingProxy(folder / "recorded", address_of(here), port=port) as proxy,
    ):
        job = RunningJob(
            environment, folder / "through", port, PROGRAM, str(STEPS), "1", ranks=RANKS
        )
        through = job.wait()
        metrics = {
            "sent": count(here, "forwarded_frames_total", "sent"),
            "not sent": count(here, "forwarded_frames_total", "dropped"),
            "received": received(here),
            "missing": count(here, "missing_steps_total"),
        }
        assert here.end() == 0
    return Pair(version, alone, through, folder / "data", proxy.folder, metrics, jaeger)


@pytest.mark.backends
class TestThroughTheCollector:
    def test_the_job_does_not_notice(self, pair: Pair) -> None:
        assert pair.through.code == 0, pair.through.output
        assert len(pair.through.losses) == STEPS
        assert pair.through.losses == pair.alone.losses
        assert files_of(pair.through.folder) == set(pair.alone.files)

    def test_a_live_job_is_stored_as_its_import(self, pair: Pair) -> None:
        """It needs Jaeger only because it shares the job with `test_every_step_is_in_jaeger`."""
        assert stored(pair.spool) == recorded_batches(pair.recorded) != {}
        wanted = [(rank, step) for rank in range(RANKS) for step in range(1, STEPS + 1)]
        assert stored_steps(pair.spool) == wanted

    def test_nothing_is_lost_on_the_way(self, pair: Pair) -> None:
        assert pair.metrics["received"] == pair.metrics["sent"] > 0
        assert (pair.metrics["not sent"], pair.metrics["missing"]) == (0, 0)

    def test_the_summary_is_complete(self, pair: Pair) -> None:
        assert_complete(pair.alone.losses, pair.alone.step_time, STEPS, RANKS)
        step_time = pair.through.summary["step_time"]
        assert_complete(pair.through.losses, step_time, STEPS, RANKS)

    def test_its_means_by_rank_are_ours(self, pair: Pair) -> None:
        ours = means(pair.spool)
        compared = 0
        for row in pair.through.rank_rows:
            rank = row["identity"]["global_rank"]
            names = {"forward_ms": "forward", "backward_ms": "backward"}
            names["optimizer_ms"] = "optimizer_step"
            if (name := STEP_MEANS[pair.version]) is not None:
                names[name] = "step_time"
            for theirs, name in names.items():
                assert row["metrics"][theirs] == pytest.approx(ours[rank, name], rel=1e-6, abs=1e-6)
                compared += 1
        assert compared >= RANKS * 3
        assert ours[1, "forward"] > ours[0, "forward"] + 3

    def test_every_step_is_in_jaeger(self, pair: Pair, tmp_path: Path) -> None:
        cirron_otel("convert", pair.spool, tmp_path / "spool.jsonl")
        wanted: dict[str, set[str]] = defaultdict(set)
        for span in spans_of(tmp_path / "spool.jsonl"):
            if span.name == "step":
                wanted[span.trace_id.hex()].add(span.span_id.hex())
        assert sum(map(len, wanted.values())) == RANKS * STEPS
        for trace_id, ids in wanted.items():
            shown = pair.jaeger.wait_for_trace(trace_id, ids)
            steps = [span for span in shown if span["name"] == "step"]
            assert Counter(span["spanId"] for span in steps) == Counter(ids)


def spans(batches: dict[str, bytes]) -> Iterator[dict[str, Any]]:
    for data in batches.values():
        yield from msgspec.json.decode(data)["spans"]


def has_step(batches: dict[str, bytes]) -> bool:
    return any(span["name"] == "step" for span in spans(batches))


def means(folder: Path) -> dict[tuple[int, str], float]:
    """The mean of each phase, and of step_time, by rank, in ms."""
    values: dict[tuple[int, str], list[float]] = defaultdict(list)
    for span in spans(stored(folder)):
        duration_ns = span["end_ns"] - span["start_ns"]
        if span["name"] == "step":
            values[span["rank"], "step_time"].append(span["attrs"]["traceml.step_time_ns"] / 1e6)
        else:
            values[span["rank"], span["name"]].append(duration_ns / 1e6)
    return {key: mean(each) for key, each in values.items()}


def recorded_batches(folder: Path) -> dict[str, bytes]:
    """The batches of the import of recorded frames."""
    batches = TraceMLImport(folder, on_finding=lambda _: None).batches()
    return {batch.name: batch.data for batch in batches}


class TestJobs:
    @pytest.mark.parametrize("version", RELEASES)
    def test_a_job_does_not_notice_that_the_collector_is_killed(
        self, version: str, tmp_path: Path
    ) -> None:
        steps, gates = 80, tmp_path / "gates"
        gates.mkdir()
        for gate in ("20", "40", "60"):
            (gates / gate).touch()
        variables = {"PAUSE_S": "0.03", "GATES": str(gates)}
        port = free_port()
        options = ("--traceml", f"127.0.0.1:{port}",
                   "--traceml-forward", f"{AGGREGATOR_HOST}:{port}")  # fmt: skip
        with serving(tmp_path / "data", *options) as here:
            job = RunningJob(
                TRACEML[version], tmp_path, port, PROGRAM, str(steps), variables=variables
            )
            until(lambda: stored_steps(tmp_path / "data"))
            here.kill()
        (gates / "20").unlink()
        until((gates / "reached 40").exists)  # the port refuses connections until then
        with RecordingProxy(tmp_path / "lost", None, port=port) as proxy:
            (gates / "40").unlink()
            until((gates / "reached 60").exists)
            until(lambda: has_step(recorded_batches(proxy.folder)))  # no collector has it
        with serving(tmp_path / "data", *options) as here:
            (gates / "60").unlink()
            done = job.wait()
            until(lambda: (0, steps) in stored_steps(tmp_path / "data"))
            missing = count(here, "missing_steps_total")
            assert here.end() == 0
            log = here.log.read_text()
        assert done.code == 0, done.output
        assert len(done.losses) == steps
        assert done.losses == losses_without_traceml(tmp_path / "alone", steps)
        present = stored_steps(tmp_path / "data")
        assert len(set(present)) == len(present)
        assert missing == steps - len(present) > 0
        assert "did not arrive" in log

    def test_a_script_that_calls_init_finds_the_collector(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data", "--traceml", "127.0.0.1:0") as here:
            host, port = address_of(here)
            variables = {"TRACEML_AGGREGATOR_HOST": host, "TRACEML_AGGREGATOR_PORT": str(port)}
            done = subprocess.run(
                [TRACEML_050.make(), PROGRAM, "80"], cwd=tmp_path, capture_output=True, text=True,
                env=variables_of(tmp_path, variables), timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert here.end() == 0
        assert stored_steps(tmp_path / "data") == [(0, step) for step in range(1, 81)]
        assert {"data_load", "forward", "backward", "optimizer_step"} <= {
            span["name"] for span in spans(stored(tmp_path / "data"))
        }

    def test_the_commands_of_the_page(self, tmp_path: Path) -> None:
        page = Path(__file__).parents[4] / "docs" / "traceml.md"
        block = re.search(r"^```shell\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        assert block is not None
        serve, train = block[1].replace("29765", str(free_port())).splitlines()
        assert serve.startswith("cirron-otel collector --traceml ")
        assert train.startswith("traceml run ")
        options = serve.removesuffix(" &").split()[2:]
        with serving(tmp_path / "data", *options) as here:
            program = train.replace("train.py", f"{PROGRAM} --args 30")
            done = subprocess.run(
                [*program.split()[:2], "--master-port", str(free_port()), *program.split()[2:]],
                cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
                env=variables_of(tmp_path, {"PATH": path_with(TRACEML_050.make().parent)}),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert here.end() == 0
        assert len(stored_steps(tmp_path / "data")) == 30

    def test_a_job_with_both_instrumentations(self, tmp_path: Path) -> None:
        """The program also records itself, into a spool of its own."""
        port = free_port()
        package = str(Path(__file__).parents[4])
        variables = {"BOTH": "1", "CIRRON_OUTPUT_DIR": str(tmp_path / "own"), "PYTHONPATH": package}
        options = ("--traceml", f"127.0.0.1:{port}",
                   "--traceml-forward", f"{AGGREGATOR_HOST}:{port}")  # fmt: skip
        with serving(tmp_path / "data", *options) as here:
            job = RunningJob(TRACEML_050, tmp_path, port, PROGRAM, "60", variables=variables).wait()
            assert refused(here, "torn") == 0
            assert here.end() == 0
        assert job.code == 0, job.output
        assert job.summary["step_time"]["global"]["window"]["steps_analyzed"] == 60
        assert len(stored_steps(tmp_path / "data")) == 60
        assert job.losses == losses_without_traceml(tmp_path / "alone", 60)
        own = [span for span in spans(stored(tmp_path / "own")) if span["name"] == "step"]
        assert len(own) == 60


def address_of(here: Serving) -> tuple[str, int]:
    host, _, port = str(here.traceml).rpartition(":")
    return host, int(port)


def path_with(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
