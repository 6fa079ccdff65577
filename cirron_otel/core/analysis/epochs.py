"""The epochs of the scopes of an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from ..records.rows import shown
from ..spool.journal import open_scopes
from ..spool.owner import owner_of
from ..spool.paths import SpoolPaths
from .index import SpoolIndex, key_of

_EPOCHS: Final = """
CREATE TABLE {table} (parent BLOB PRIMARY KEY, epoch TEXT);
INSERT OR IGNORE INTO {table}
WITH RECURSIVE above (parent, id, level) AS (
    SELECT parent, parent, 0 FROM ({parents}) WHERE parent IS NOT NULL
    UNION ALL
    SELECT above.parent, coalesce(span.parent, open_scope.parent), level + 1
    FROM above LEFT JOIN span ON span.id = above.id
    LEFT JOIN open_scope ON open_scope.id = above.id
    WHERE coalesce(span.name, open_scope.name) IS NOT 'epoch'
    AND coalesce(span.parent, open_scope.parent) IS NOT NULL AND level < 64
)
SELECT above.parent, coalesce(span.idx, open_scope.idx)
FROM above LEFT JOIN span ON span.id = above.id LEFT JOIN open_scope ON open_scope.id = above.id
WHERE coalesce(span.name, open_scope.name) = 'epoch' ORDER BY level;
"""
_FILES: Final = "SELECT name FROM file"
_ADD: Final = "INSERT OR IGNORE INTO open_scope VALUES (?, ?, ?, ?)"

OpenScopes: TypeAlias = Mapping[str, tuple[str | None, str | None, str | None]]
"""The parent, the name and the index of each scope that is open, by its id."""


def open_scopes_of(names: Iterable[str | None], paths: SpoolPaths) -> OpenScopes:
    """Return the scopes that are open according to the journals of the processes of some batches.

    Those are the epochs of a process that runs, or was killed: only ended scopes are in batches.
    """
    found: dict[str, tuple[str | None, str | None, str | None]] = {}
    for owner in {owner for name in names if (owner := owner_of(name or ""))}:
        for each in open_scopes(paths, owner):
            id_, parent = each.get("id"), each.get("parent_id")
            if isinstance(id_, str):
                parent = parent if isinstance(parent, str) else None
                found.setdefault(id_, (parent, shown(each.get("name")), shown(each.get("index"))))
    return found


def add_open_scopes(index: SpoolIndex, paths: SpoolPaths) -> None:
    """Add the scopes that are open according to the journals of the indexed processes."""
    opened = open_scopes_of((name for (name,) in index.rows(_FILES)), paths)
    index.change(_ADD, ((key_of(id_), key_of(up), *rest) for id_, (up, *rest) in opened.items()))


def create_epoch_table(index: SpoolIndex, table: str, parents: str) -> None:
    """Create a table (parent, epoch) with the number of the epoch that is, or contains, a parent.

    `parents` is a query for the distinct ids of scopes, in a column `parent`. A parent that no
    epoch contains has no row. `add_open_scopes` adds those of epochs that have not ended.
    """
    index.script(_EPOCHS.format(table=table, parents=parents))
