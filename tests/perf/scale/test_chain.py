"""`make scale` in small: simulated ranks through an agent, Kafka, collectors and PostgreSQL."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.kit.backends import jars, postgres

from . import __main__ as scale
from . import simulate
from .ranks import Job
from .simulate import NodeRequest, requests_of

OPTIONS = [
    "--ranks=16", "--minutes=1", "--seed=5", "--budget=4", "--flush=2", "--scale=1",
    "--collectors=2", "--throughput", "2",
]  # fmt: skip
JOB = Job.of(16, 60.0, 5, 4.0, 1, 2)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, as PostgreSQL requires it."""
    if reason := jars.missing() or postgres.missing():
        leave_out(f"{reason}: install it, and run `make backends`")
    with tempfile.TemporaryDirectory(prefix="cirron-otel-scale-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def interrupted(job: Job) -> Iterator[NodeRequest]:
    yield from itertools.islice(requests_of(job), 20)
    raise KeyboardInterrupt


def test_an_interrupted_run_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(scale, "requests_of", interrupted)
        patched.setattr(simulate, "PROGRESS_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            scale.main([*OPTIONS, f"--keep={folder}"])
    values = json.loads((folder / "result.json").read_text())
    assert 0 < values["accepted_requests"] < 20
    assert "sent" not in values
    assert scale.main([*OPTIONS, f"--keep={folder}"]) == 0
    values = json.loads((folder / "result.json").read_text())
    assert values["accepted_requests"] > 20
    assert values["is_equal"] is True
    assert values["sent"]["spans"] < values["sent"]["recorded_spans"]
    assert values["verdict"]["spans"] == values["sent"]["recorded_spans"]
    assert values["verdict"]["report"] == [JOB.straggler]
    assert values["verdict"]["ranks"] == len(JOB.present)
    stages = {"ranks", "agent", "Kafka", "consumer", "collector", "PostgreSQL"}
    assert stages < values["stages"].keys()
    assert all(values["stages"][name]["together_mib"] > 0 for name in stages)
    [stored] = values["throughput"]["stored"]
    assert (stored["collectors"], stored["is_equal"]) == (2, True)
    with pytest.raises(AssertionError, match="has results of"):
        scale.main([*OPTIONS, f"--keep={folder}", "--ranks=17"])
