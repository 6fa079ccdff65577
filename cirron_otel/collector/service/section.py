"""The base class of the sections in the table of options."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...core.config.parsing import number_above

SECONDS: Final = number_above(0, 86_400, "seconds")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping in the configuration file."""


def default_of(field: Any) -> Any:
    """Return the default of a field of `msgspec.structs.fields`, or msgspec.NODEFAULT."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
