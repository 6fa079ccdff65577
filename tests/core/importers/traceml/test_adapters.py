"""Jobs with TraceML's adapters for Hugging Face and Lightning pass through the collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers.serving import serving

from .jobs import AGGREGATOR_HOST, PROGRAM, Job, RunningJob, free_port, reference
from .peers import RELEASES, TRACEML
from .sending import stored_steps
from .test_jobs import means
from .test_receiver import count

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("peers")]
ATTEMPTS = 3
STEPS = 60


def received(version: str, program: Path, folder: Path) -> tuple[Job, Path]:
    """Run a job through a collector; return it, and the collector's directory.

    TraceML writes no summary if its processes take longer than fixed times to end, e.g. on a busy
    machine. Such a job is repeated.
    """
    for attempt in range(ATTEMPTS):
        port, data = free_port(), folder / f"data-{attempt}"
        forward = ("--traceml-forward", f"{AGGREGATOR_HOST}:{port}")
        with serving(data, "--traceml", f"127.0.0.1:{port}", *forward) as here:
            job = RunningJob(TRACEML[version], folder / f"{attempt}", port, program, str(STEPS))
            through = job.wait()
            assert count(here, "forwarded_frames_total", "dropped") == 0
            assert here.end() == 0
        if (through.folder / "final_summary.json").exists():
            break
    return through, data


@pytest.mark.parametrize("adapter", ["hf", "lightning"])
@pytest.mark.parametrize("version", RELEASES)
def test_a_trainer_is_received_unchanged(version: str, adapter: str, tmp_path: Path) -> None:
    program = PROGRAM.with_name(f"train_{adapter}.py")
    alone = reference(version, tmp_path / "alone", program, STEPS)
    through, data = received(version, program, tmp_path)
    assert through.code == 0, through.output
    assert through.losses == alone.losses
    assert len(through.losses) == STEPS
    window = through.summary["step_time"]["global"]["window"]
    theirs = alone.step_time["global"]["window"]
    assert window["steps_analyzed"] == theirs["steps_analyzed"] > 0
    steps = [number for _, number in stored_steps(data)]
    assert len(steps) == len(set(steps)) >= window["steps_analyzed"]
    ours = means(data)
    (row,) = through.rank_rows
    for name, phase in (("forward", "forward"), ("backward", "backward"),
                        ("optimizer", "optimizer_step")):  # fmt: skip
        # The adapter of 0.3.1 for Lightning does not measure the forward pass.
        expected = row["metrics"][f"{name}_ms"] or 0.0
        assert ours.get((0, phase), 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-6), phase
    assert ours[0, "backward"] > 0
