"""Traverse the options, to list their leaves and secrets, print them, and find changed keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...core.config.engine import Key
from .exporter_options import Section
from .options import CollectorOptions
from .substitution import below
from .validation import fields_of
from .values import ADDRESS, ListenAddress, Network, Secret

S = TypeVar("S", bound=Section)


def leaves(section: Section, path: str = "") -> Iterator[tuple[str, Key, Any]]:
    """Yield each option: its path in the file, its key in the table, and its value."""
    for field in fields_of(type(section)):
        value = getattr(section, field.attribute)
        inside = below(path, field.name)
        if field.key is not None:
            yield inside, field.key, value
        elif isinstance(value, Section):
            yield from leaves(value, inside)
        elif isinstance(value, tuple):
            for at, each in enumerate(value):
                yield from leaves(each, f"{inside}[{at}]")


def secrets_of(options: CollectorOptions) -> frozenset[str]:
    """Return the strings to mask in logs, without the contents of files."""
    secrets: set[str] = set()
    for _, _, value in leaves(options):
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(value, dict | tuple) else (value,):
            if isinstance(each, Secret):
                secrets.update(each.parts)
    return frozenset(secrets)


def tree_of(section: Section) -> dict[str, Any]:
    """Return the options as plain values with the structure of the file; secrets are masked."""
    tree: dict[str, Any] = {}
    for field in fields_of(type(section)):
        value = getattr(section, field.attribute)
        if field.key is not None and field.key.parser is ADDRESS and value is None:
            tree[field.name] = "off"
        else:
            tree[field.name] = _plain(value)
    return tree


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return tree_of(value)
    if isinstance(value, Secret | Path | ListenAddress | Network):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


class Changes(NamedTuple):
    """The difference between two configurations."""

    at_once: tuple[str, ...]
    """The paths of changed keys that take effect immediately; `exporters` for all exporters."""
    restart: tuple[str, ...]
    """The paths of changed keys that need a restart."""
    options: CollectorOptions
    """The old options with the changes that take effect immediately."""


def diff(old: CollectorOptions, new: CollectorOptions) -> Changes:
    """Compare two configurations, and determine which changes need a restart.

    A change within `tls` is reported as a change of the section.
    """
    at_once: list[str] = []
    restart: list[str] = []
    options = _merge(old, new, "", at_once, restart)
    return Changes(tuple(at_once), tuple(restart), options)


def _merge(old: S, new: S, path: str, at_once: list[str], restart: list[str]) -> S:
    changes: dict[str, Any] = {}
    for field in fields_of(type(old)):
        before, after = getattr(old, field.attribute), getattr(new, field.attribute)
        inside = below(path, field.name)
        if before == after:
            continue
        if isinstance(before, Section) and not field.is_optional:
            changes[field.attribute] = _merge(before, after, inside, at_once, restart)
        elif field.key.at_once if field.key is not None else _is_live(field.section):
            at_once.append(inside)
            changes[field.attribute] = after
        else:
            restart.append(inside)
    return msgspec.structs.replace(old, **changes)


def _is_live(section: type[Section] | None) -> bool:
    """Return whether all keys of a section take effect immediately; None means the exporters."""
    return section is None or all(
        field.key is not None and field.key.at_once for field in fields_of(section)
    )
