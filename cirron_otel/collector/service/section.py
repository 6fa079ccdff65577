"""What the table of options is made of: sections, and what is to be known about each key."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...core.config.parsing import number_above

SECONDS: Final = number_above(0, 86_400, "seconds")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file."""


def default_of(field: Any) -> Any:
    """The default of a field that `msgspec.structs.fields` names, or msgspec.NODEFAULT."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
