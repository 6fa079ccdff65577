"""A script or a module in a fork sees what it sees in a new interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .forked_scripts import ForkedScripts
from .sessions.processes import environment

pytestmark = pytest.mark.torch
PROGRAM = """
import sys
main = sys.modules["__main__"]
spec = getattr(main, "__spec__", None)
print(sys.argv, sys.path[0], __name__, __package__, __file__, spec and spec.name)
print(main.__dict__ is globals(), __file__ in str(main))
raise ValueError("the end")
"""


@pytest.mark.parametrize("words", [("{folder}/shown.py",), ("-m", "shown"), ("-m", "inner.shown")])
def test_a_program_in_a_fork_is_like_one_in_a_new_interpreter(
    words: tuple[str, ...], scripts: ForkedScripts, tmp_path: Path
) -> None:
    (tmp_path / "inner").mkdir()
    for path in ("shown.py", "inner/shown.py"):
        (tmp_path / path).write_text(PROGRAM)
    *option, name = (each.format(folder=tmp_path) for each in words)
    expected = subprocess.run(
        [sys.executable, *option, name, "a", "b"], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if option:
        done = scripts.module(name, "a", "b", cwd=tmp_path)
    else:
        done = scripts.script(Path(name), "a", "b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.splitlines()[-3:] == expected.stderr.splitlines()[-3:]


def test_a_fork_that_imports_triton_has_no_other_output(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    done = scripts.text("import sys, triton; print('one', file=sys.stderr)", tmp_path)
    assert (done.stdout, done.stderr) == ("", "one\n")
