"""The command line of the package in this process: starting Python takes longer than most calls."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

import click

Output = tuple[str, bytes]
"""The name of an output and its bytes."""


class CommandLine:
    """Runs commands, and captures what they write."""

    def __init__(self) -> None:
        """Load the console script of the package; its files are in the working directory."""
        (script,) = entry_points(group="console_scripts", name="cirron-otel")
        self._main = script.load()
        self._files: list[IO[bytes]] = [
            Path(f"{name}.captured").open("w+b")  # noqa: SIM115
            for name in ("stdout", "stderr")
        ]

    def run(self, *arguments: str) -> tuple[int, bytes, bytes]:
        """Run a command; return its exit code, its stdout and its stderr."""
        with self._captured():
            try:
                self._main(list(arguments))
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            except BaseException as error:  # an outcome, too
                print(f"raised {type(error).__name__}: {error}", file=sys.stderr)
                code = -1
            sys.stdout.flush()
            sys.stderr.flush()
        out, messages = map(_content, self._files)
        return code, out, messages

    def root(self) -> click.Group:
        """Return the group of all commands, in whichever module it is."""
        invoked: list[click.Group] = []
        make_context = click.Group.make_context

        def noted(group: click.Group, *arguments: Any, **options: Any) -> click.Context:
            invoked.append(group)
            return make_context(group, *arguments, **options)

        click.Group.make_context = noted  # type: ignore[method-assign]
        try:
            self.run("--version")
        finally:
            click.Group.make_context = make_context  # type: ignore[method-assign]
        return invoked[0]

    def outputs(self, name: str, *arguments: str) -> Iterator[Output]:
        """Run a command and yield its exit code, stdout and messages."""
        code, out, messages = self.run(*arguments)
        yield f"{name} | code", str(code).encode()
        yield f"{name} | stdout", out
        yield f"{name} | messages", messages

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        """Redirect the file descriptors, too: some output bypasses `sys.stdout`."""
        saved, streams = (os.dup(1), os.dup(2)), (sys.stdout, sys.stderr)
        for number, file in enumerate(self._files, 1):
            file.seek(0)
            file.truncate()
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(open(number, "wb", closefd=False), encoding="utf-8")  # noqa: SIM115
            for number in (1, 2)
        )
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for number, descriptor in enumerate(saved, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end."""
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def content(place: Path) -> bytes:
    """Return the bytes of a file, or the names and bytes of the files below a directory."""
    if not place.is_dir():
        return place.read_bytes() if place.exists() else b"(no file)"
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return b"".join(
        f"--- {path.relative_to(place)}\n".encode() + path.read_bytes() + b"\n" for path in files
    )
