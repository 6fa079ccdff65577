"""Workers have their own arguments, directory and environment, forked or not; none remains."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from . import worker_processes
from .worker_processes import Process, Workers

PROGRAM = """
import os
import sys
import time

def main(name):
    print("hidden", file=sys.stderr, flush=True)
    for line in sys.stdin:
        if line == "fail\\n":
            raise ValueError("as asked")
        while line == "work\\n" and time.process_time() < 0.5:
            pass
        if line == "hang\\n":
            print(os.getpid(), flush=True)
            time.sleep(600)
        if line == "leave\\n":
            if not (child := os.fork()):
                time.sleep(600)
            print(child, flush=True)
            break
        print(name, line.strip(), os.getcwd(), os.environ["OWN"], flush=True)
    os._exit(0)

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.fixture(params=[False, True], ids=["started", "forked"])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Workers:
    program = tmp_path / "answering_program.py"
    program.write_text(PROGRAM)
    return Workers(program, request.param)


def started(workers: Workers, folder: Path, name: str) -> Process:
    (folder / name).mkdir()
    env = os.environ | {"PYTHONPATH": str(folder), "OWN": f"of {name}"}
    return workers.start(Path(sys.executable), [name], folder / name, env)


def test_each_worker_has_its_own_arguments_directory_and_environment(
    workers: Workers, tmp_path: Path
) -> None:
    with workers:
        both = {name: started(workers, tmp_path, name) for name in ("a", "b")}
        for name, process in both.items():
            assert process.ask("hello") == f"{name} hello {tmp_path / name} of {name}\n"
        for process in both.values():
            process.end()
    assert (tmp_path / "a" / "log").read_text() == "hidden\n"


def test_a_worker_that_fails_gives_no_answer_and_leaves_its_traceback(
    workers: Workers, tmp_path: Path
) -> None:
    with workers:
        process = started(workers, tmp_path, "a")
        assert process.ask("fail") == ""
        assert process.ask("hello") == ""
        process.end()
    assert "ValueError: as asked" in (tmp_path / "a" / "log").read_text()


def test_a_worker_that_does_not_end_is_killed(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "_END_S", 0.1)
    with workers:
        process = started(workers, tmp_path, "a")
        pid = int(process.ask("hang"))
        start = time.monotonic()
        process.end()
    assert time.monotonic() - start < 50, "the forked process was not killed on request"
    end = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_worker_that_has_ended_but_left_its_output_open_is_not_killed(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workers:
        process = started(workers, tmp_path, "a")
        child = int(process.ask("leave"))
        try:
            for name in ("b", "c"):  # each start makes the server wait for those that have ended
                started(workers, tmp_path, name).end()
            monkeypatch.setattr(worker_processes, "_END_S", 0.1)
            process.end()
            monkeypatch.undo()
            last = started(workers, tmp_path, "d")  # the process that is forked goes on
            assert last.ask("hello").startswith("d hello")
            last.end()
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_cpu_time_of_a_worker_is_part_of_that_of_the_children(
    workers: Workers, tmp_path: Path
) -> None:
    before = cpu_time_of_children()
    with workers:
        process = started(workers, tmp_path, "a")
        assert process.ask("work").startswith("a work")
        process.end()
    assert cpu_time_of_children() - before >= 0.5


def cpu_time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
