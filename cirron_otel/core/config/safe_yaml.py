"""YAML that others wrote: plain values only, and no document that grows while it is read."""

from __future__ import annotations

from typing import Any

import yaml

_MAX_ALIASES = 100
_MAX_PAIRS = 10_000


class _Loader(yaml.SafeLoader):
    """The safe loader in Python, which ends deep nesting with an error where libyaml's may crash.

    Merge keys copy what they name, and what that has merged in turn: aliases are counted.
    """

    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > _MAX_ALIASES:
                raise yaml.YAMLError(f"more than {_MAX_ALIASES} aliases")
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MAX_PAIRS:
            raise yaml.YAMLError(f"more than {_MAX_PAIRS} entries in one mapping")


def loads(text: str) -> Any:
    """The value of a document. Raises yaml.YAMLError, RecursionError, or what a bad date raises."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
