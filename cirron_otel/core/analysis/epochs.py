"""The epochs of the scopes of an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

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


def add_open_scopes(index: SpoolIndex, paths: SpoolPaths) -> None:
    """Add the scopes that are open according to the journals of the indexed processes.

    Those are the epochs of a process that runs, or was killed: only ended scopes are in batches.
    """
    owners = {owner for (name,) in index.rows(_FILES) if (owner := owner_of(name or ""))}
    index.change(_ADD, _rows(each for owner in owners for each in open_scopes(paths, owner)))


def _rows(records: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for each in records:
        key = key_of(each.get("id"))
        if key is not None:
            name, number = shown(each.get("name")), shown(each.get("index"))
            yield key, key_of(each.get("parent_id")), name, number


def create_epoch_table(index: SpoolIndex, table: str, parents: str) -> None:
    """Create a table (parent, epoch) with the number of the epoch that is, or contains, a parent.

    `parents` is a query for the distinct ids of scopes, in a column `parent`. A parent that no
    epoch contains has no row. `add_open_scopes` adds those of epochs that have not ended.
    """
    index.script(_EPOCHS.format(table=table, parents=parents))
