"""Records with the real Stormlog: `recording.py MODE DIRECTORY`, in an environment of `peers`."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from stormlog.cpu_profiler import CPUMemoryTracker
from stormlog.oom_flight_recorder import OOMFlightRecorder, OOMFlightRecorderConfig
from stormlog.telemetry_sink import TelemetrySinkConfig


def tracker_for(folder: Path) -> CPUMemoryTracker:
    """A tracker of this process's memory, with a sink of short segments."""
    config = TelemetrySinkConfig(
        root_dir=folder, flush_every_events=1, rollover_max_events=25, rollover_max_bytes=10**6,
        retention_max_files=4,
    )  # fmt: skip
    return CPUMemoryTracker(sampling_interval=0.01, telemetry_sink_config=config)


def train(tracker: CPUMemoryTracker, steps: int) -> None:
    """Train a small network, with a phase for each part of a step."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tracker.phase("epoch", metadata={"epoch": 0}):
        for step in range(steps):
            with tracker.phase("step", metadata={"step": step, "why": "naïve"}):
                with tracker.phase("forward"):
                    loss = model(torch.randn(256, 64)).square().mean()
                    time.sleep(0.01)
                with tracker.phase("backward"):
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()


def main(mode: str, folder: Path) -> None:
    """Record in one of the modes."""
    rank = os.environ.get("RANK")
    sink = folder / ("sink" if rank is None else f"sink_rank{rank}")
    tracker = tracker_for(sink)
    tracker.start_tracking()
    if mode == "killed":
        with tracker.phase("train"):
            train(tracker, 3)
            os.kill(os.getpid(), signal.SIGKILL)
    train(tracker, 12 if mode == "cpu" else 4)
    if mode == "oom":
        run_out_of_memory(tracker, folder)
    tracker.stop_tracking()
    if mode == "cpu":
        tracker.export_events(str(folder / "track.json"), format="json")


def run_out_of_memory(tracker: CPUMemoryTracker, folder: Path) -> None:
    """Run out of memory really, and have Stormlog record that."""
    recorder = OOMFlightRecorder(
        OOMFlightRecorderConfig(enabled=True, dump_dir=str(folder / "oom_dumps"))
    )
    with tracker.phase("too large"):
        try:
            torch.empty(1 << 60, dtype=torch.uint8)
        except RuntimeError as error:
            rss = tracker.process.memory_info().rss
            tracker._add_event("error", 0, "OOM detected", metadata={"oom_reason": "allocator"})
            for each in tracker.get_events():
                recorder.record_event(vars(each) | {"memory_allocated": rss})
            recorder.dump(
                reason="allocator", exception=error, context="too large", backend="cpu",
                session_summary=tracker.get_session_summary(),
            )  # fmt: skip


main(sys.argv[1], Path(sys.argv[2]))
