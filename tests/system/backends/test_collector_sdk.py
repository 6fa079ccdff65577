"""In front of a real Collector: cirron-sdk → us → OTLP → otelcol → what the SDK spooled."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import leave_out
from tests.kit.backends import run
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.recorder.record import environment
from tests.kit.servers.away import until
from tests.kit.servers.serving import serving
from tests.kit.spools.comparing import assert_same, batches, cirron_otel

pytestmark = pytest.mark.backends

TRAINING = """
import sys
import time
import cirron as ci
ci.profile(snapshots=None, flush_interval=0.1)
for epoch in ci.epochs(range(3)):
    for number, _ in enumerate(ci.batches(range(20))):
        if number == 10:
            time.sleep(0.3)  # its flush thread has its turn: epochs come behind their steps
        with ci.scope("step", index=number):
            with ci.scope("forward", layer="conv\\u00e9"):
                ci.mark("big", 2**70)
            with ci.scope("backward"):
                ci.mark("loss", float("nan") if number == 3 else 1 / (1 + number))
            ci.mark("odd", 1, **{"cirron.rest": "{}", "nested": {"a": [1, 2.0, None]}})
    ci.mark("accuracy", 0.5 + epoch / 10, kind="summary")
sys.stdin.readline()
ci.shutdown()
"""
KEY = "ck_live_key"


@contextmanager
def training(folder: Path, http: str) -> Iterator[Path]:
    """The real cirron-sdk 0.3.0 at work, sending to `http`; its directory. It ends with the block.

    Of what it seals only what its flush thread seals is sent: not what it seals at its end.
    """
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    try:
        python = environment("0.3.0")
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    taken = ("OTEL_", "CIRRON_", "PYTHON", "RANK", "WORLD_SIZE", "TRACE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
    process = subprocess.Popen(
        [python, "-I", "train.py"],
        cwd=folder,
        env={**kept, "HOME": str(folder), "CIRRON_API_KEY": KEY, "CIRRON_API_ENDPOINT": http},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield folder
        assert process.communicate("\n", timeout=180)[1] == ""
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def recorded(spool: Path) -> Counter[str]:
    """The names of the spans in a spool, so far."""
    found: dict[str, Any] = batches(spool) if (spool / "spool").is_dir() else {}
    return Counter(span["name"] for batch in found.values() for span in batch["spans"])


def test_a_real_cirron_sdk_through_us_and_a_collector_and_back(tmp_path: Path) -> None:
    (tmp_path / "otelcol").mkdir()
    data, config = tmp_path / "data", tmp_path / "collector.yaml"
    with run.otelcol(run.SPLIT, tmp_path / "otelcol") as behind:
        config.write_text(
            f"receivers: {{auth: {{tokens: [{KEY}]}}}}\n"
            f"exporters: [{{type: otlp, endpoint: 'http://{behind.otlp_grpc}'}}]\n"
        )
        with serving(data, "--config", str(config)) as here:
            with training(tmp_path / "job", here.http) as job:
                # With the last epoch, all is sent that is recorded before its end.
                until(lambda: (found := recorded(data))["step"] == 60 and found["epoch"] == 3)
            truth, sent = batches(job), batches(data)
            assert_same(sent, {name: truth[name] for name in sent})
            last = max(truth)
            assert truth.keys() - sent.keys() <= {last}, "only what it seals at its end is not sent"
            # What it did not send is sent from its spool, and what it did is known by its id.
            told = {"CIRRON_API_KEY": KEY, "CIRRON_API_ENDPOINT": here.http}
            assert cirron_otel("spool", "flush", job, **told)
            assert here.end() == 0
    assert_same(batches(data), truth)
    assert len(truth) > 2
    cirron_otel("convert", behind.output, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), truth)
