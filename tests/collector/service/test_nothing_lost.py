"""A running collector whose files are removed and damaged: what it acknowledges, it has."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
import urllib.request
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.journal.files import Position
from cirron_otel.collector.receiver.journal.reader import frames
from cirron_otel.collector.receiver.seen import Seen
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving, spans_of

from .test_running import post
from .test_running import request as request_of

PROTOBUF = "application/x-protobuf"


def send(here: Serving, name: str) -> int:
    """The status of a request with one span."""
    return post(f"{here.http}/v1/traces", request_of(name), PROTOBUF)[0]


def keep(here: Serving, name: str) -> None:
    """Send it until it is acknowledged."""
    until(lambda: send(here, name) == 200)


def names(folder: Path) -> list[str]:
    return sorted(span["name"] for span in spans_of(folder))


def intake(folder: Path) -> Path:
    return folder / "state" / "intake"


def metric(here: Serving, beginning: str) -> float:
    with urllib.request.urlopen(f"{here.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_the_spool_is_taken_away_from_under_it(how: str, tmp_path: Path) -> None:
    """It makes it again; only what was stored there is gone with it."""
    folder, away = tmp_path / "data", tmp_path / "away"
    with serving(folder) as here:
        keep(here, "before")
        until(lambda: names(folder) == ["before"])
        translator = here.translator()
        shutil.rmtree(folder) if how == "removed" else folder.rename(away)
        statuses = [send(here, f"s{number}") for number in range(5)]
        assert set(statuses) <= {200, 503}
        until(lambda: here.translator() not in (None, translator))
        taken = [f"s{number}" for number, status in enumerate(statuses) if status == 200]
        assert taken, "it did not come back"
        until(lambda: names(folder) == taken)
        keep(here, "after")
        assert here.end() == 0
    assert names(folder) == sorted([*taken, "after"])
    if how == "moved":
        assert names(away) == ["before"]
    assert "was removed or moved" in here.log.read_text()


@pytest.mark.parametrize("what", ["a frame", "the header"])
def test_the_segment_that_is_written_is_damaged(what: str, tmp_path: Path) -> None:
    """Nothing but the damaged frame is lost, and the segment is not written any more."""
    folder = tmp_path / "data"
    with serving(folder) as here:
        keep(here, "s0")
        until(lambda: names(folder) == ["s0"])
        translator = here.translator()
        assert translator is not None
        os.kill(translator, signal.SIGSTOP)
        keep(here, "s1")
        (segment,) = intake(folder).glob("intake-*.log")
        *_, last = frames(intake(folder))
        at = 0 if what == "the header" else last.end.offset
        keep(here, "s2")
        keep(here, "s3")
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff")
        # Whoever begins to read looks at the header.
        os.kill(translator, signal.SIGKILL if what == "the header" else signal.SIGCONT)
        until(lambda: "s3" in names(folder))
        until(lambda: len(list(intake(folder).glob("*.damaged"))) == 1)
        until(lambda: _is_rolled(here, segment))
        assert here.end() == 0
    lost = {"s2"} if what == "a frame" else set()
    assert set(names(folder)) - {"more"} == {"s0", "s1", "s2", "s3"} - lost


def _is_rolled(here: Serving, segment: Path) -> bool:
    """Whether what is taken now is in another segment."""
    keep(here, "more")
    return any(other.name > segment.name for other in segment.parent.glob("intake-*.log"))


def test_damaged_dedup_database_is_replaced_without_losing_requests(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(folder) as here:
        keep(here, "a")
        assert here.end() == 0
    path = intake(folder) / "seen.sqlite"
    with Seen(path) as seen:
        seen.add((os.urandom(16), time.time_ns(), Position(1, number)) for number in range(5000))
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(3 * 4096, size - 4096, 4096):
            file.seek(at)
            file.write(os.urandom(512))
    with serving(folder) as here:
        translator = here.translator()
        for name in ("b", "c", "b"):
            keep(here, name)
        assert here.translator() == translator
        assert here.end() == 0
    assert names(folder) == ["a", "b", "c"]
    assert path.with_name("seen.sqlite.damaged").exists()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]


def fill(here: Serving, taken: list[str]) -> None:
    """Send requests of a megabyte until none is taken."""
    while (status := send(here, name := f"{len(taken)} ".ljust(1_000_000, "x"))) == 200:
        taken.append(name)
    assert status == 503
    time.sleep(0.1)


def test_undelivered_batches_are_not_evicted(tmp_path: Path) -> None:
    """At its cap the spool takes no more, and then the journal: clients are told to wait."""
    folder, config = tmp_path / "data", tmp_path / "collector.yaml"
    database = tmp_path / "rows" / "runs.db"
    config.write_text(
        f"spool: {{max_bytes: 13MB}}\nstorage: {{url: 'sqlite:///{database}'}}\n"
        "limits: {request_bytes: 1MiB, journal_bytes: 34MB}\ndrain_s: 60\n"
    )
    database.parent.write_text("in the way")
    with serving(folder, "--config", str(config)) as here:
        taken: list[str] = []
        # The journal may be full before the spool is.
        while "is not delivered yet: nothing is evicted" not in here.log.read_text():
            fill(here, taken)
        fill(here, taken)
        assert sum(f.stat().st_size for f in (folder / "spool").iterdir()) <= 13_000_000
        assert metric(here, "cirron_collector_dropped_batches_total") == 0
        here.kill()
    database.parent.unlink()
    database.parent.mkdir()
    with serving(folder, "--config", str(config)) as here:
        keep(here, "last")
        assert here.end() == 0
    with sqlite3.connect(database) as connection:
        found = connection.execute('SELECT "name", count(*) FROM "TraceSpan" GROUP BY 1').fetchall()
    assert dict(found) == dict.fromkeys([*taken, "last"], 1)
    assert "of its oldest batches were evicted" in here.log.read_text()
    assert sum(f.stat().st_size for f in (folder / "spool").iterdir()) <= 13_000_000


def test_full_spool_without_a_target_evicts_oldest_batches_with_a_warning(tmp_path: Path) -> None:
    folder, config = tmp_path / "data", tmp_path / "collector.yaml"
    config.write_text("spool: {max_bytes: 13MB}\nlimits: {request_bytes: 1MiB}\n")
    with serving(folder, "--config", str(config)) as here:
        for number in range(20):
            keep(here, f"{number} ".ljust(1_000_000, "x"))
        until(lambda: any(name.startswith("19 ") for name in names(folder)))
        assert here.end() == 0
    told = [line for line in here.log.read_text().splitlines() if "were evicted" in line]
    assert told
    assert '"warning"' in told[0]


def test_exit_code_reports_unstored_requests(tmp_path: Path) -> None:
    folder, config = tmp_path / "data", tmp_path / "collector.yaml"
    config.write_text("drain_s: 1\n")
    with serving(folder, "--config", str(config)) as here:
        (folder / "spool").write_text("in the way")
        assert send(here, "a") == 200
        assert here.end() == 1
    (folder / "spool").unlink()
    with serving(folder, "--config", str(config)) as here:
        assert here.end() == 0
    assert names(folder) == ["a"]
