"""Validate a tree of plain values and convert it to options.

Each problem is reported with the path of its key.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast, get_args

import msgspec

from ...core.config.engine import Candidate, Key, masked_repr, read_option
from .exporter_options import EXPORTERS, Section, default_of
from .options import CollectorOptions
from .substitution import Expander, FromVariables, below

_MAX_EXPORTERS = 100
_MAX_NAME = 80

S = TypeVar("S", bound=Section)


class Field(NamedTuple):
    """A field of a section in the table."""

    name: str
    """The name in the file."""
    attribute: str
    key: Key | None
    """None if the value is a section, or a list of sections."""
    section: type[Section] | None
    is_optional: bool
    """Whether a section may be null."""
    default: Any
    """msgspec.NODEFAULT if the key is required."""


@cache
def fields_of(kind: type[Section]) -> tuple[Field, ...]:
    """Return the fields of a section, in the table's order."""
    return tuple(map(_field, msgspec.structs.fields(kind)))


def _field(info: Any) -> Field:
    keys = [each for each in getattr(info.type, "__metadata__", ()) if isinstance(each, Key)]
    kinds = get_args(info.type) or (info.type,)
    sections = [each for each in kinds if isinstance(each, type) and issubclass(each, Section)]
    return Field(
        name=info.encode_name,
        attribute=info.name,
        key=keys[0] if keys else None,
        section=sections[0] if sections and not keys else None,
        is_optional=type(None) in kinds,
        default=default_of(info),
    )


def read_options(
    tree: object, where: Callable[[str], str], problems: list[str]
) -> CollectorOptions | None:
    """Return the options in `tree`; None if it is invalid, with the reasons added to `problems`.

    `where` returns the beginning of a message about a path.
    """
    reader = _TreeReader(where)
    options = reader.section(CollectorOptions, tree, "")
    problems += reader.problems
    return None if reader.problems else options


class _TreeReader:
    """Reads a tree of plain values. Each invalid value adds a problem, and is read as None."""

    def __init__(self, where: Callable[[str], str]) -> None:
        self.problems: list[str] = []
        self._where = where

    def section(self, kind: type[S], value: object, path: str) -> S | None:
        value = structured({} if value is None else value)
        fields = fields_of(kind)
        names = [field.name for field in fields]
        if not isinstance(value, dict):
            self._wrong(path, f"is {shown(value)}: expected the keys {', '.join(names)}")
            return None
        for name in value:
            if name not in names:
                self._unknown(kind, below(path, _name(name)), name, names)
        before = len(self.problems)
        values = {field.attribute: self._value(field, value, path) for field in fields}
        return kind(**values) if len(self.problems) == before else None

    def _value(self, field: Field, values: dict[Any, Any], path: str) -> Any:
        value = values.get(field.name)
        path = below(path, field.name)
        if field.key is not None:
            return self._leaf(field, field.key, value, path)
        if field.section is None:
            return self._exporters(value, path)
        return None if value is None and field.is_optional else self._present(field, value, path)

    def _present(self, field: Field, value: object, path: str) -> Section | None:
        return self.section(cast(type[Section], field.section), value, path)

    def _leaf(self, field: Field, key: Key, value: object, path: str) -> Any:
        if value is None:
            if field.default is msgspec.NODEFAULT:
                self._wrong(path, f"is missing: expected {key.parser.expected}")
            return field.default
        if key.parser.type == "mapping":
            value = structured(value)
        candidate = Candidate(self._where(path), value, isinstance(value, FromVariables))
        reading = read_option(key, None, [candidate], describe=_described)
        self.problems += reading.rejected
        return reading.value

    def _exporters(self, value: object, path: str) -> tuple[Section | None, ...]:
        value = structured([] if value is None else value)
        if not isinstance(value, list):
            self._wrong(path, f"is {shown(value)}: expected a list of exporters, each with a type")
            return ()
        if len(value) > _MAX_EXPORTERS:
            self._wrong(path, f"has {len(value)} items: expected {_MAX_EXPORTERS} at most")
            return ()
        return tuple(self._exporter(each, f"{path}[{at}]") for at, each in enumerate(value))

    def _exporter(self, value: object, path: str) -> Section | None:
        value = structured(value)
        if not isinstance(value, dict):
            self._wrong(path, f"is {shown(value)}: expected a mapping with a type and an endpoint")
            return None
        kind = value.get("type")
        if not isinstance(kind, str) or kind not in EXPORTERS:
            what = "is missing" if kind is None else f"is {shown(kind)}"
            self._wrong(below(path, "type"), f"{what}: expected {' or '.join(EXPORTERS)}")
            return None
        return self.section(EXPORTERS[kind], value, path)

    def _unknown(self, kind: type[Section], path: str, name: object, names: list[str]) -> None:
        where = "here" if "." in path else "of the collector"
        near = difflib.get_close_matches(str(name), names, 1)
        elsewhere = [] if near else _elsewhere(str(name))
        if near:
            hint = f"did you mean {near[0]}?"
        elif elsewhere:
            hint = f"did you mean {' or '.join(elsewhere[:3])}?"
        else:
            hint = f"expected {', '.join(names)}"
        what = f" of an exporter of type {kind_name(kind)}" if kind in EXPORTERS.values() else ""
        self._wrong(path, f"is not a key{what or ' ' + where}: {hint}")

    def _wrong(self, path: str, text: str) -> None:
        self.problems.append(f"{self._where(path)} {text}")


def kind_name(kind: type[Section]) -> str:
    """Return the `type` of an exporter class."""
    return next(name for name, each in EXPORTERS.items() if each is kind)


@cache
def table() -> tuple[tuple[str, Field], ...]:
    """Return all keys with their paths; the keys of an exporter are below `exporters[<its
    type>]`.
    """
    return tuple(_table(CollectorOptions, ""))


def _table(kind: type[Section], path: str) -> Iterable[tuple[str, Field]]:
    for field in fields_of(kind):
        inside = below(path, field.name)
        if field.key is not None:
            yield inside, field
        elif field.section is not None:
            yield from _table(field.section, inside)
        if field.name == "exporters":
            for name, each in EXPORTERS.items():
                yield from _table(each, f"{inside}[{name}]")


def _elsewhere(name: str) -> list[str]:
    """Return the paths of keys with that name in other sections."""
    return [path for path, _ in table() if path.rpartition(".")[2] == name]


def structured(value: object) -> object:
    """Parse a string from an environment variable as YAML, for a key with a mapping or list."""
    if not isinstance(value, FromVariables):
        return value
    from ...core.config.safe_yaml import loads  # noqa: PLC0415 - the table is read without yaml

    try:
        parsed = loads(str(value))
    # YAML constructors may raise any exception; then the text itself is reported as invalid.
    except Exception:
        return value
    return Expander(FromVariables).tree(parsed) if isinstance(parsed, dict | list) else value


def _name(name: object) -> str:
    text = name if isinstance(name, str) and name.isprintable() else ascii(name)
    return text[:_MAX_NAME]


def _described(value: object, is_hidden: bool) -> str:
    return f"{_kind(value)} (not shown)" if is_hidden else shown(value)


def shown(value: object) -> str:
    """Return the text that messages show for an invalid value."""
    if isinstance(value, FromVariables):
        return f"{_kind(value)} (not shown)"
    if isinstance(value, dict | list):
        return _kind(value)  # its content may be secret
    try:
        return masked_repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return _kind(value)


def _kind(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", bool: "true or false", int: "a number"}
    for kind, name in kinds.items():
        if isinstance(value, kind):
            return name
    return "text" if isinstance(value, str) else f"a {type(value).__name__}"
