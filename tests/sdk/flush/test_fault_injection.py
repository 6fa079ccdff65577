"""Every internal step of the SDK broken in turn: the training never notices, and is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "faulty.py"
PARTS = 4

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fault injection")]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of each fault, from processes that share the work."""
    place = tmp_path_factory.mktemp("faults")
    done = subprocess.run(
        [sys.executable, PROGRAM, place, str(PARTS)],
        cwd=place, capture_output=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    # The SDK's own output is between the reports.
    lines = [line for path in place.glob("reports-*.txt") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith('{"fault"')]


def test_nothing_of_ours_reaches_the_training(reports: list[dict[str, Any]]) -> None:
    wrong = [r for r in reports if r["escaped"] is not None or not r["equal"]]
    assert wrong == []


def test_every_injected_fault_is_counted_or_logged(reports: list[dict[str, Any]]) -> None:
    assert [r for r in reports if r["hits"] and not r["said"]] == []


def test_faults_hit_all_critical_steps(reports: list[dict[str, Any]]) -> None:
    struck = {report["fault"] for report in reports if report["hits"]}
    for step in (
        "sdk.flush.flush_builder:FlushBuilder.collect",
        "sdk.flush.sealer:Sealer.seal",
        "core.spool.writer:SpoolWriter.write",
        "core.delivery.delivery:Delivery.notify",
        "core.spool.journal:OwnerJournal.write",
        "core.spool.owner:Owner.acquire",
        "sdk.session.starting:start_runtime",
        "sdk.tracing.buffers:Buffers.next_id",
        "sdk.tracing.foreign_spans:ForeignSpans.start",
        "sdk.session.session:sampling",
        "sdk.tracing.span_processor:Observers.start",
        "sdk.tracing.span_processor:Observers.end",
        "sdk.tracing.scope:Scope._place",
        "sdk.tracing.traces:Segments.choose",
        "sdk.session.exits:Exits.install",
        "sdk.flush.pipeline:Pipeline._run",
        "core.targets.otlp.target:OtlpTarget.send",
        "core.targets.cirron.batches:CirronTarget.send",
        "core.delivery.delivery:Delivery._turn",
        "sdk.session.joining:join",
        "sdk.session.health:health_of",
    ):
        assert f"cirron_otel.{step}" in struck, step
    assert {"every now", "every urandom"} <= struck
    assert len(struck) > 200
