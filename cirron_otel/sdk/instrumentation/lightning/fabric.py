"""Record the checkpoints and the logged values of Fabric.

A loop with Fabric is written out by the program, so torch's hooks infer its epochs and steps.
"""

from __future__ import annotations

from typing import Any

from ...session.errors import record_error
from ...tracing.mark import mark
from ...tracing.scope import Scope
from ..base import Part
from ..logged_values import passed_on
from ..patches import Patches
from .checkpoints import attributes_of
from .lightning_loop import NAME


def fabric_parts(patches: Patches, package: Any) -> list[Part]:
    """Return the parts of the hooks into `package`, which is `lightning.fabric` or its twin."""
    fabric = package.fabric.Fabric

    def saving() -> None:
        patches.wrap(fabric, "save", _saving)

    def loading() -> None:
        patches.wrap(fabric, "load", _loading)
        patches.wrap(fabric, "load_raw", _loading)

    def values() -> None:
        patches.wrap(fabric, "log_dict", _values)

    return [
        ("saving of Fabric's checkpoints", saving),
        ("loading of Fabric's checkpoints", loading),
        ("Fabric's logged values", values),
    ]


def _saving(original: Any, fabric: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("path")
    with Scope("checkpoint", **attributes_of("save", path)):
        return original(fabric, *args, **kwargs)


def _loading(original: Any, fabric: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("path")
    with Scope("checkpoint", **attributes_of("load", path)):
        return original(fabric, *args, **kwargs)


def _values(original: Any, fabric: Any, args: Any, kwargs: Any) -> Any:
    try:
        values = args[0] if args else kwargs["metrics"]
        for name, value in values.items():
            mark(name, value)
    except Exception as error:
        record_error(NAME, error)
    with passed_on:
        return original(fabric, *args, **kwargs)
