"""The ledger of one target: which batches of a spool it has acknowledged or refused.

The ledger consists of one cursor per owner. The batches of an owner are sealed nearly in order, so
a `Cursor` is a low-water mark with exceptions; batches without an owner arrive in any order, so
`Delivered` lists them by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from ...errors import InputError, TargetError
from .cursor import Cursor, cursor_path
from .delivered import Delivered
from .owner import NONE, group_of, known_owners
from .paths import SpoolPaths, batch_names


def open_cursor(
    paths: SpoolPaths, target: str, owner: str, on_damage: Callable[[Exception], None]
) -> Cursor | Delivered:
    """Open the cursor of a target, by its key, and an owner (a prefix, or `owner.NONE`).

    A damaged cursor is set aside, reported to `on_damage`, and replaced. Raises TargetError.
    """
    is_unowned = owner == NONE
    try:
        return Delivered(paths, target) if is_unowned else Cursor(paths.state, target, owner)
    except InputError as error:
        on_damage(error)
    if is_unowned:
        return Delivered.reset(paths, target)
    return Cursor.reset(paths.state, target, owner)


class Ledger:
    """Looks up which batches one target has acknowledged or refused; it is not thread-safe.

    Another process may send to the target meanwhile. A cursor that cannot be read counts as empty.
    """

    def __init__(self, paths: SpoolPaths, target: str) -> None:
        """Prepare the ledger of the target with the key `target`; nothing is opened yet."""
        self._paths, self._target = paths, target
        self._unowned: Delivered | None = None
        """The cursor of the batches without an owner, which stays open."""

    def has(self, owner: str, name: str) -> bool:
        """Return whether the target has acknowledged or refused a batch of an owner."""
        cursor = self._cursor(owner)
        return cursor is not None and name in cursor

    def lacking_of(self, owner: str, names: Iterable[str]) -> list[str]:
        """Return the `names` of an owner's batches that the target does not have, in order."""
        cursor = self._cursor(owner)
        return list(names) if cursor is None else cursor.undone(names)

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Return the `names` of batches that the target does not have, in no particular order."""
        return [
            name
            for owner, owned in by_owner(names, known_owners(self._paths)).items()
            for name in self.lacking_of(owner, owned)
        ]

    def close(self) -> None:
        """Close the cursor of batches without an owner, which is otherwise kept open."""
        if self._unowned is not None:
            self._unowned.close()
            self._unowned = None

    def _cursor(self, owner: str) -> Cursor | Delivered | None:
        with contextlib.suppress(InputError, TargetError):
            if owner != NONE:
                return Cursor(self._paths.state, self._target, owner)
            if self._unowned is not None and self._unowned.is_stale:
                self.close()
            if self._unowned is None:
                self._unowned = Delivered(self._paths, self._target)
            return self._unowned
        return None


def by_owner(names: Iterable[str], known: set[str]) -> dict[str, list[str]]:
    """Group batches by owner, in their order; `known` is the result of `known_owners`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group_of(name, known), []).append(name)
    return groups


def owned(paths: SpoolPaths, owners: set[str]) -> dict[str, list[str]]:
    """Return the names of each owner's batches, unsorted; `owners` may include NONE."""
    known = owners | (known_owners(paths) if NONE in owners else set())
    groups: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError):
        groups = by_owner(batch_names(paths.spool), known)
    return {owner: groups.get(owner, []) for owner in owners}


def owners_with_cursor(paths: SpoolPaths, target: str) -> Iterator[str]:
    """Yield the owners, dead or alive, that have a cursor for a target."""
    start, end = cursor_path(paths.state, target, "").name.split(".")
    with contextlib.suppress(OSError):
        for path in paths.state.iterdir():
            if path.name.startswith(start) and path.suffix == f".{end}":
                yield path.stem.removeprefix(start)
