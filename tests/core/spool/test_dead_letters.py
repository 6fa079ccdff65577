"""What a target refuses for good: kept, listed, tried once more, dropped; and its bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.delivery import resubmission
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.delivery_stats import DeliveryStats
from cirron_otel.core.delivery.resubmission import Resubmission
from cirron_otel.core.delivery.retry_policy import Backoff, RetryPolicy
from cirron_otel.core.delivery.schedule import Schedule
from cirron_otel.core.spool.dead_letters import (
    DeadLetters,
    dead_letter_names,
    dead_letters,
    directory_of,
)
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.state import make_state
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.main import run
from tests.kit.servers.cirron_server import CirronServer, Fault, Received
from tests.kit.servers.servers import Answer, http_receiver
from tests.kit.spools.deliveries import Process, cirron_target, until
from tests.kit.spools.following import Following, arrived, config_of
from tests.kit.spools.made import encoded, made, span


def put(root: Path, count: int = 3) -> list[str]:
    from cirron_otel.core.spool.writer import SpoolWriter

    writer = SpoolWriter(root)
    return [writer.write(encoded(made(n, spans=[span(n)]))).name for n in range(count)]


def listed(root: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert run(["spool", "dead-letters", "ls", "--spool", str(root), "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["dead_letters"]
    return found


def refuse_first(received: Received) -> Fault | None:
    return Fault(422) if received.batch["spans"][0]["index"] == 1 else None


def test_the_life_of_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Refused, listed, tried once more and refused again, then taken; another one is dropped."""
    names = put(tmp_path)
    base = ["--spool", str(tmp_path), "--json"]
    with http_receiver(*[Answer(400, b"bad span")] * 4) as server:
        assert Following(tmp_path, config_of(server)).once().skipped_count == 3
        letters = listed(tmp_path, capsys)
        assert [each["batch"] for each in letters] == names
        assert all("400" in str(each["reason"]) for each in letters)
        assert [each["attempts"] for each in letters] == [1, 1, 1]
        assert [sum(name in line for line in caplog.messages) for name in names] == [1, 1, 1]
        folder = next((tmp_path / "state" / "dead-letters").iterdir())
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700

        assert run(["spool", "dead-letters", "drop", names[0], *base]) == 0
        assert run(["spool", "dead-letters", "retry", names[0], *base]) == 1  # it is not there
        assert run(["spool", "dead-letters", "retry", *base]) == 2
        assert run(["spool", "dead-letters", "retry", "--all", *base]) == 0
        capsys.readouterr()
        assert [each["retry"] for each in listed(tmp_path, capsys)] == [True, True]
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}

        (tmp_path / "spool" / names[1]).unlink()  # evicted meanwhile
        server.posts.clear()
        server.answers[:] = [Answer(422)]
        assert Following(tmp_path, config_of(server)).once().batches == 1
        (left,) = listed(tmp_path, capsys)
        assert (left["batch"], left["attempts"], left["retry"]) == (names[1], 2, False)
        assert sum(names[1] in line for line in caplog.messages) == 1  # not again
        assert run(["spool", "dead-letters", "retry", names[1], *base]) == 0
        capsys.readouterr()
        assert Following(tmp_path, config_of(server)).once().batches == 1
        assert listed(tmp_path, capsys) == []
        assert list(folder.iterdir()) == []
        assert Following(tmp_path, config_of(server)).once().batches == 0
        assert len(arrived(server)) == 3  # the refused attempt, and each of two once


def delivery_of(process: Process, url: str) -> tuple[Delivery, DeadLetters]:
    """A delivery to a server, not started, and the dead letters that it shares with the test."""
    target = cirron_target(url)
    letters = DeadLetters(process.paths, target.key, target.shown)
    return process.delivery(target, letters=letters), letters


def retry_all(root: Path) -> None:
    assert run(["spool", "dead-letters", "retry", "--all", "--spool", str(root)]) == 0


