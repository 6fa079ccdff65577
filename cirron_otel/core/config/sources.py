"""The sources of options, in the order of precedence.

1. keyword arguments of `profile()`
2. `config=` of `profile()`, which has the keys of the `profiling:` block of cirron.yaml
3. keyword arguments of `Cirron()`
4. environment variables, `CIRRON_*`
5. the `profiling:` block of cirron.yaml, cirron.yml or cirron.json: the file that `path=` names,
   or else the nearest one from the working directory upwards
6. the `[default]` table of `~/.cirron/config.toml`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .engine import TextFileError, read_text_file
from .options import NOT_GIVEN, OPTIONS, Option

PROJECT_FILES = ("cirron.yaml", "cirron.yml", "cirron.json")
USER_FILE = Path(".cirron", "config.toml")
_BLOCK = "profiling"
_TABLE = "default"
_LINE = re.compile(r"\(at line ([0-9]+),")


class OptionSource(NamedTuple):
    """One source, with its values keyed by option name."""

    values: Mapping[str, object]
    suffix: str
    """The text that messages append to an option's name to describe the source."""
    is_environment: bool = False
    is_project: bool = False
    is_user_file: bool = False

    def says(self, option: Option) -> object:
        """Return the value for `option`, or NOT_GIVEN."""
        value = self.values.get(option.name, NOT_GIVEN)
        return NOT_GIVEN if value is None and not option.key.takes_none else value

    def place(self, option: Option) -> str:
        """Return how messages refer to the place of an option's value."""
        return option.variable if self.is_environment else option.name + self.suffix

    def may_say(self, option: Option) -> bool:
        """Return whether this source may set the option."""
        return (option.key.in_project or not self.is_project) and (
            option.key.in_user_file or not self.is_user_file
        )


class SourceError(Exception):
    """A source cannot be used; the message completes a sentence that begins with its name."""


def from_mapping(found: object, what: str) -> OptionSource:
    """Return the source of a call's arguments. Raises SourceError if `found` is not a mapping."""
    if found is None or found is NOT_GIVEN:
        return OptionSource({}, what)
    if not isinstance(found, Mapping):
        raise SourceError(f"is a {type(found).__name__}: expected a dict")
    return OptionSource(dict(found), what)


def from_environment(environ: Mapping[str, str]) -> OptionSource:
    """Read the environment variables; an empty one counts as unset, as in OpenTelemetry."""
    values: dict[str, object] = {
        option.name: value
        for option in OPTIONS
        if (value := environ.get(option.variable, "").strip())
    }
    return OptionSource(values, "", is_environment=True)


def find_project_file(cwd: Path) -> Path | None:
    """Return the nearest project file, from `cwd` upwards; None if there is none."""
    for directory in (cwd, *cwd.parents):
        for name in PROJECT_FILES:
            if _is_file(directory / name):
                return directory / name
    return None


def from_project_file(path: Path) -> OptionSource:
    """Return the `profiling:` block of `path`. Raises SourceError if it cannot be read."""
    is_json = path.suffix.lower() == ".json"
    whole = _parsed(path, _load_json if is_json else _load_yaml)
    return OptionSource(_table(whole, _BLOCK), f" in {path}", is_project=True)


def from_user_file(path: Path) -> OptionSource:
    """Return the `[default]` table of `path`. Raises SourceError if it cannot be read."""
    return OptionSource(_table(_parsed(path, _load_toml), _TABLE), f" in {path}", is_user_file=True)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    if not _is_file(path):
        raise SourceError("is not a readable file")
    try:
        return read_text_file(path, blocks_on_pipe=False)
    except TextFileError as problem:
        raise SourceError(str(problem)) from None


# Import parsers only if there is a file to parse, so that `import cirron_otel` stays cheap.


def _load_yaml(text: str) -> Any:
    from .safe_yaml import loads  # noqa: PLC0415

    return loads(text)


def _load_json(text: str) -> Any:
    import json  # noqa: PLC0415

    return json.loads(text)


def _load_toml(text: str) -> Any:
    import tomllib  # noqa: PLC0415

    return tomllib.loads(text)


def _parsed(path: Path, load: Callable[[str], Any]) -> Any:
    text = _read(path)
    try:
        return load(text)
    except RecursionError:
        raise SourceError("is nested too deeply") from None
    # YAML's constructors may raise any error, for example for an invalid date.
    except Exception as error:
        raise SourceError(f"is invalid ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """Return the type of an error and its line, but not its text, which may quote an API key."""
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
    # Up to Python 3.13, tomllib reports the line only in its text.
    if line is None and (match := _LINE.search(str(error))):
        line = match[1]
    return type(error).__name__ + (f" in line {line}" if line is not None else "")


def _table(whole: object, name: str) -> Mapping[str, object]:
    """Return the table `name` of a file, or an empty table if the file does not contain it."""
    if whole is None:
        return {}
    if not isinstance(whole, dict):
        raise SourceError(f"is not a mapping, so it has no {name!r}")
    table = whole.get(name)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise SourceError(f"has a {name!r} that is not a mapping")
    return table
