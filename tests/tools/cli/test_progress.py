"""Progress on stderr: a bar on a terminal, lines elsewhere, and nothing else of a command changes.

The commands are processes whose clock advances when they open a file of a spool
(`programs/passing_time.py`), so that no test depends on how long anything takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.tools.cli import output, progress
from cirron_otel.tools.cli.progress import ProgressStage, bar
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.tools.conftest import SPOOLS, environment

PROGRAM = (sys.executable, "-m", "tests.tools.cli.programs.passing_time")
ROOT = Path(__file__).parents[3]
RANKS = SPOOLS / "07_ranks" / ".cirron"
"""23 batches of one run."""
COLUMNS = 80
LINE = re.compile(r"cirron-otel: ([a-z0-9 ]+): (?:\d+ %, .+|still working|[\d.]+ k?B), (\d+ .+)")
ELAPSED = re.compile(r"(?:(\d+) min )?(\d+) s")


@pytest.fixture(autouse=True)
def progress_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests switch progress off."""
    monkeypatch.delenv("CIRRON_OTEL_PROGRESS")


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    stdout: bytes
    stderr: str


def on_pipes(
    *arguments: object, seconds: float = 0.0, interrupted_at: int = 0, stdin: bytes = b"",
    **variables: str,
) -> Done:  # fmt: skip
    """Run a command whose clock advances by `seconds` with each file of a spool."""
    command = [*PROGRAM, str(seconds), str(interrupted_at), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**variables), input=stdin, capture_output=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Done(done.returncode, done.stdout, done.stderr.decode())


def on_a_terminal(
    *arguments: object, seconds: float = 0.0, interrupted_at: int = 0, columns: int = COLUMNS,
    **variables: str,
) -> Done:  # fmt: skip
    """Do the same with a terminal as stderr; the state of the terminal must not change."""
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    before = termios.tcgetattr(end)
    command = [*PROGRAM, str(seconds), str(interrupted_at), *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(**{"TERM": "xterm", **variables}),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=end,
    )  # fmt: skip
    shown = bytearray()
    reading = threading.Thread(target=_read, args=(terminal, shown))
    reading.start()
    stdout, _ = process.communicate(timeout=120)
    assert termios.tcgetattr(end) == before
    os.close(end)
    reading.join()
    os.close(terminal)
    assert b"Traceback" not in shown, shown.decode()
    return Done(process.returncode, stdout, shown.decode())


def _read(terminal: int, shown: bytearray) -> None:
    with contextlib.suppress(OSError):  # every process has closed the terminal
        while piece := os.read(terminal, 65536):
            shown += piece


def screen(shown: str) -> str:
    """Return what is visible on a terminal that has received `shown`."""
    lines, column = [""], 0
    for part in re.split(r"(\r\n|\r|\x1b\[K)", shown):
        if part == "\r\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            assert part.isprintable(), part
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return "\n".join(lines)


def drawn(shown: str) -> list[str]:
    """Return the successive contents of the progress line."""
    return re.findall(r"\r([^\r\n\x1b]+)\x1b\[K", shown)


def lines_of(stderr: str) -> list[tuple[str, int]]:
    """Return the stage and the elapsed seconds of each line of progress."""
    matches = [match for line in stderr.splitlines() if (match := LINE.fullmatch(line))]
    return [(match[1], _seconds(match[2])) for match in matches]


def _seconds(text: str) -> int:
    match = ELAPSED.match(text)
    assert match is not None, text
    return 60 * int(match[1] or 0) + int(match[2])


def without_progress(stderr: str) -> str:
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not LINE.fullmatch(line.rstrip("\n")))


