"""Following a spool that running processes, dead processes and other followers share."""

from __future__ import annotations

import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cirron_otel.core.spool.cursor import Cursor
from cirron_otel.core.spool.delivered import Delivered
from cirron_otel.core.spool.lease import claim_delivery
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp.config import OtlpConfig, target_key
from tests.kit.servers.server import OtlpServer
from tests.kit.servers.servers import http_receiver
from tests.kit.spools.following import (
    Following,
    config_of,
    put,
    until,
)
from tests.kit.spools.journals import sealed
from tests.kit.spools.made import span
from tests.kit.spools.processes import Process
from tests.kit.spools.recorded import copy_of
from tests.tools.conftest import COMMAND, environment

HOLD = """
from cirron_otel.core.spool.lease import claim_delivery
owner = Owner.acquire(paths)
lease = claim_delivery(paths, sys.argv[2], owner.prefix)
data, name = sealed(owner, 5, spans=[span(5, None, name="cirron.session")])
SpoolWriter(paths.root).write(data, name)
say(name)
sys.stdin.read()
lease.release()
owner.release()
"""


@pytest.mark.parametrize("ends", ["kill", "end"])
def test_batches_of_a_live_exporting_process_are_left_to_it(tmp_path: Path, ends: str) -> None:
    put(tmp_path, 1)
    with (
        http_receiver() as server,
        Process(HOLD, tmp_path, target_key(config_of(server))) as process,
    ):
        name = process.line()
        following = Following(tmp_path, config_of(server))
        assert following.once().batches == 1
        assert following.follower.unsent() == 1
        assert following.said == ["some batches are left to the processes that send them already"]
        getattr(process, ends)()
        assert Following(tmp_path, config_of(server)).once().batches == 1
        assert Following(tmp_path, config_of(server)).once().batches == 0
        assert following.follower.unsent() == 0
        assert name in [path.name for path in (tmp_path / "spool").iterdir()]


def test_batches_of_a_live_process_without_an_exporter_are_sent(tmp_path: Path) -> None:
    script = HOLD.replace("lease = claim_delivery(paths, sys.argv[2], owner.prefix)", "")
    with http_receiver() as server, Process(script, tmp_path, "-") as process:
        process.line()
        config = config_of(server)
        assert Following(tmp_path, config).once().batches == 1
        # Its lease is free again: the process may begin to export, and continues from here.
        prefix = next((tmp_path / "state").glob("owner-*.lock")).stem.removeprefix("owner-")
        lease = claim_delivery(SpoolPaths.under(tmp_path), target_key(config), prefix)
        assert lease is not None
        assert Cursor(tmp_path / "state", target_key(config), prefix).acknowledged_count == 1
        lease.release()


def test_batches_acknowledged_by_a_dead_owner_are_not_resent(tmp_path: Path) -> None:
    with http_receiver() as server:
        key = target_key(config_of(server))
        writer = SpoolWriter(tmp_path)
        names = [
            writer.write(*sealed("00000000dead", number, spans=[span(number)])).name
            for number in range(4)
        ]
        cursor = Cursor(tmp_path / "state", key, "00000000dead")
        for name in names[:3]:
            cursor.acknowledge(name)
        cursor.save()
        assert Following(tmp_path, config_of(server)).once().batches == 1


def test_two_follow_one_spool(tmp_path: Path, server: OtlpServer) -> None:
    root = copy_of("07_ranks", tmp_path)
    shutil.rmtree(root / "state", ignore_errors=True)
    running = [
        subprocess.Popen(
            [COMMAND, "export", ".cirron", "--follow"],
            cwd=tmp_path,
            env=environment(**server.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        assert server.received.wait(180)
        waiting = _who_waits(running)
        first = next(each for each in running if each is not waiting)
        key = target_key(OtlpConfig.from_env(server.environ))
        number = len(list((root / "spool").glob("*.json")))
        # If the answer to a request were not recorded, the request would be sent twice.
        until(lambda: Delivered(SpoolPaths.under(root), key).acknowledged_count == number)
        first.kill()
        first.wait()
        before = len(server.span_ids())
        put(root, 77)
        until(lambda: len(server.span_ids()) > before)
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=60)
        assert waiting.returncode == 130, err
        assert err.splitlines() == ["cirron-otel: interrupted"]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    ids = server.span_ids()
    assert len(ids) == len(set(ids))


def _who_waits(running: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Return the process that reports, once, that another one exports this spool."""
    ready, _, _ = select.select([each.stderr for each in running], [], [], 180)
    assert len(ready) == 1
    assert "another export of this spool" in ready[0].readline()
    return next(each for each in running if each.stderr is ready[0])
