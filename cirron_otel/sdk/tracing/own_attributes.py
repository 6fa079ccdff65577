"""Read the attributes of an object without calling a method that the program defines."""

from __future__ import annotations

from types import GetSetDescriptorType
from typing import Any


def own_attributes(thing: object) -> dict[str, Any]:
    """Return the attributes that are stored in an object; empty if it stores none in a dictionary.

    `getattr(thing, "__dict__")` would call `__getattribute__` and a property of that name.
    """
    for kind in type(thing).__mro__:
        descriptor = vars(kind).get("__dict__")
        if descriptor is None:
            continue
        if not isinstance(descriptor, GetSetDescriptorType):
            return {}
        attributes = descriptor.__get__(thing)
        return attributes if type(attributes) is dict else {}
    return {}
