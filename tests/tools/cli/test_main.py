"""Usage, help, and the end of the command in general."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.tools.cli import main as exported
from cirron_otel.tools.cli.main import run as run_here
from tests.tools.conftest import (
    COMMAND,
    Run,
    environment,
    one_line,
)


def test_main_leaves_with_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        exported(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == "cirron-otel 0.1.0\n"


_INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)

_, interrupted, program = sys.argv
sys.meta_path.insert(0, Finder())
sys.argv = [program, "stormlog", "--help"]
if program == "cirron-otel":
    from cirron_otel.tools.cli import main
    main()
runpy.run_module("cirron_otel", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("program", ["cirron-otel", "cirron_otel/__main__.py"])
@pytest.mark.parametrize(
    "module", ["click", "cirron_otel.tools.cli.main", "cirron_otel.tools.cli.stormlog"]
)
def test_an_interrupt_while_modules_are_imported_is_one_line(program: str, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, module, program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "cirron-otel: interrupted\n")


def test_other_programs_keep_their_interrupt(tmp_path: Path) -> None:
    code = (
        "import signal\nfrom cirron_otel.tools.cli import main\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    program = tmp_path / "other.py"
    program.write_text(code)
    subprocess.run([sys.executable, program], check=True)


@pytest.mark.parametrize(
    "arguments",
    ["--help", "convert --help", "export -h", "demo -h", "spool -h"]
    + [f"spool {name} --help" for name in ("ls", "show", "verify", "prune")],
)
def test_help_is_a_result(run: Run, arguments: str) -> None:
    result = run(*arguments.split())
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: cirron-otel")
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", ["", "spool"])
def test_without_a_command_the_help_goes_to_stderr(run: Run, arguments: str) -> None:
    result = run(*arguments.split())
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("nothing", "No such command 'nothing'"),
        ("convert", "Missing argument 'SRC'"),
        ("convert a b --form spool", "No such option"),
        ("convert a b --to otlp", "'otlp' is not one of"),
        ("convert a b --jobs 0", "0 is not in the range"),
        ("convert a b --trace-layout one", "'one' is not one of"),
        ("spool show --depth 65", "65 is not in the range"),
        ("spool prune", "with --max-bytes or --older-than"),
        ("spool prune --max-bytes 1e3", "'1e3' is not a size"),
        ("spool prune --max-bytes 1iB", "'1iB' is not a size"),
        ("spool prune --older-than 7", "'7' is not an age"),
        ("convert .cirron - --json", "both write to stdout"),
        ("convert .cirron x.jsonl --select lap=3", "cannot select by 'lap=3'"),
        ("convert .cirron x.jsonl --select epoch=a..b", "cannot select by epoch=a..b"),
        ("convert .cirron x.txt", "x.txt has no known suffix"),
        ("convert .cirron/none.txt x.jsonl --from nonsense", "'nonsense' is not one of"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, spool: Path, arguments: str, text: str) -> None:
    assert text in one_line(run(*arguments.split()), 2)


def test_an_unknown_suffix_of_the_source_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.xml").write_text("<trace/>")
    assert "trace.xml has no known suffix" in one_line(run("convert", "trace.xml", "o.jsonl"), 2)


def test_closed_output_pipe_prints_no_error(spool: Path) -> None:
    """`spool show | head`: the pipe is closed before anything is written."""
    shell = f"set -o pipefail; {COMMAND} spool show | exec 0<&-; echo ${{PIPESTATUS[0]}}"
    command = ["bash", "-c", shell]
    done = subprocess.run(
        command, cwd=spool.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout in ("4\n", "0\n")


@pytest.mark.parametrize("arguments", [["spool", "ls"], ["spool", "ls", "--json"]])
def test_a_full_stdout_is_a_target_that_cannot_be_written(
    spool: Path, arguments: list[str]
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=spool.parent,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "standard output cannot be written: No space left" in one_line(done, 4)


def test_internal_error_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spool: Path
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("cirron_otel.core.run.spool_summary.summarise", broken)
    assert run_here(["spool", "ls", str(spool)]) == 1
    message = capsys.readouterr().err
    assert message.startswith("cirron-otel: internal error: ValueError: two lines; please report")
    assert message.count("\n") == 1
    monkeypatch.setenv("CIRRON_OTEL_DEBUG", "1")
    assert run_here(["spool", "ls", str(spool)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_locale_that_cannot_show_it_stops_nothing(run: Run, spool: Path) -> None:
    result = run("spool", "show", env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "epoch 0" in result.stdout
    assert result.stdout.isascii()


def test_starting_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, cirron_otel.tools.cli;"
        "heavy = ('google.protobuf', 'rich', 'opentelemetry', 'grpc');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_json_is_one_document_of_ascii(run: Run, spool: Path) -> None:
    for arguments in ("ls", "show", "verify", "prune --max-bytes 1GB --dry-run"):
        result = run("spool", *arguments.split(), "--json")
        assert result.returncode == 0, result.stderr
        assert result.stdout.isascii()
        assert result.stdout.count("\n") == 1
        assert json.loads(result.stdout)["path"] == ".cirron/spool"
        assert result.stderr == ""
