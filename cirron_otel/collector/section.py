"""What the table of options is made of: sections, and what is to be known about each key."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from ..config.parsing import Parser, number_above

SECONDS: Final = number_above(0, 86_400, "seconds")


class Key(NamedTuple):
    """What is to be known about one key."""

    parser: Parser
    meaning: str
    unit: str = ""
    at_once: bool = False
    """Whether a reload takes a new value; else it waits for a restart."""
    is_secret: bool = False


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file."""


def default_of(field: Any) -> Any:
    """The default of a field that `msgspec.structs.fields` names, or msgspec.NODEFAULT."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