COMMANDS = {
    "report": ("report", RANKS),
    "report --json": ("report", RANKS, "--json"),
    "diagnose": ("diagnose", RANKS, "--json"),
    "diagnose --run all": ("diagnose", SPOOLS / "18_http_wire", "--run", "all"),
    "spool show": ("spool", "show", RANKS, "--run", "last"),
    "spool show --fold": ("spool", "show", RANKS, "--fold", "--json"),
    "runs report": ("runs", "report", SPOOLS, "--json"),
    "convert": ("convert", RANKS, "-", "--to", "otlp-json"),
    "convert --run": ("convert", RANKS, "-", "--to", "otlp-json", "--run", "last"),
}
STAGES = {
    "report": {"reading batches"},
    "diagnose": {"reading batches"},
    "spool show": {"finding the run", "reading batches"},
    "runs report": {"finding the runs of source 4", "reporting"},
    "convert": {"finding the sessions", "converting"},
    "convert --run": {"finding the run", "converting"},
}


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_are_ten_seconds_apart_and_change_nothing_else(name: str) -> None:
    frozen, timed = on_pipes(*COMMANDS[name]), on_pipes(*COMMANDS[name], seconds=3.0)
    assert (timed.code, timed.stdout) == (frozen.code, frozen.stdout)
    assert frozen.stdout
    assert lines_of(frozen.stderr) == []
    assert without_progress(timed.stderr) == frozen.stderr
    lines = lines_of(timed.stderr)
    assert [seconds for _, seconds in lines] == list(range(10, 10 * len(lines) + 1, 10))
    assert lines
    assert {stage for stage, _ in lines} >= STAGES.get(name, set())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_bar_is_gone_before_other_output_and_never_goes_backwards(name: str) -> None:
    frozen, timed = on_a_terminal(*COMMANDS[name]), on_a_terminal(*COMMANDS[name], seconds=0.7)
    assert (timed.code, timed.stdout) == (frozen.code, frozen.stdout)
    assert "\r" not in frozen.stderr.replace("\r\n", "")
    assert screen(timed.stderr) == screen(frozen.stderr)
    shown = drawn(timed.stderr)
    assert shown
    assert max(map(len, shown)) < COLUMNS
    shares: dict[str, list[int]] = {}
    for line in shown:
        if match := re.fullmatch(r"([a-z0-9 ]+?)(?: \[[#-]+\]|:) (\d+) %, .+", line):
            shares.setdefault(match[1], []).append(int(match[2]))
    assert all(each == sorted(each) for each in shares.values())
    assert shares or name.startswith("convert")
    assert [_seconds(ELAPSED.search(line)[0]) for line in shown[:1]] == [2]  # type: ignore[index]


@pytest.mark.parametrize(
    ("seconds", "is_on_a_terminal", "is_shown"),
    [(1.99 / 23, True, False), (2.01 / 23, True, True), (9.9 / 23, False, False),
     (10.1 / 23, False, True)],
)  # fmt: skip
def test_a_shorter_command_shows_nothing(
    seconds: float, is_on_a_terminal: bool, is_shown: bool
) -> None:
    run = on_a_terminal if is_on_a_terminal else on_pipes
    done = run("spool", "show", RANKS, seconds=seconds)
    assert done.code == 0
    assert bool(done.stderr) == is_shown


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_the_line_fits_on_the_terminal(columns: int) -> None:
    done = on_a_terminal("report", RANKS, seconds=1.0, columns=columns)
    widths = set(map(len, drawn(done.stderr)))
    assert max(widths) < columns
    assert any("[" in line for line in drawn(done.stderr)) == (columns >= 80)
    assert screen(done.stderr) == ""


def test_a_terminal_that_cannot_erase_has_lines() -> None:
    done = on_a_terminal("report", RANKS, seconds=1.0, TERM="dumb")
    assert "\x1b" not in done.stderr
    lines = lines_of(done.stderr.replace("\r", ""))
    # The recording is read twice: its scopes are not in the canonical form.
    assert [seconds for _, seconds in lines] == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("run", [on_pipes, on_a_terminal])
def test_progress_can_be_switched_off(run: Callable[..., Done]) -> None:
    done = run("report", RANKS, seconds=3.0, CIRRON_OTEL_PROGRESS="no")
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_leaves_the_terminal_in_order(name: str) -> None:
    done = on_a_terminal(*COMMANDS[name], seconds=3.0, interrupted_at=4)
    assert done.code == 130
    assert drawn(done.stderr)
    assert screen(done.stderr) == "cirron-otel: interrupted\n"
    assert done.stdout == b""


def test_an_error_clears_the_bar_first(tmp_path: Path) -> None:
    places = [("--run", "no-such-run"), ("--perfetto", tmp_path / "missing" / "trace.json")]
    for options, code in zip(places, (2, 4), strict=True):
        done = on_a_terminal("report", RANKS, *options, seconds=1.0)
        assert done.code == code
        assert drawn(done.stderr)
        [line, rest] = screen(done.stderr).split("\n")
        assert line.startswith("cirron-otel: error: ")
        assert rest == ""


