"""Replace attributes of other modules temporarily, and restore them."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from ..session.errors import record_error
from ..tracing.hidden_frames import strip

_ABSENT = object()


class Patches:
    """The replaced attributes, in order; `undo` restores the originals and removes added names."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._originals_by_id: dict[int, Any] = {}
        """The originals by the ids of former replacements. `_keep_alive` prevents the reuse of
        these ids."""
        self._keep_alive: list[Any] = []
        self._functions: dict[int, Any] = {}
        """The replacements for functions that `replace_copies` also replaces elsewhere, by the
        ids of the originals."""
        self._of_classes: weakref.WeakKeyDictionary[type, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )
        """Weak references to the replacements of `wrap_own`, by the class and the name. Each
        contains its original."""
        self._lock = threading.RLock()
        """Guards the lists, because models are discovered on several threads. It is re-entrant,
        because a signal handler may call `undo`."""

    def replace(self, owner: Any, name: str, replacement: Any) -> Any:
        """Replace `owner.name`; return the original, which may be inherited.

        Raises AttributeError if `owner` has no such attribute.
        """
        with self._lock:
            original = getattr(owner, name)
            stored = vars(owner).get(name, _ABSENT)
            setattr(owner, name, replacement)
            self._replaced.append((owner, name, stored, replacement))
            return original

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace the method `name` by one that calls `around(original, self, args, kwargs)`.

        `around` must call `original(self, *args, **kwargs)` and return its result. The method keeps
        its name, signature and documentation. Raises AttributeError if `owner` lacks the method.
        """
        self.replace(owner, name, _call(getattr(owner, name), around))

    def wrap_own(self, owner: type, name: str, around: Callable[..., Any]) -> None:
        """Replace a method that the class `owner` itself defines, as `wrap` does.

        A class that the program defines in a function stays collectable, with the models and the
        data that its methods refer to. Raises KeyError if `owner` does not define the method.
        """
        original = vars(owner)[name]
        if isinstance(original, FunctionType):
            self.replace_own(owner, name, _call(original, around))
        else:
            self.wrap(owner, name, around)

    def replace_own(self, owner: type, name: str, replacement: Any) -> None:
        """Replace a method of a class by a function whose `__wrapped__` is the original.

        The class stays collectable.
        """
        with self._lock:
            setattr(owner, name, replacement)
            self._of_classes.setdefault(owner, {})[name] = weakref.ref(replacement)

    def wrap_in_subclasses(self, base: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
        """Replace the method `name` in each subclass of `base` that defines it, as `wrap_own` does.

        `wrapped` returns the replacement of an original, with the original as `__wrapped__`, or
        None if the original stays.
        Subclasses that are defined later are included, if their `__init_subclass__` calls that of
        `base`.
        """
        made: weakref.WeakSet[Any] = weakref.WeakSet()

        def adopt(owner: type) -> None:
            try:
                original = vars(owner).get(name)
                if isinstance(original, FunctionType) and original in made:
                    # A class that was copied from another one has its replacement.
                    original = original.__wrapped__  # type: ignore[attr-defined]
                replacement = wrapped(original) if isinstance(original, FunctionType) else None
                if replacement is not None:
                    made.add(replacement)
                    self.replace_own(owner, name, replacement)
            except Exception as error:  # such as a metaclass that forbids assignments
                record_error("hooks", error)

        def __init_subclass__(cls: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                super(base, cls).__init_subclass__(*args, **kwargs)
            except BaseException as error:
                strip(error)
                raise
            adopt(cls)

        for owner in subclasses(base):
            adopt(owner)
        self.replace(base, "__init_subclass__", classmethod(__init_subclass__))

    def replace_function(self, owners: Iterable[Any], name: str, replacement: Any) -> None:
        """Replace `name` in each owner, and later in modules that imported the function by name.

        Raises AttributeError if an owner has no such attribute.
        """
        for owner in owners:
            original = self.replace(owner, name, replacement)
            self._functions[id(original)] = replacement

    def replace_copies(self) -> None:
        """Replace functions in modules that have imported them by name (`from x import y`).

        Called after the last `replace_function`, for one pass over all modules. Raises nothing.
        """
        functions, self._functions = self._functions, {}
        for module in list(sys.modules.values()) if functions else ():
            try:
                for name, value in _of_ids(_names_in(module), functions):
                    self.replace(module, name, functions[id(value)])
            except Exception as error:
                record_error("hooks", error)

    def restore_copies(self, module: Any) -> None:
        """Restore the names in `module` that are copies of replacements. Raises nothing."""
        self._restore_copies(module, self._originals())

    def _originals(self) -> dict[int, Any]:
        """Return the original functions by the ids of their present and former replacements."""
        done = {
            id(replacement): stored
            for _, _, stored, replacement in self._replaced
            if stored is not _ABSENT
        }
        return done | self._originals_by_id

    def _restore_copies(self, module: Any, originals: dict[int, Any]) -> None:
        names = _names_in(module)
        for name, value in _of_ids(names, originals):
            original = originals[id(value)]
            if original is not None and not any(
                each[0] is module and each[1] == name for each in self._replaced
            ):
                names[name] = getattr(original, "__func__", original)

    def restore_all_copies(self) -> None:
        """Restore the copies in every module. Called when the hooks are removed."""
        originals = self._originals()
        for module in list(sys.modules.values()):
            try:
                self._restore_copies(module, originals)
            except Exception as error:
                record_error("unhook", error)

    def undo(self, owner: Any = None, name: str | None = None) -> None:
        """Restore everything, or only `owner.name`. Raises nothing.

        An attribute that other code has replaced in the meantime is left unchanged. The other
        code's replacement may call this package's replacement, which then only calls the original.
        """
        with self._lock:
            self._undo(owner, name)

    def _undo(self, owner: Any, name: str | None) -> None:
        remaining = []
        for each in reversed(self._replaced):
            if owner is not None and (each[0] is not owner or each[1] != name):
                remaining.append(each)
                continue
            try:
                _put_back(*each)
                if each[2] is not _ABSENT and id(each[3]) not in self._originals_by_id:
                    self._originals_by_id[id(each[3])] = each[2]
                    self._keep_alive.append(each[3])
            except Exception as error:
                record_error("unhook", error)
        self._replaced = remaining[::-1]
        if owner is None:
            self._undo_classes()  # after the replacements that were made on top of theirs

    def _undo_classes(self) -> None:
        classes = [(owner, dict(names)) for owner, names in self._of_classes.items()]
        self._of_classes.clear()
        for owner, names in classes:
            for name, reference in names.items():
                try:
                    replacement = reference()
                    if replacement is not None:
                        _put_back(owner, name, replacement.__wrapped__, replacement)
                except Exception as error:
                    record_error("unhook", error)


def subclasses(base: type) -> Iterator[type]:
    """Yield the direct and indirect subclasses of a class, each once."""
    known: set[int] = set()
    waiting: list[type] = type.__subclasses__(base)
    while waiting:
        owner = waiting.pop()
        if id(owner) not in known:
            known.add(id(owner))
            yield owner
            waiting += type.__subclasses__(owner)


def _call(original: Any, around: Callable[..., Any]) -> Any:
    """Return a function that calls `around(original, self, args, kwargs)`."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return around(original, self, args, kwargs)
        except BaseException as error:
            strip(error)
            raise

    return call


def _names_in(module: Any) -> dict[str, Any]:
    """Return a module's names; empty for other objects in `sys.modules`, such as None."""
    names = getattr(module, "__dict__", None)
    return names if isinstance(names, dict) else {}


def _of_ids(names: dict[str, Any], ids: dict[int, Any]) -> list[tuple[str, Any]]:
    """Return the names of a module, with their values, whose values have one of these ids.

    Hardly any module has one, and there are thousands of modules: the first test is the fast one.
    """
    if ids.keys().isdisjoint(map(id, list(names.values()))):
        return []
    return [(name, value) for name, value in list(names.items()) if id(value) in ids]


def _put_back(owner: Any, name: str, stored: Any, replacement: Any) -> None:
    if vars(owner).get(name, _ABSENT) is not replacement:
        return
    if stored is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, stored)