def test_a_delivery_keeps_and_retries_them(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.faults = [Fault(422, body=b"broken")]
        delivery, letters = delivery_of(process, server.url)
        delivery._resubmission.every_s = 0.05
        delivery.start()
        for _ in range(2):
            delivery.notify(process.seal())
        until(lambda: len(server.accepted) == 1 and letters.names())
        retry_all(tmp_path)
        until(lambda: len(server.accepted) == 2 and not letters.names())
        assert delivery.finish(30)
    assert sorted(server.accepted) == sorted(process.sealed)


def test_refused_batch_that_cannot_be_stored_does_not_delay_others(tmp_path: Path) -> None:
    """It is tried again, and counted once, when it is kept at last."""
    process = Process(tmp_path)
    blocked = process.paths.state / "dead-letters"

    with CirronServer().running() as server:
        server.faults = [refuse_first] * 1000
        delivery = process.delivery(cirron_target(server.url))
        blocked.write_text("not a directory")
        names = [process.seal() for _ in range(3)]
        delivery.start()
        for name in names:
            delivery.notify(name)
        until(lambda: len(server.accepted) == 2)
        blocked.unlink()
        until(lambda: delivery.stats()["refused"])
        assert delivery.finish(30)
    assert [letter.name for letter in dead_letters(process.paths)] == names[:1]
    assert (delivery.stats()["refused"], delivery.stats()["evicted"]) == (1, 0)


def test_an_entry_that_disappears_hides_no_other(tmp_path: Path) -> None:
    """Its name is listed and its file is gone, as if another process removed it meanwhile."""
    letters = DeadLetters(target_spool(tmp_path), "key", "shown")
    names = [f"{number}.json" for number in range(3)]
    for name in names:
        letters.put(name, b"{}", "no")
    folder = directory_of(target_spool(tmp_path), "key")
    for number in range(20):  # wherever the others are in the listing
        (folder / f"gone-{number}.json").symlink_to("missing")
    assert letters.names() == names


def test_a_directory_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3 with the path; the names alone fail in the same way."""
    paths = target_spool(_spool(tmp_path))
    make_state(paths.state)
    folder = paths.state / "dead-letters"
    folder.mkdir()
    assert dead_letter_names(paths) == set()
    (folder / "loop").symlink_to("loop")  # not a directory: ignored
    DeadLetters(paths, "key", "shown").put("1.json", b"{}", "no")
    assert dead_letter_names(paths) == {"1.json"}
    (folder / "key").rename(tmp_path / "kept")
    folder.joinpath("loop").unlink()
    folder.rmdir()
    folder.symlink_to("dead-letters")
    assert run(["spool", "dead-letters", "ls", "--spool", str(tmp_path)]) == 3
    assert f"{folder} cannot be read" in capsys.readouterr().err
    with pytest.raises(InputError, match="cannot be read"):
        dead_letter_names(paths)


def test_they_take_a_part_of_the_cap(tmp_path: Path) -> None:
    changes: list[tuple[int, int]] = []
    paths = target_spool(tmp_path)
    letters = DeadLetters(paths, "key", "shown", 1_000_000, lambda *each: changes.append(each))
    for number in range(12):
        letters.put(f"{number:02}.json", b"x" * 10_000, "no")
    assert [each.name for each in dead_letters(paths)] == [f"{n:02}.json" for n in range(2, 12)]
    assert (sum(a for a, _ in changes), sum(d for _, d in changes)) == (12, 2)
    letters.put("11.json", b"x" * 10_000, "still no", attempts=3)
    assert changes[-1] == (0, 0)
    *_, last = dead_letters(paths)
    assert (last.why.reason, last.why.attempts) == ("still no", 4)
    assert last.why.first_ns < last.why.last_ns
    letters.put("00.json", b"x" * 200_000, "no")  # alone it is too much, and the newest
    assert letters.names() == ["00.json"]


def test_a_small_one_takes_a_block(tmp_path: Path) -> None:
    letters = DeadLetters(target_spool(tmp_path), "key", "shown", 400_000)
    for number in range(12):
        letters.put(f"{number:02}.json", b"{}", "no")
    assert letters.names() == [f"{number:02}.json" for number in range(3, 12)]


def test_the_longest_name_has_room(tmp_path: Path) -> None:
    paths, name = target_spool(tmp_path), "x" * 246 + ".json"
    letters = DeadLetters(paths, "key", "shown")
    letters.put(name, b"{}", "no")
    retry_all(_spool(tmp_path))
    assert letters.requested() == [name]
    assert letters.read(name) == b"{}"


def _spool(root: Path) -> Path:
    (root / "spool").mkdir()
    return root


KILLED = """
import os, signal, sys
from pathlib import Path
from cirron_otel.core.spool.cursor import Cursor
from tests.kit.spools.deliveries import Process, cirron_target

url, root, step = sys.argv[1:]
count = [0]
def killing(name):
    real = getattr(os, name)
    def call(*arguments, **keywords):
        if "dead-letters" in str(arguments[0]) or "cursor-" in str(arguments[0]):
            count[0] += 1
            if count[0] == int(step):
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **keywords)
    setattr(os, name, call)

process = Process(Path(root))
delivery = process.delivery(cirron_target(url))
delivery.start()
names = [process.seal() for _ in range(2)]
for name in ("link", "replace", "rename", "open", "unlink", "fsync"):
    killing(name)
for name in names:
    delivery.notify(name)
