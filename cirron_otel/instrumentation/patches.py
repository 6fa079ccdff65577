"""Attributes of others that are replaced for a time, and put back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from ..sdk.errors import record_error

_ABSENT = object()


class Patches:
    """What was replaced, in order. Every original comes back, or the name goes again."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []
        self._gone: dict[int, Any] = {}
        """Originals by the ids of what stood in their place; `_kept` keeps the ids from others."""
        self._kept: list[Any] = []
        self._functions: dict[int, Any] = {}
        """What stands for functions whose copies are to be replaced, by the originals' ids."""
        self._lock = threading.RLock()
        """Models are met on several threads; re-entrant, for a signal handler may end it all."""

    def replace(self, owner: Any, name: str, made: Any) -> Any:
        """Let `owner.name` be `made`; returns what stood there, inherited or not.

        Raises AttributeError where `owner` has no such attribute.
        """
        with self._lock:
            seen = getattr(owner, name)
            own = vars(owner).get(name, _ABSENT)
            setattr(owner, name, made)
            self._done.append((owner, name, own, made))
            return seen

    def replace_function(self, owners: Iterable[Any], name: str, made: Any) -> None:
        """Let `name` be `made` in each owner, and in the end in modules that imported it by name.

        Raises AttributeError as `replace`.
        """
        for owner in owners:
            original = self.replace(owner, name, made)
            self._functions[id(original)] = made

    def replace_copies(self) -> None:
        """Replace functions in modules that imported them by name before: `from x import y`.

        One pass over all modules, after the last `replace_function`. Raises nothing.
        """
        functions, self._functions = self._functions, {}
        for module in list(sys.modules.values()) if functions else ():
            try:
                names = _names_in(module)
                copies = [name for name, value in list(names.items()) if id(value) in functions]
                for name in copies:
                    self.replace(module, name, functions[id(names[name])])
            except Exception as error:
                record_error("hooks", error)

    def mend(self, module: Any) -> None:
        """Put the originals where `module` copied ours while it was imported. Raises nothing."""
        self._mend(module, self._originals())

    def _originals(self) -> dict[int, Any]:
        """Return the original functions by the ids of their present and former replacements."""
        done = {id(made): own for _, _, own, made in self._done if own is not _ABSENT}
        return done | self._gone

    def _mend(self, module: Any, originals: dict[int, Any]) -> None:
        names = _names_in(module)
        for name, value in list(names.items()):
            original = originals.get(id(value))
            if original is None:
                continue
            if not any(each[0] is module and each[1] == name for each in self._done):
                names[name] = getattr(original, "__func__", original)

    def mend_all(self) -> None:
        """The same for every module: at the end."""
        originals = self._originals()
        for module in list(sys.modules.values()):
            try:
                self._mend(module, originals)
            except Exception as error:
                record_error("unhook", error)

    def undo(self, owner: Any = None, name: str | None = None) -> None:
        """Put back everything, or what `owner.name` was. Raises nothing.

        What somebody else has replaced since stays: theirs may call ours, which does nothing more.
        """
        with self._lock:
            self._undo(owner, name)

    def _undo(self, owner: Any, name: str | None) -> None:
        kept = []
        for each in reversed(self._done):
            if owner is not None and (each[0] is not owner or each[1] != name):
                kept.append(each)
                continue
            try:
                _put_back(*each)
                if each[2] is not _ABSENT and id(each[3]) not in self._gone:
                    self._gone[id(each[3])] = each[2]
                    self._kept.append(each[3])
            except Exception as error:
                record_error("unhook", error)
        self._done = kept[::-1]


def _names_in(module: Any) -> dict[str, Any]:
    """A module's names; none of what else `sys.modules` holds: None, or an object of a library."""
    names = getattr(module, "__dict__", None)
    return names if isinstance(names, dict) else {}


def _put_back(owner: Any, name: str, own: Any, made: Any) -> None:
    if vars(owner).get(name, _ABSENT) is not made:
        return
    if own is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