def test_a_message_in_between_does_not_share_its_line_with_the_bar(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = on_a_terminal("report", RANKS, "--html", page, seconds=1.0)
    assert done.code == 0
    assert screen(done.stderr) == f"cirron-otel: {page} is written: open it in a browser\n"


def test_a_total_that_is_unknown_is_not_shown(tmp_path: Path) -> None:
    messages = tmp_path / "messages.jsonl"
    convert(ConvertRequest(str(RANKS), str(messages)))
    spools = [tmp_path / "frozen", tmp_path / "timed"]
    for spool, seconds in zip(spools, (0.0, 3.0), strict=True):
        done = on_pipes(
            "convert", "-", spool, "--from", "otlp-json", "--to", "spool", "--json",
            seconds=seconds, stdin=messages.read_bytes(),
        )  # fmt: skip
        assert done.code == 0
        assert len(list((spool / "spool").iterdir())) == 23
    lines = done.stderr.splitlines()
    assert all(re.fullmatch(r"cirron-otel: converting: [\d.]+ k?B, .+", line) for line in lines)
    assert [seconds for _, seconds in lines_of(done.stderr)][:2] == [10, 20]


def test_a_report_of_a_file_shows_how_much_of_it_is_read(tmp_path: Path) -> None:
    messages = tmp_path / "messages.jsonl"
    convert(ConvertRequest(str(RANKS), str(messages)))
    done = on_pipes("report", messages, "--json", seconds=3.0)
    stages = list(dict.fromkeys(stage for stage, _ in lines_of(done.stderr)))
    assert stages[:2] == ["reading", "reading batches"]
    assert re.search(r"reading: \d+ %, [\d.]+ k?B of 105 kB", done.stderr)


def test_the_work_after_the_reading_has_a_name(tmp_path: Path) -> None:
    """A report reads some batches again; time passes then, too."""
    copy = tmp_path / ".cirron"
    shutil.copytree(RANKS, copy)
    done = on_pipes("report", copy, "--html", tmp_path / "page.html", seconds=10.0)
    assert re.search(r"^cirron-otel: reporting: still working, ", done.stderr, re.MULTILINE)


def test_the_columns_of_an_engine_are_read_with_progress(tmp_path: Path) -> None:
    options = ("report", RANKS, "--json", "--engine", "duckdb")
    found = [
        on_pipes(*options, seconds=seconds, XDG_CACHE_HOME=str(tmp_path / str(seconds)))
        for seconds in (0.0, 3.0)
    ]
    assert found[0].stdout == found[1].stdout
    assert "reading batches" in {stage for stage, _ in lines_of(found[1].stderr)}


def test_a_named_pipe_has_no_total(tmp_path: Path) -> None:
    messages, pipe = tmp_path / "messages.jsonl", tmp_path / "pipe.jsonl"
    convert(ConvertRequest(str(RANKS), str(messages)))
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(messages.read_bytes(),))
    writer.start()
    done = on_pipes("convert", pipe, tmp_path / "spool", "--to", "spool", seconds=3.0)
    writer.join()
    assert done.code == 0
    lines = done.stderr.splitlines()
    assert lines
    assert all(re.fullmatch(r"cirron-otel: converting: [\d.]+ k?B, .+", line) for line in lines)


def test_an_interrupted_conversion_to_a_file_leaves_none(tmp_path: Path) -> None:
    done = on_pipes("convert", RANKS, tmp_path / "x.jsonl", seconds=3.0, interrupted_at=30)
    assert done.code == 130
    assert not list(tmp_path.iterdir())


def test_a_stderr_that_cannot_be_written_breaks_nothing() -> None:
    command = [*PROGRAM, "3", "0", *map(str, COMMANDS["report --json"])]
    for redirection in ("2>&-", "2>/dev/full", "2> >(exec true)"):
        shell = ["bash", "-c", f'"$@" {redirection}', "bash", *command]
        done = subprocess.run(
            shell, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, timeout=120, check=False
        )
        assert done.returncode == 0, redirection
        assert done.stdout == on_pipes(*COMMANDS["report --json"]).stdout