delivery.finish(30)
print(*process.sealed)
"""


def test_a_kill_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """Between the refusal, the entry and the cursor: the refused batch is an entry once."""
    killed = 0
    for step in range(1, 40, 2):
        root = tmp_path / str(step)
        with CirronServer().running() as server:
            server.faults = [refuse_first] * 20
            child = subprocess.run(
                [sys.executable, "-c", KILLED, server.url, str(root), str(step)],
                cwd=Path(__file__).parents[3],
                check=False,
                capture_output=True,
            )
            killed += child.returncode < 0
            left = dead_letters(target_spool(root))
            assert all("422" in each.why.reason for each in left), "an entry without its reason"
            later = Process(root)
            delivery = later.delivery(cirron_target(server.url))
            delivery.start()
            paths = target_spool(root)
            until(lambda: server.accepted and any(dead_letters(paths)))  # noqa: B023
            assert delivery.finish(30)
            numbers = [server.batches[each]["spans"][0]["index"] for each in server.accepted]
        sealed = {path.name for path in paths.spool.iterdir()}
        letters = [each.name for each in dead_letters(paths)]
        assert set(numbers) == {2}, step
        assert len(letters) == 1, step
        assert letters[0] in sealed
        folder = directory_of(paths, next(iter(dead_letters(paths))).key)
        assert (folder / f"{letters[0]}.why").exists()
        if child.returncode == 0:
            break
    assert killed >= 3


def test_one_that_waits_in_line_too_stops_nothing(tmp_path: Path) -> None:
    """Killed between the entry and the cursor's note, and asked for once more after the start."""
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery, letters = delivery_of(process, server.url)
        names = [process.seal() for _ in range(3)]
        for name in names:
            delivery.notify(name)
        letters.put(names[1], (process.paths.spool / names[1]).read_bytes(), "no")
        retry_all(tmp_path)
        delivery._claim_own()
        assert delivery._own is not None
        delivery._take_noted()
        delivery._turn()
        assert len(server.accepted) == 2  # the dead letter, and the first batch
        while delivery._turn():
            pass
        assert sorted(server.accepted) == sorted(process.sealed)
        assert letters.names() == []
        assert (delivery._own.waiting, delivery.stats()["evicted"]) == (0, 0)
        delivery._own.release()


def test_other_batches_have_turns_between_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubmission, "_BUDGET_S", 0.0)
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery, letters = delivery_of(process, server.url)
        names = [process.seal() for _ in range(4)]
        for name in names[:3]:
            letters.put(name, (process.paths.spool / name).read_bytes(), "no")
        retry_all(tmp_path)
        delivery._claim_own()
        delivery.notify(names[3])
        assert delivery._turn()
        assert process.sealed[3] in server.accepted
        assert len(server.accepted) < 4
        while len(server.accepted) < 4:
            delivery._turn()
        assert sorted(server.accepted) == sorted(process.sealed)
        assert delivery._own is not None
        delivery._own.release()


def test_one_that_is_accepted_in_line_is_removed(tmp_path: Path) -> None:
    """Killed between the entry and the cursor's note; the target takes the batch by now."""
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery, letters = delivery_of(process, server.url)
        name = process.seal()
        letters.put(name, (process.paths.spool / name).read_bytes(), "no")
        delivery.start()
        delivery.notify(name)
        assert delivery.finish(30)
    assert server.accepted == process.sealed
    assert letters.names() == []


def test_failed_retry_is_repeated_once_retry_after_has_passed(tmp_path: Path) -> None:
    """And not while the target has to be left alone; other batches are no part of it."""
    process = Process(tmp_path)
    now, sent = [0.0], []
    schedule = Schedule(RetryPolicy(Backoff(jitter=0)), lambda: now[0])
    with CirronServer().running() as server:
        server.faults = [Fault(429, {"Retry-After": "100"})]
        _, letters = delivery_of(process, server.url)
        name = process.seal()
        letters.put(name, (process.paths.spool / name).read_bytes(), "no")
        retry_all(tmp_path)
        target, stats = cirron_target(server.url), DeliveryStats("x")
        again = Resubmission(process.paths, target, schedule, letters, stats)
        again.every_s = 0.0
        for _ in range(3):
            assert not again.run(lambda batch, _receipt: sent.append(batch.name))
        assert (len(server.posts()), sent, letters.requested()) == (1, [], [name])
        assert schedule.failing == 0
        now[0] = 102.0
        assert not again.run(lambda batch, _receipt: sent.append(batch.name))
    assert (sent, letters.names()) == ([name], [])


def test_a_request_for_a_batch_that_is_gone_is_removed(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery, letters = delivery_of(process, server.url)
        letters.put("1.json", b"{}", "no")
        retry_all(_spool(tmp_path))
        folder = directory_of(process.paths, cirron_target(server.url).key)
        (folder / "1.json").unlink()
        delivery._resubmission.run(lambda _: None)
        assert list(folder.iterdir()) == []
        assert server.posts() == []
