"""Completion in a real bash, and the scripts for the other shells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.tools.cli.main import COMMANDS
from tests.tools.conftest import COMMAND, environment

SCRIPT = """
eval "$(_CIRRON_OTEL_COMPLETE=bash_source cirron-otel)"
compopt() { echo "$2"; }  # the shell's own works only while it completes
for line in "$@"; do
  read -ra COMP_WORDS <<<"$line"
  [[ "$line" == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  "$(complete -p cirron-otel | sed -E 's/.*-F (\\w+).*/\\1/')" cirron-otel
  echo "= ${COMPREPLY[*]}"
done
"""


def completed(*lines: str, directory: Path | None = None) -> list[str]:
    """Return the completions that bash offers for each line, as text."""
    done = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", *lines],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    answers, options = [], ""
    for line in done.stdout.splitlines():
        if line.startswith("= "):
            answers.append(options + line[2:])
            options = ""
        else:
            options += f"{line}; "
    return answers


def test_bash_completes_commands_options_values_and_files() -> None:
    commands, below, option, value, source, file = completed(
        "cirron-otel ",
        "cirron-otel spool ",
        "cirron-otel report --ht",
        "cirron-otel export .cirron --trace-layout ",
        "cirron-otel convert ",
        "cirron-otel report --html ",
    )
    assert set(commands.split()) == COMMANDS
    assert {"ls", "show", "verify"} <= set(below.split())
    assert option == "--html"
    assert value == "segmented session"
    assert source == "default; "
    assert file == "default; "


def test_bash_completes_the_runs_of_the_spool(tmp_path: Path) -> None:
    program = "import cirron_otel as ci\nci.profile(frameworks=[], quiet=True)\nci.shutdown()"
    for name, place in (("first", ".cirron"), ("second", ".cirron"), ("third", "other")):
        variables = environment(CIRRON_RUN_NAME=name, CIRRON_OUTPUT_DIR=place)
        subprocess.run([sys.executable, "-c", program], env=variables, cwd=tmp_path, check=True)
    assert completed(
        "cirron-otel report --run ",
        "cirron-otel report --run s",
        "cirron-otel report other --run ",
        "cirron-otel spool show missing --run ",
        directory=tmp_path,
    ) == ["second first last all", "second", "third last all", "last all"]


@pytest.mark.parametrize(
    ("shell", "part"),
    [("zsh", "compdef _cirron_otel_completion cirron-otel"), ("fish", "complete")],
)
def test_other_shells_get_a_script(shell: str, part: str) -> None:
    done = subprocess.run(
        [COMMAND],
        env=environment(_CIRRON_OTEL_COMPLETE=f"{shell}_source"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert part in done.stdout


def test_the_page_names_the_variable_for_each_shell() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    for shell in ("bash", "zsh", "fish"):
        assert f"_CIRRON_OTEL_COMPLETE={shell}_source cirron-otel" in page
