"""A process killed while scopes wait for the device loses `gpu_ns`, but no scope's end."""

from __future__ import annotations

import signal
from pathlib import Path

from cirron_otel.core.spool.recovery import find_recoverable, recover
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import read_spool

PROGRAM = """
import os, signal, sys
from pathlib import Path
import pytest
from tests.sdk.instrumentation.device import Device
from tests.sdk.instrumentation.torch.on_device import loader, parts, session

device = Device()  # it never comes to an end
with session(Path(sys.argv[1]), pytest.MonkeyPatch(), device) as profiler:
    model, criterion, optimizer = parts(device)
    for number, (x, y) in enumerate(loader(3)):
        criterion(model(x), y).backward()
        optimizer.step()
        if number == 1:
            profiler.flush(20)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_scopes_awaiting_the_device_are_recovered_with_their_end_times(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    scripts.text(PROGRAM, tmp_path, directory, status=-signal.SIGKILL)
    (recovered,) = recover(find_recoverable(directory))
    session = read_spool(directory).session
    incomplete = [
        (node.name, node.record["index"])
        for name in ("cirron.session", "epoch", "step", "forward", "backward", "optimizer_step")
        for node in session.find(name)
        if "incomplete" in node.record["attrs"]
    ]
    assert incomplete == [("cirron.session", None), ("epoch", 0), ("step", 1)]
    assert recovered.incomplete == 3
    steps = session.find("step")
    assert [len(step.children) for step in steps] == [5, 5]
    for step in steps:
        ends = [child.record["end_ns"] for child in step.children]
        starts = [child.record["start_ns"] for child in step.children]
        assert all(one <= other for one, other in zip(ends, starts[1:], strict=False))
    first = steps[0].record
    covered = sum(c.record["end_ns"] - c.record["start_ns"] for c in steps[0].children)
    assert first["end_ns"] - first["start_ns"] == covered + first["attrs"]["unattributed_ns"]
