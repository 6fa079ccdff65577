"""Record the checkpoints and the logged values of Fabric.

A loop with Fabric is written out by the program, so torch's hooks infer its epochs and steps.
"""

from __future__ import annotations

from typing import Any

from ...tracing.mark import mark
from ...tracing.scope import Scope
from ..base import Part
from ..checkpoint_origin import LOAD, SAVE, checkpoint_attributes
from ..logged_values import passed_on
from ..patches import Patches
from .checkpoints import link_writer, store_writer
from .lightning_loop import safely


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
    with Scope("checkpoint", **checkpoint_attributes(SAVE, path)):
        result = original(fabric, *args, **kwargs)
        safely(store_writer, path, fabric)
    return result


def _loading(original: Any, fabric: Any, args: Any, kwargs: Any) -> Any:
    path = args[0] if args else kwargs.get("path")
    safely(link_writer, path)
    with Scope("checkpoint", **checkpoint_attributes(LOAD, path)):
        return original(fabric, *args, **kwargs)


def _values(original: Any, fabric: Any, args: Any, kwargs: Any) -> Any:
    safely(_mark, args[0] if args else kwargs.get("metrics"))
    with passed_on:
        return original(fabric, *args, **kwargs)


def _mark(values: Any) -> None:
    for name, value in values.items():
        mark(name, value)
