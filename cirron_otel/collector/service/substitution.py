"""`${env:NAME}` in a configuration file, by the rules of the OpenTelemetry Collector.

Source: opentelemetry.io/docs/collector/configuration/#environment-variables, and the confmap
package of the collector. `${env:NAME}` and `${NAME}` are replaced by the variable's value,
`${NAME:-default}` by the default if the variable is not set (an empty variable counts as set), `$$`
by a dollar sign. Defaults may contain further references. Any other `$` is unchanged.

There are two differences, both for safety: a variable that is not set and has no default is an
error instead of empty text, and the content of a variable is not expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_REFERENCE = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?!-))?(?P<name>[^}:${]*)(?P<default>:-)?"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STOP = re.compile(r"[$}]")
_MAX_DEPTH = 16
_SHOWN = 80


class SubstitutionError(ValueError):
    """A reference cannot be resolved.

    The message continues a sentence that begins with the path of the value.
    """


class FromVariables(str):
    """Text that contains the value of a variable, which may be secret: messages do not show it."""

    __slots__ = ()


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` with its references replaced; a FromVariables if it contained references.

    Raises SubstitutionError, whose message contains no value of a variable.
    """
    if "$" not in text:
        return text
    expansion = _Expansion(text, environ)
    expanded = expansion.run()
    return FromVariables(expanded) if expansion.has_references else expanded


class _Expansion:
    """The expansion of one text."""

    def __init__(self, text: str, environ: Mapping[str, str]) -> None:
        self._source = text
        self._environ = environ
        self.has_references = False

    def run(self) -> str:
        return self._text(0, 0, is_used=True)[0]

    def _text(self, at: int, depth: int, *, is_used: bool) -> tuple[str, int]:
        """Expand from `at` to the end or the closing brace; return the text, and the end
        position.
        """
        source = self._source
        parts: list[str] = []
        while at < len(source):
            if source.startswith("$$", at):
                parts.append("$")
                at += 2
            elif source.startswith("${", at):
                value, at = self._reference(at + 2, depth + 1, is_used=is_used)
                parts.append(value)
            elif depth and source[at] == "}":
                return "".join(parts), at
            else:
                stop = _STOP.search(source, at + 1)
                end = stop.start() if stop else len(source)
                parts.append(source[at:end])
                at = end
        if depth:
            raise SubstitutionError(
                "has a ${ without its }: close it, or write $${ for a literal ${"
            )
        return "".join(parts), at

    def _reference(self, at: int, depth: int, *, is_used: bool) -> tuple[str, int]:
        """Return the value of the reference whose content begins at `at`, and the position after
        it.
        """
        if depth > _MAX_DEPTH:
            raise SubstitutionError(f"has references in references, more than {_MAX_DEPTH} deep")
        match = _REFERENCE.match(self._source, at)
        assert match is not None  # noqa: S101 - every part of the pattern is optional
        name = _checked(match)
        at = match.end()
        self.has_references = True
        value = self._environ.get(name)
        if match["default"]:
            default, at = self._text(at, depth, is_used=is_used and value is None)
            value = default if value is None else value
        elif not self._source.startswith("}", at):
            raise SubstitutionError(
                f"has an invalid reference to {name}: expected ${{{name}}} or ${{{name}:-default}}"
            )
        elif value is None and is_used:
            raise SubstitutionError(
                f"names the variable {name}, which is not set: set it, or write ${{{name}:-}} for"
                " an empty value"
            )
        return value or "", at + 1


def _checked(match: re.Match[str]) -> str:
    """Return the name of the variable in a reference. Raises SubstitutionError."""
    scheme, name = match["scheme"], match["name"]
    if scheme is not None and scheme != "env":
        raise SubstitutionError(
            f"has a reference to {scheme[:_SHOWN]!a}: only variables can be named, as"
            " ${env:NAME} or ${NAME:-default}"
        )
    if not _NAME.fullmatch(name):
        raise SubstitutionError(
            f"names the variable {name[:_SHOWN]!a}: expected letters, digits and _"
        )
    return name


class Expander:
    """Replaces the strings in a tree of plain values, and collects problems with their paths."""

    def __init__(self, change: Callable[[str], str]) -> None:
        """`change` returns the new string; it may raise SubstitutionError."""
        self.problems: list[tuple[str, str]] = []
        """Pairs of a value's path and the description of its problem."""
        self._change = change
        # Keyed by identity: with YAML aliases, a small document may contain a huge number of paths.
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def tree(self, value: Any, path: str = "") -> Any:
        """Return `value` with all its strings replaced, except the keys of mappings."""
        if isinstance(value, str):
            try:
                return self._change(value)
            except SubstitutionError as error:
                self.problems.append((path, str(error)))
                return None
        if not isinstance(value, dict | list):
            return value
        if id(value) in self._open:
            self.problems.append((path, "contains itself"))
            return None
        if id(value) not in self._done:
            self._open.add(id(value))
            self._done[id(value)] = self._inside(value, path)
            self._open.remove(id(value))
        return self._done[id(value)]

    def _inside(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.tree(each, f"{path}[{at}]") for at, each in enumerate(value)]
        return {key: self.tree(each, below(path, key)) for key, each in value.items()}


def below(path: str, key: object) -> str:
    """Return the path of `key` in the mapping at `path`."""
    return f"{path}.{key}" if path else f"{key}"