def test_a_result_on_the_same_terminal_is_not_interrupted_by_a_bar() -> None:
    terminal, end = os.openpty()
    command = [*PROGRAM, "1", "0", *map(str, COMMANDS["convert"])]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(TERM="xterm"), stdout=end, stderr=end
    )
    os.close(end)
    shown = bytearray()
    _read(terminal, shown)
    os.close(terminal)
    assert process.wait() == 0
    assert b"\x1b" not in shown


def test_a_stage_as_text() -> None:
    stage = ProgressStage("reading", "batches", "reporting", began=100.0)
    assert stage.text(102.0, 5.9) == ("reading", None, "still working, 5 s")
    stage.done = 1200
    assert stage.text(102.0, 5.0) == ("reading", None, "1,200 batches, 5 s")
    stage.total = 4800
    share = "25 %, 1,200 of 4,800 batches"
    assert stage.text(101.0, 65.0) == ("reading", 0.25, f"{share}, 1 min 05 s")
    assert stage.text(110.0, 5.0) == ("reading", 0.25, f"{share}, 5 s, about 30 s left")
    stage.done = 4800
    assert stage.text(102.0, 5.0) == ("reporting", None, "still working, 5 s")
    stage.then = None
    assert stage.text(102.0, 5.0) == ("reading", 1.0, "100 %, 4,800 of 4,800 batches, 5 s")
    of_bytes = ProgressStage("reading", "bytes", None, 0.0, done=1_500_000, total=6_000_000)
    assert of_bytes.text(1.0, 1.0) == ("reading", 0.25, "25 %, 1.5 MB of 6 MB, 1 s")


def test_the_length_of_the_bar_follows_from_the_terminal() -> None:
    assert bar("reading", 0.5, "50 %", 80) == f"reading [{'#' * 20}{'-' * 20}] 50 %"
    assert bar("reading", 0.5, "50 %", 40) == f"reading [{'#' * 10}{'-' * 10}] 50 %"
    assert bar("reading", 0.99, "99 %", 26) == "reading [#########-] 99 %"
    assert bar("reading", 0.5, "50 %", 25) == "reading: 50 %"
    assert bar("reading", None, "still working", 80) == "reading: still working"
    assert bar("reading", 0.5, "50 %", 10) == "reading: "
    assert bar("reading", 0.5, "50 %", 1) == ""


def test_an_inner_block_begins_a_stage_of_the_outer_one() -> None:
    with progress.progress("outer") as outer:
        outer(3, 4)
        outer(2, 4)
        assert (outer.current.done, outer.current.total) == (3, 4)
        with progress.progress("inner", "bytes") as inner:
            assert inner is outer
            assert (inner.current.name, inner.current.unit, inner.current.done) == (
                "inner", "bytes", 0,
            )  # fmt: skip
        assert [*outer.each("ab")] == ["a", "b"]
        assert (outer.current.done, outer.current.total) == (2, 2)
        assert threading.active_count() > 1
    assert not [each for each in threading.enumerate() if each.name == progress.THREAD]


def test_the_observer_of_a_pass_cannot_raise(tmp_path: Path) -> None:
    """It only stores two numbers, whatever has become of stderr and of the display."""
    SpoolWriter(tmp_path, max_bytes=None)
    (tmp_path / "spool").mkdir(exist_ok=True)
    with progress.progress("reading") as shown:
        pass
    assert list(SpoolReader(tmp_path, on_progress=shown)) == []
    for done, total in ((0, None), (5, 3), (2**70, 0), (-1, None)):
        shown(done, total)
        name, _, _ = shown.current.text(0.0, 0.0)
        assert name == "reading"


def test_the_clock_waits_until_it_is_stopped() -> None:
    clock, stop = progress.DisplayClock(), threading.Event()
    before = clock.now()
    assert not clock.wait(stop, 0.0)
    stop.set()
    assert clock.wait(stop, 600.0)
    assert clock.now() >= before


def test_output_in_between_clears_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.status_line.draw("reading")
    output.result("a result")
    output.message("a message")
    out, err = capsys.readouterr()
    assert out == "a result\n"
    assert err == "\rreading\x1b[K\r\x1b[Kcirron-otel: a message\n"
