"""Load the collector's options from one YAML file and the flags that override it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from ...core.config.engine import TextFileError, read_text_file
from ...core.config.safe_yaml import loads
from ...errors import UsageError
from .checks import problems_of, warnings_of
from .options import CollectorOptions
from .substitution import Expander, below, expand
from .validation import read_options, structured

_MAX_SHOWN = 20

FLAGS: Final[Mapping[str, str]] = {
    "--spool": "spool.directory",
    "--storage": "storage.url",
    "--blobs": "blobs.url",
    "--parquet": "parquet.url",
    "--grpc": "receivers.grpc.address",
    "--http": "receivers.http.address",
    "--traceml": "receivers.traceml.address",
    "--traceml-forward": "receivers.traceml.forward",
    "--log-level": "logs.level",
}
"""The key that each flag sets."""


class ConfigError(UsageError):
    """An invalid configuration. `problems` contains one line per problem, without secrets."""

    def __init__(self, problems: list[str]) -> None:
        more = f"; {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
        super().__init__("; ".join(problems[:_MAX_SHOWN]) + more)
        self.problems = tuple(problems)


class Loaded(NamedTuple):
    """Valid options, and warnings about unwise options, one line each."""

    options: CollectorOptions
    warnings: tuple[str, ...]


def load_options(
    file: str | os.PathLike[str] | None = None,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Load the options of `file`, overridden by `flags`, whose names are in FLAGS.

    `environ` defaults to the process environment. Files that the options name are opened to check
    that they can be read. Raises ConfigError with all problems.
    """
    overrides = flags or {}
    source = _ConfigFile("the configuration", {}, {}) if file is None else _read(Path(file))
    expander = Expander(partial(expand, environ=os.environ if environ is None else environ))
    tree = expander.tree(source.tree)
    paths = {FLAGS[flag]: flag for flag in overrides}

    def where(path: str) -> str:
        return paths.get(path) or source.where(path)

    problems = [f"{where(path)} {text}" for path, text in expander.problems if path not in paths]
    for flag, value in overrides.items():
        tree = _with(tree, FLAGS[flag].split("."), value)
    options = read_options(tree, where, problems)
    if options is None or problems:
        raise ConfigError(problems)
    wrong = [f"{where(path)} {text}" for path, text in problems_of(options)]
    if wrong:
        raise ConfigError(wrong)
    return Loaded(options, tuple(warnings_of(options)))


class _ConfigFile(NamedTuple):
    """The values of a file, and their line numbers by path."""

    name: str
    tree: Any
    lines: Mapping[str, int]

    def where(self, path: str) -> str:
        """Return the location of `path` in the file, for messages."""
        if not path:
            return self.name
        nearest = path
        while nearest and nearest not in self.lines:
            nearest = nearest[: max(nearest.rfind("."), nearest.rfind("["), 0)]
        line = f":{self.lines[nearest]}" if nearest else ""
        return f"{self.name}{line}: {path}"


def _with(tree: Any, path: list[str], value: str) -> Any:
    """Return `tree` with `value` at `path`; unchanged if the path leads through a non-mapping."""
    tree = structured({} if tree is None else tree)
    if not isinstance(tree, dict):
        return tree
    name, *rest = path
    return {**tree, name: _with(tree.get(name), rest, value) if rest else value}


def _read(path: Path) -> _ConfigFile:
    """Read and parse a file. Raises ConfigError."""
    name = str(path)
    text = _text(path)
    try:
        tree = loads(text)
        lines, repeated = _places(text)
    except RecursionError:
        raise ConfigError([f"{name} is nested too deep"]) from None
    # YAML constructors may raise any exception, for example for an invalid date.
    except Exception as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError([f"{name}{line} is not YAML: {_reason(error)}"]) from None
    source = _ConfigFile(name, tree, lines)
    if repeated:
        raise ConfigError([f"{name}:{line}: {path} is repeated" for path, line in repeated])
    return source


def _reason(error: Exception) -> str:
    """Describe a YAML error without quoting the file, which may contain secrets."""
    if isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError) and error.problem:
        return error.problem
    return str(error) if type(error) is yaml.YAMLError else type(error).__name__


def _text(path: Path) -> str:
    try:
        return read_text_file(path)
    except TextFileError as problem:
        raise ConfigError([f"{path} {problem}"]) from None


class _OpenCollection:
    """A mapping or a list whose events are being read."""

    def __init__(self, path: str, *, is_mapping: bool) -> None:
        self.path, self.is_mapping = path, is_mapping
        self.key: str | None = None
        self.keys: set[str] = set()
        self.items = 0


def _places(text: str) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Return the line of each key and item by its path, and the repeated keys of mappings."""
    lines: dict[str, int] = {}
    repeated: list[tuple[str, int]] = []
    levels: list[_OpenCollection] = []
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            levels.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        line = event.start_mark.line + 1 if event.start_mark else 0
        level = levels[-1] if levels else None
        path = ""
        if level is not None and level.is_mapping and level.key is None:
            level.key = event.value if isinstance(event, yaml.ScalarEvent) else "?"
            path = below(level.path, level.key)
            if level.key in level.keys and level.key != "<<":
                repeated.append((path, line))
            level.keys.add(level.key)
        elif level is not None and level.is_mapping:
            path, level.key = below(level.path, level.key), None
        elif level is not None:
            path, level.items = f"{level.path}[{level.items}]", level.items + 1
        lines.setdefault(path, line)
        if isinstance(event, yaml.CollectionStartEvent):
            levels.append(
                _OpenCollection(path, is_mapping=isinstance(event, yaml.MappingStartEvent))
            )
    return lines, repeated
