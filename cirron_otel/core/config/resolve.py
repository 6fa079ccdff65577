"""Resolve the Config of a process from all sources of options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .engine import DEFAULT, Candidate, masked_repr, read_option
from .options import NOT_GIVEN, OPTIONS, Config, NotGiven, Option
from .sources import (
    USER_FILE,
    OptionSource,
    SourceError,
    find_project_file,
    from_environment,
    from_mapping,
    from_project_file,
    from_user_file,
)

SDK_DISABLED = "OTEL_SDK_DISABLED"
_OF_PROFILE = "= of profile()"


class Resolved(NamedTuple):
    """A Config, its problems, and the origin of its values."""

    config: Config
    problems: tuple[str, ...]
    """One line per problem, without secrets: the place and value, what was expected, and the value
    used instead.
    """
    places: Mapping[str, str]
    """The place where each option's value was found, as shown to users."""


def resolve(
    given: Mapping[str, object] | None = None,
    *,
    config: object = None,
    instance: Mapping[str, object] | None = None,
    path: str | os.PathLike[str] | NotGiven | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    home: Path | None = None,
) -> Resolved:
    """Resolve the options of this process. It never raises; `problems` lists what is wrong.

    `given` are the keyword arguments of `profile()`, `config` is its `config=`, and `instance` are
    the keyword arguments of `Cirron()`. NOT_GIVEN means that an argument was not given, and so does
    None, except for options for which None is a value. If `path` names a project file, no other one
    is searched for. `environ`, `cwd` and `home` default to those of the process. If a value is
    invalid, the next source is used; if the option determines a destination, nothing is sent there.
    """
    environ = os.environ if environ is None else environ
    # A deleted working directory has no name: relative paths then stay relative.
    cwd = cwd or _of_process(Path.cwd) or Path()
    home = home or _of_process(Path.home)
    problems: list[str] = []
    # In the order of sources.py.
    attempts: list[tuple[str, Callable[[], OptionSource | None]]] = [
        ("what was given to profile()", lambda: _given(given, problems)),
        ("config= of profile()", lambda: from_mapping(config, " in config= of profile()")),
        ("what was given to Cirron()", lambda: from_mapping(instance, "= of Cirron()")),
        ("the environment", lambda: from_environment(environ)),
        (_project_name(path), lambda: _project(path, cwd)),
        (f"~/{USER_FILE}", lambda: _user(home)),
    ]
    sources = [source for name, read in attempts if (source := _tried(name, read, problems))]
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    wrong: set[str] = set()
    for option in OPTIONS:
        values[option.name], places[option.name], is_wrong = _value(option, sources, problems)
        if is_wrong:
            wrong.add(option.name)
    _keep_home(values, wrong, problems)
    values["output_dir"] = _absolute(str(values["output_dir"]), cwd, home)
    resolved = Config(**values)
    if is_sdk_disabled(environ):
        resolved, places["enabled"] = replace(resolved, enabled=False), SDK_DISABLED
    return Resolved(resolved, tuple(problems), places)


_DESTINATION = frozenset({"api_endpoint", "ingest_path"})


def _keep_home(values: dict[str, Any], wrong: set[str], problems: list[str]) -> None:
    """Disable sending if the option for a destination is invalid, instead of using the default.

    Otherwise, a typo in a private endpoint would send the API key and the batches to the public
    platform.
    """
    if wrong & _DESTINATION and values["api_key"] is not None:
        values["api_key"] = None
        problems.append("nothing is sent to Cirron: its destination is invalid; correct it")
    if "exporters" in wrong:
        values["exporters"] = ()
        problems.append("nothing is exported: exporters is invalid; correct it")


def is_sdk_disabled(environ: Mapping[str, str]) -> bool:
    """Return whether `OTEL_SDK_DISABLED` is `true` in any case; other values count as false.

    Source: the OpenTelemetry specification.
    """
    return environ.get(SDK_DISABLED, "").strip().lower() == "true"


def _of_process(where: Callable[[], Path]) -> Path | None:
    """Return the working or home directory of the process; None if it is unavailable."""
    try:
        return where()
    except (OSError, RuntimeError):
        return None


def _project_name(path: object) -> str:
    return "cirron.yaml" if path is None or path is NOT_GIVEN else "the file of path="


def _project(path: object, cwd: Path) -> OptionSource | None:
    if path is None or path is NOT_GIVEN:
        nearest = find_project_file(cwd)
        return None if nearest is None else _named(nearest, from_project_file)
    if not isinstance(path, str | os.PathLike):
        raise SourceError(f"is a {type(path).__name__}: expected a path")
    name = os.fspath(path)
    if not isinstance(name, str) or "\0" in name:
        raise SourceError("has an invalid name")
    return _named(cwd / name, from_project_file)


def _user(home: Path | None) -> OptionSource | None:
    if home is None:
        return None
    path = home / USER_FILE
    # A directory that this process may not enter counts as missing.
    return from_user_file(path) if os.access(path, os.F_OK) else None


def _named(path: Path, read: Callable[[Path], OptionSource]) -> OptionSource:
    try:
        return read(path)
    except SourceError as error:
        raise SourceError(f", {path}, {error}") from None


def _given(given: object, problems: list[str]) -> OptionSource:
    source = from_mapping(given, _OF_PROFILE)
    known = {option.name for option in OPTIONS}
    unknown = [name for name in source.values if name not in known]
    problems += [f"{name!s:.80}{_OF_PROFILE} is not an option; it is ignored" for name in unknown]
    return source


def _tried(
    name: str, read: Callable[[], OptionSource | None], problems: list[str]
) -> OptionSource | None:
    try:
        return read()
    except SourceError as error:
        text = str(error)
        problems.append(f"{name}{'' if text.startswith(',') else ' '}{text}; it is not used")
    # A mapping that the user passes may raise any exception.
    except Exception as error:
        problems.append(f"{name} cannot be read ({type(error).__name__}); it is not used")
    return None


def _value(
    option: Option, sources: Sequence[OptionSource], problems: list[str]
) -> tuple[Any, str, bool]:
    """Return the value of `option`, its place, and whether an invalid value was skipped."""

    def candidates() -> Iterator[Candidate]:
        for source in sources:
            raw = source.says(option)
            if raw is not NOT_GIVEN and source.may_say(option):
                yield Candidate(source.place(option), raw)
            elif raw is not NOT_GIVEN:
                problems.append(_misplaced(option, source))

    # Values that a program passes may raise any exception from any method.
    value, place, rejected = read_option(
        option.key, option.default, candidates(), describe=_shown, errors=(Exception,)
    )
    used = place
    if place == DEFAULT:
        used = f"{DEFAULT}, {_shown(value, option.key.is_secret)},"
    problems += [f"{each}; {used} is used" for each in rejected]
    return value, place, bool(rejected)


def _misplaced(option: Option, source: OptionSource) -> str:
    where = option.variable
    if option.key.in_user_file:
        where += f" or ~/{USER_FILE}"
    return f"{source.place(option)} is ignored: set it in {where}"


def _shown(value: object, is_hidden: bool) -> str:
    """Return the text that messages show for a value."""
    if is_hidden and value is not None:
        return f"a {type(value).__name__} (not shown)"
    try:
        return masked_repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def _absolute(directory: str, cwd: Path, home: Path | None) -> Path:
    if home is not None and (directory == "~" or directory.startswith("~/")):
        return home / directory[2:]
    return cwd / directory
