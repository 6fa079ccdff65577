"""The places that options stand in, first the one that goes first.

1. keyword arguments of `profile()`
2. its `config=`, shaped like the `profiling:` block of cirron.yaml
3. keyword arguments of `Cirron()`
4. variables, `CIRRON_*`
5. the `profiling:` block of cirron.yaml, cirron.yml or cirron.json: the one that `path=` names,
   else the nearest from the working directory upwards
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
    """One place, and what stands there by the name of the option."""

    values: Mapping[str, object]
    suffix: str
    """Behind an option's name this says where its value stands."""
    is_environment: bool = False
    is_project: bool = False
    is_user_file: bool = False

    def says(self, option: Option) -> object:
        """The value that stands here for `option`, or NOT_GIVEN."""
        value = self.values.get(option.name, NOT_GIVEN)
        return NOT_GIVEN if value is None and not option.key.takes_none else value

    def place(self, option: Option) -> str:
        """Where the value of `option` stands, as messages name it."""
        return option.variable if self.is_environment else option.name + self.suffix

    def may_say(self, option: Option) -> bool:
        """Whether the option is read from here."""
        return (option.key.in_project or not self.is_project) and (
            option.key.in_user_file or not self.is_user_file
        )


class SourceError(Exception):
    """A place that cannot be used; the text says why, as the end of a sentence about it."""


def from_mapping(found: object, what: str) -> OptionSource:
    """What a call gave. Raises SourceError where `found` is no mapping."""
    if found is None or found is NOT_GIVEN:
        return OptionSource({}, what)
    if not isinstance(found, Mapping):
        raise SourceError(f"is a {type(found).__name__}: expected a dict")
    return OptionSource(dict(found), what)


def from_environment(environ: Mapping[str, str]) -> OptionSource:
    """The variables; an empty one counts as unset (OpenTelemetry's rule for its own)."""
    values: dict[str, object] = {
        option.name: value
        for option in OPTIONS
        if (value := environ.get(option.variable, "").strip())
    }
    return OptionSource(values, "", is_environment=True)


def find_project_file(cwd: Path) -> Path | None:
    """The nearest project file, from `cwd` upwards."""
    for directory in (cwd, *cwd.parents):
        for name in PROJECT_FILES:
            if _is_file(directory / name):
                return directory / name
    return None


def from_project_file(path: Path) -> OptionSource:
    """The `profiling:` block of `path`. Raises SourceError where there is none to be had."""
    is_json = path.suffix.lower() == ".json"
    whole = _parsed(path, _load_json if is_json else _load_yaml)
    return OptionSource(_table(whole, _BLOCK), f" in {path}", is_project=True)


def from_user_file(path: Path) -> OptionSource:
    """The `[default]` table of `path`. Raises SourceError where there is none to be had."""
    return OptionSource(_table(_parsed(path, _load_toml), _TABLE), f" in {path}", is_user_file=True)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    if not _is_file(path):
        raise SourceError("is no file that can be read")
    try:
        return read_text_file(path, blocks_on_pipe=False)
    except TextFileError as problem:
        raise SourceError(str(problem)) from None


# Parsers are imported where there is something to parse: `import cirron_otel` stays cheap.


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
        raise SourceError("is nested too deep") from None
    # YAML's constructors raise what they like, for a date that is none for example.
    except Exception as error:
        raise SourceError(f"is wrong ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """The kind of an error and the line it names; not its text, which may quote a key."""
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
    # tomllib says it in its text alone, up to Python 3.13.
    if line is None and (found := _LINE.search(str(error))):
        line = found[1]
    return type(error).__name__ + (f" in line {line}" if line is not None else "")


def _table(whole: object, name: str) -> Mapping[str, object]:
    """The table `name` of a file; a file without it says nothing."""
    if whole is None:
        return {}
    if not isinstance(whole, dict):
        raise SourceError(f"holds no mapping, hence no {name!r}")
    table = whole.get(name)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise SourceError(f"has a {name!r} that is no mapping")
    return table
