"""Records a session with the CPU tracker of the installed Stormlog into a sink.

Usage: record_session.py SINK STEPS [forever]. With `forever`, it prints a line after the steps and
waits to be killed.
"""

import sys
import threading
import time
from pathlib import Path

from stormlog.cpu_profiler import CPUMemoryTracker
from stormlog.telemetry_sink import TelemetrySinkConfig


def main(sink: str, steps: int, forever: bool) -> None:
    tracker = CPUMemoryTracker(
        sampling_interval=0.01,
        telemetry_sink_config=TelemetrySinkConfig(
            root_dir=Path(sink), flush_every_events=1, rollover_max_events=40
        ),
    )
    tracker.start_tracking()
    loading = threading.Thread(target=load, args=(tracker, steps), name="loader")
    loading.start()
    kept = []
    for number in range(steps):
        with tracker.phase("step", metadata={"step": number}):
            with tracker.phase("forward"):
                kept.append(bytearray(2_000_000))
                time.sleep(0.02)
            with tracker.phase("backward"):
                time.sleep(0.02)
    loading.join()
    if forever:
        with tracker.phase("step"):
            print("ready", flush=True)
            time.sleep(600)
    tracker.stop_tracking()


def load(tracker: CPUMemoryTracker, steps: int) -> None:
    for _ in range(steps):
        with tracker.phase("data_load"):
            time.sleep(0.03)


main(sys.argv[1], int(sys.argv[2]), "forever" in sys.argv[3:])
