"""A Trainer that is traced from outside: by `cirron-otel run`, also over ranks, and by
`opentelemetry-instrument`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.backends import run as backends
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import Node

from .running import (
    BIN,
    COMMAND,
    job_of,
    others,
    program,
    run,
    spool_of,
    start_to_end,
)

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("trainer runs")]
INSTRUMENT = str(BIN / "opentelemetry-instrument")
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OTEL_TRACES_EXPORTER": "none"}


def _report(directory: Path, *options: str) -> str:
    command = [COMMAND, "report", str(directory / ".cirron"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.backends
def test_both_ranks_are_in_one_trace_of_jaeger(tmp_path: Path, jaeger: backends.Jaeger) -> None:
    words = [str(BIN / "torchrun"), "--nproc-per-node=2", "--standalone"]
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.otlp_grpc}"}
    env = ENVIRONMENT | endpoint
    del env["OTEL_TRACES_EXPORTER"]
    done = run(tmp_path, "--", *words, *program("trainer")[1:], env=env)
    assert done.returncode == 0, done.stderr
    spool = spool_of(tmp_path)
    assert sorted(each.record["rank"] for each in others(spool)) == [0, 1]
    (trace_id,) = {batch["otel"]["trace_id"] for batch in spool.batches}
    recorded = {span["id"][:16] for span in spool.spans}
    shown = {span["spanId"]: span for span in jaeger.wait_for_trace(trace_id, recorded)}
    job = job_of(spool).record["id"][:16]
    sessions = [each.record["id"][:16] for each in others(spool)]
    assert {shown[each]["parentSpanId"] for each in sessions} == {job}
    for rank in others(spool):
        assert len(rank.find("eval")) == 2
        assert len(rank.find("step")) == 4
    _check_report(tmp_path)


def _check_report(directory: Path) -> None:
    document: dict[str, Any] = json.loads(_report(directory, "--json"))
    names = {metric["name"] for metric in document["metrics"]}
    assert {"loss", "eval_loss"} <= names
    training = [rank for rank in document["ledger"]["ranks"] if rank["rank"] is not None]
    assert [rank["rank"] for rank in training] == [0, 1]
    for rank in training:
        accounts = rank["accounts"]
        assert accounts["evaluation"] > 0
        assert accounts["forward"] > 0
        assert sum(accounts.values()) == rank["total_ns"]
    assert training[0]["accounts"]["checkpoint"] > 0
    text = _report(directory, "--full")
    for row in ("eval", "save", "Metrics:", "eval_loss"):
        assert row in text


@pytest.fixture(scope="module")
def profiled(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tree of the program with `profile()`."""
    directory = tmp_path_factory.mktemp("profiled")
    script = Path(program("trainer")[1])
    done = scripts.script(script, "profile", env=ENVIRONMENT, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return _tree(directory)


def _tree(directory: Path) -> list[str]:
    (session,) = others(spool_of(directory))
    return list(_lines(session, ""))


def _lines(node: Node, indent: str) -> Iterator[str]:
    yield f"{indent}{node.name}[{node.record['index']}]"
    for child in node.children:
        yield from _lines(child, f"{indent}  ")


def test_opentelemetry_instrument_records_the_same_tree(
    tmp_path: Path, profiled: list[str]
) -> None:
    done = start_to_end([INSTRUMENT, *program("trainer")], tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert _tree(tmp_path) == profiled


def test_a_run_records_the_same_tree(tmp_path: Path, profiled: list[str]) -> None:
    done = run(tmp_path, "-q", "--", *program("trainer"), env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert _tree(tmp_path) == profiled
