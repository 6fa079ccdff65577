"""Load untrusted YAML: plain values only, without documents that expand while they are read."""

from __future__ import annotations

from typing import Any

import yaml

_MAX_ALIASES = 100
_MAX_PAIRS = 10_000


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader in Python: deep nesting raises an error, while libyaml's may crash.

    It limits aliases, because a merge key copies a mapping together with everything that was merged
    into that mapping.
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
    """Return the value of a document.

    Raises yaml.YAMLError, RecursionError, or any error of a YAML constructor, for example
    ValueError for an invalid date.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
