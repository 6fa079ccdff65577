"""Attributes of others that are replaced for a time, and put back."""

from __future__ import annotations

from typing import Any

from ..sdk.errors import swallowed

_ABSENT = object()


class Patches:
    """What was replaced, in order. Every original comes back, or the name goes again."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, made: Any) -> Any:
        """Let `owner.name` be `made`; returns what stood there, inherited or not.

        Raises AttributeError where `owner` has no such attribute.
        """
        seen = getattr(owner, name)
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, made)
        self._done.append((owner, name, own, made))
        return seen

    def undo(self, owner: Any = None, name: str | None = None) -> None:
        """Put back everything, or what `owner.name` was. Raises nothing.

        What somebody else has replaced since stays: theirs may call ours, which does nothing more.
        """
        kept = []
        for each in reversed(self._done):
            if owner is not None and (each[0] is not owner or each[1] != name):
                kept.append(each)
                continue
            try:
                _put_back(*each)
            except Exception as error:
                swallowed("unhook", error)
        self._done = kept[::-1]


def _put_back(owner: Any, name: str, own: Any, made: Any) -> None:
    if vars(owner).get(name, _ABSENT) is not made:
        return
    if own is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
